"""The certificate of a meta-trained optimizer: the paper's two theorems in measured numbers.

With ε the share by which the gradient norm must fall at each layer, δ the probability that a layer's
constraint fails by more than its sample error ζ, and M the largest gradient norm, the radius of the
near-optimal region is η = (ζ + δM / (1 − δ)) / ε, and

    lim_{l → ∞} E[min_{k ≤ l} ‖∇f(W_k)‖] ≤ η                          (the first theorem)
    E‖∇f(W_l)‖ ≤ (1 − δ)^l (1 − ε)^l E‖∇f(W_0)‖ + η                   (the second theorem)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_fraction
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator
from fedsurf.common.statistics import mean_interval, upper_limit
from fedsurf.common.writing import plain, write_json, write_rows
from fedsurf.evaluation.evaluate import layer_norms
from fedsurf.evaluation.experiment import Experiment
from fedsurf.surf.config import DescentConfig, GradientExamples
from fedsurf.surf.constraints import MIN_NORM, slack

Vacuous = Literal["", "start", "largest", "infinite"]

ROUNDING_ERROR = 1e-12
"""A slack below this share of the gradient norm before the layer counts as 0."""


@dataclass(frozen=True)
class Bound:
    """The bounds of both theorems with one choice of their constants.

    Examples
    --------
    >>> bound = Bound(0.5, sample_error=1.0, failure=0.5, largest_norm=9.0, norms=(8.0, 5.0, 2.0))
    >>> bound.radius, bound.values, bound.holds, bound.vacuous
    (20.0, (28.0, 22.0, 20.5), True, 'largest')
    """

    epsilon: float
    """ε: the share by which the gradient norm must fall at each layer."""
    sample_error: float
    """ζ: the violation up to which a constraint counts as satisfied."""
    failure: float
    """δ: the probability that a layer's constraint fails, by more than ζ."""
    largest_norm: float
    """M: the largest gradient norm."""
    norms: tuple[float, ...]
    """E‖∇f(W_0)‖ … E‖∇f(W_L)‖, to which the bound applies."""

    @property
    def radius(self) -> float:
        """η, the first theorem's bound; infinite where every constraint fails."""
        if self.failure == 1:
            return math.inf
        odds = self.failure / (1 - self.failure)
        return (self.sample_error + odds * self.largest_norm) / self.epsilon

    @property
    def values(self) -> tuple[float, ...]:
        """The second theorem's bound of E‖∇f(W_l)‖ at layers 0 … L."""
        factor, radius = (1 - self.failure) * (1 - self.epsilon), self.radius
        return tuple(factor**layer * self.norms[0] + radius for layer in range(len(self.norms)))

    @property
    def holds(self) -> bool:
        """Whether the norm is below the second theorem's bound at every layer, up to rounding."""
        pairs = zip(self.norms, self.values, strict=True)
        return all(norm <= value * (1 + 1e-9) for norm, value in pairs)

    @property
    def vacuous(self) -> Vacuous:
        """The reason why the last bound gives no information; empty if it is below M and the start."""
        last = self.values[-1]
        if math.isinf(last):
            return "infinite"
        if last >= self.largest_norm:
            return "largest"
        return "start" if last >= self.norms[0] else ""

    def to_dict(self) -> dict[str, Any]:
        """Return constants and bounds as plain numbers; None stands for infinity."""
        constants = ("epsilon", "sample_error", "failure", "largest_norm")
        names = (*constants, "radius", "values", "holds", "vacuous")
        return {name: plain(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class Fall:
    """An exponential fitted to the gradient norms: ‖∇f(W_l)‖ ≈ a · factor^l, on a log scale."""

    factor: float
    """The geometric mean over tasks; its confidence interval is from `low` to `high`."""
    low: float
    high: float
    r_squared: float
    """The share of the variance of log E‖∇f(W_l)‖ over layers that an exponential explains."""


@dataclass(frozen=True)
class Certificate:
    """The theorems' quantities, measured on meta-test tasks; `certify` has an example.

    `layers` has the measurements at the start, which is layer 0 and has no constraint, and at every layer.
    Values are means over meta-test tasks; ``_low`` and ``_high`` are the ends of confidence intervals.

    - ``norm``, ``norm_low``, ``norm_high``, ``norm_spread``: E‖∇f(W_l)‖ and the standard deviation.
    - ``largest_norm``: the largest gradient norm of any meta-test or meta-training task.
    - ``slack``, ``slack_low``, ``slack_high``: ‖∇f(W_l)‖ − (1 − ε)‖∇f(W_{l−1})‖, above 0 if violated.
    - ``slack_limit``: the upper confidence limit of the mean slack, at all layers at once.
    - ``training_slack``, ``sample_error``: the slack on meta-training tasks, and its distance from it.
    - ``violated``, ``failed``: the shares of tasks whose slack is above 0, and above ζ (δ).
    - ``before_where_held``: ‖∇f(W_{l−1})‖ where the constraint did not fail, divided by that of all
      tasks. The theorems' proof assumes that it is at most 1.
    """

    subject: str
    tasks: int
    training_tasks: int
    confidence: float
    """The level of all intervals and limits."""
    gradient: str
    """The gradient norm that was measured, in words."""
    layers: pd.DataFrame
    per_run: Bound
    """As in the proof: δ is the share of runs whose constraint fails, at the worst layer."""
    in_mean: Bound
    """For constraints on means, as meta-training imposes them: δ = 0, and ζ is the upper confidence limit
    of the mean slack at the worst layer."""
    fall: Fall

    @property
    def sentence(self) -> str:
        """The result in words."""
        run, mean, level = self.per_run, self.in_mean, f"{100 * self.confidence:g} % confidence"
        constants = f"δ = {run.failure:.3g}, ζ = {run.sample_error:.3g}, M = {run.largest_norm:.3g}"
        return (
            f"The second theorem's bound, per run ({constants}), {_result(run)} In the mean, with "
            f"{level} (δ = 0, ζ = {mean.sample_error:.3g}), it {_result(mean)}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layer, measurements and bounds, for CSV; None if missing or infinite."""
        bounds = {f"{name}_bound": getattr(self, name).values for name in ("per_run", "in_mean")}
        rows = self.layers.assign(**bounds).rename_axis("layer").reset_index()
        return [plain(row) for row in rows.to_dict("records")]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON; None stands for infinity."""
        names = ("sentence", "subject", "tasks", "training_tasks", "confidence", "gradient")
        return {
            **{name: getattr(self, name) for name in names},
            "per_run": self.per_run.to_dict(),
            "in_mean": self.in_mean.to_dict(),
            "fall": asdict(self.fall),
            "layers": self.rows(),
        }

    def write(self, folder: Path) -> None:
        """Write certificate.json, certificate.csv, certificate.png and certificate.svg."""
        from fedsurf.analysis.charts import certificate_figure
        from fedsurf.evaluation.plots import save

        write_json(folder / "certificate.json", self.to_dict())
        write_rows(folder / "certificate.csv", self.rows())
        figure = certificate_figure(self)
        for kind in ("png", "svg"):
            save(figure, folder / f"certificate.{kind}")


def _result(bound: Bound) -> str:
    start, last = bound.norms[0], len(bound.norms) - 1
    result = f"{'holds' if bound.holds else 'does NOT hold'} at every layer"
    value = f"after layer {last} it is {bound.values[-1]:.3g}"
    if not bound.vacuous:
        share = f"{100 * bound.values[-1] / start:.0f} % of the {start:.3g} at the start"
        return f"{result} and is informative: {value}, {share}."
    reason = {
        "infinite": "it is infinite, as the constraint of a layer failed on every task",
        "largest": f"{value}, and the largest gradient norm was {bound.largest_norm:.3g}",
        "start": f"{value}, and the gradient norm at the start was {start:.3g}",
    }[bound.vacuous]
    return f"{result}, {'but' if bound.holds else 'and'} is vacuous: {reason}."


def certify(
    run: Experiment | Path | str,
    *,
    tasks: int = 30,
    training_tasks: int | None = None,
    confidence: float = 0.95,
    gradient_examples: GradientExamples | None = None,
    progress: OpenBar = silent,
) -> Certificate:
    """Measure the theorems' quantities for a meta-trained optimizer, or the one in a run folder.

    There are at least 2 meta-test tasks, the same as those of `evaluate`, and by default as many
    `training_tasks`, for the sample error, at most as many as meta-training had. `confidence` is the level of
    intervals and limits. Gradients are taken on `gradient_examples`, by default those of the constraints;
    the noise of mini-batches makes constraints fail that hold on all examples. `progress` opens a bar with a
    title and a total.

    Examples
    --------
    >>> import fedsurf
    >>> experiment = fedsurf.Experiment(fedsurf.preset("smoke"))  # not meta-trained yet
    >>> found = fedsurf.certify(experiment, tasks=2)
    >>> found.per_run.vacuous, len(found.layers)
    ('infinite', 4)
    """
    check_fraction(confidence, "confidence")
    check_count(tasks, "tasks", 2, ", for confidence intervals")
    experiment = run if isinstance(run, Experiment) else Experiment.load(Path(run))
    config, optimizer = experiment.config, experiment.optimizer
    available = config.surf.tasks
    count = min(tasks, available) if training_tasks is None else training_tasks
    check_count(count, "training_tasks", 2, ", as in meta-training", available)
    test, draw = experiment.test_tasks(tasks), experiment.tasks.train.draw
    training = [draw(generator(config.seed, "train-task", number)) for number in range(count)]
    imposed = config.surf.descent
    descent = replace(imposed, gradient_examples=gradient_examples or imposed.gradient_examples)
    surf, network, seed = replace(config.surf, descent=descent), experiment.network, config.seed
    with progress(f"{optimizer.name}: gradient norms", tasks + count) as advance:
        norms = layer_norms(optimizer, test, network, surf, seed, "descent", advance)
        others = layer_norms(optimizer, training, network, surf, seed, "certificate", advance)
    return certificate_of(norms, others, descent, subject=optimizer.name, confidence=confidence)


def certificate_of(
    norms: Tensor,
    training_norms: Tensor,
    descent: DescentConfig,
    *,
    subject: str = "optimizer",
    confidence: float = 0.95,
) -> Certificate:
    """Make a certificate from gradient norms at W_0 … W_L on meta-test and meta-training tasks.

    Each is `[tasks, layers + 1]`, of at least 2 tasks. Whatever the form of the constraints, the slack is
    the theorems' difference of norms.
    """
    norms, training_norms = norms.double(), training_norms.double()
    for argument, values in (("norms", norms), ("training_norms", training_norms)):
        if not values.isfinite().all():
            raise ValueError(
                f"{argument}: got infinity or NaN, but no bound holds where an optimizer diverges"
            )
    layers = _measurements(norms, training_norms, descent.epsilon, confidence)
    largest = {name: float(layers[name].max()) for name in layers}
    bound = partial(
        Bound,
        descent.epsilon,
        largest_norm=largest["largest_norm"],
        norms=tuple(layers["norm"].tolist()),
    )
    return Certificate(
        subject,
        len(norms),
        len(training_norms),
        confidence,
        _gradient_name(descent),
        layers,
        per_run=bound(largest["sample_error"], largest["failed"]),
        in_mean=bound(max(0.0, largest["slack_limit"]), 0.0),
        fall=_fall(norms, confidence),
    )


def _gradient_name(descent: DescentConfig) -> str:
    where = {
        "stacked": "all agents' gradients, each at its own weights",
        "average": "the gradient at the network's average weights",
    }[descent.gradient_of]
    norm = {"frobenius": "Frobenius norm", "root-mean-square": "root mean square over agents"}
    on = {"mini-batch": "mini-batches", "all": "all training examples"}
    return f"{norm[descent.norm]} of {where}, on {on[descent.gradient_examples]}"


def _measurements(
    norms: Tensor, training_norms: Tensor, epsilon: float, confidence: float
) -> pd.DataFrame:
    """Return the table of layers, from gradient norms `[tasks, layers + 1]`."""
    mean, low, high = mean_interval(norms, confidence)
    measured = {
        "norm": mean,
        "norm_low": low,
        "norm_high": high,
        "norm_spread": norms.std(0),
        "largest_norm": torch.cat([norms, training_norms]).amax(0),
    }
    slacks, training_slacks = slack(norms.T, epsilon).T, slack(training_norms.T, epsilon).T
    mean, low, high = mean_interval(slacks, confidence)
    gaps = (mean - training_slacks.mean(0)).abs()
    before = norms[:, :-1]
    rounding = ROUNDING_ERROR * before
    failed = slacks > gaps.max() + rounding
    held = zip(before.T, ~failed.T, strict=True)
    constraints = {
        "slack": mean,
        "slack_low": low,
        "slack_high": high,
        # Bonferroni: limits at this level at each layer hold for all layers at once.
        "slack_limit": upper_limit(slacks, 1 - (1 - confidence) / slacks.shape[1]),
        "training_slack": training_slacks.mean(0),
        "sample_error": gaps,
        "violated": (slacks > rounding).double().mean(0),
        "failed": failed.double().mean(0),
        "before_where_held": torch.stack([norm[ok].mean() / norm.mean() for norm, ok in held]),
    }
    start = norms.new_full((1,), math.nan)
    measured |= {name: torch.cat([start, values]) for name, values in constraints.items()}
    return pd.DataFrame({name: values.numpy() for name, values in measured.items()})


def _fall(norms: Tensor, confidence: float) -> Fall:
    """Fit an exponential to every task's norms, and to their mean."""
    layers = torch.arange(norms.shape[1], dtype=norms.dtype)
    centred = layers - layers.mean()
    weights = centred / centred.square().sum()
    slopes = norms.clamp(min=MIN_NORM).log() @ weights
    slope, low, high = (float(value) for value in mean_interval(slopes, confidence))
    logs = norms.mean(0).clamp(min=MIN_NORM).log()
    residual = logs - logs.mean() - centred * (logs @ weights)
    total = float((logs - logs.mean()).square().sum())
    explained = 1 - float(residual.square().sum()) / total if total else 1.0
    return Fall(math.exp(slope), math.exp(low), math.exp(high), explained)
