"""The certificate of a meta-trained optimizer: the paper's two theorems in measured numbers.

On meta-test tasks it measures the gradient norm after every layer, how far each descending constraint
holds, and the constants of the theorems (`fedsurf.surf.bounds`); then it sets the bounds beside the
norms, and says where a bound tells nothing that was not known without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedsurf.analysis.assumptions import Check, check_assumptions
from fedsurf.analysis.bounds import Constants, Vacuous, vacuity
from fedsurf.analysis.certificate_layers import Constraint, Fall, Layer, fall_of, layers_of
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.statistics import check_confidence
from fedsurf.common.writing import plain
from fedsurf.evaluation.experiment import Experiment
from fedsurf.surf import unroll
from fedsurf.surf.config import DescentConfig
from fedsurf.tasks.task import Task

GradientExamples = Literal["mini-batch", "all"]


@dataclass(frozen=True)
class Reading:
    """The bounds of both theorems with one choice of the constants."""

    name: str
    about: str
    constants: Constants
    rate_bound: tuple[float, ...]
    """The second theorem's bound of E‖∇f(W_l)‖ at layers 0 … L."""
    recursive_bound: tuple[float, ...]
    """The tighter bound that its proof simplifies."""
    holds: bool
    """Whether the mean gradient norm is below the second theorem's bound at every layer."""
    vacuous: Vacuous
    """How little the second theorem's bound says at the last layer: nothing ("infinite"), no more than
    that the norm is below M ("largest"), no more than that it does not grow ("start"), or something."""
    recursive_vacuous: Vacuous
    """The same of the tighter bound."""

    @property
    def radius(self) -> float:
        """η, the radius of the near-optimal region: the first theorem's bound."""
        return self.constants.radius


@dataclass(frozen=True)
class Certificate:
    """The theorems' quantities, measured on meta-test tasks.

    Attributes
    ----------
    subject : str
        The optimizer.
    tasks, training_tasks : int
        Numbers of meta-test and meta-training tasks.
    confidence : float
        The level of all intervals and limits.
    gradient : str
        Which gradient norm it is about, in words.
    layers : tuple of Layer
        The start and every layer.
    per_run : Reading
        As the proof has it: δ is the share of runs whose constraint fails, at the worst layer. All
        constants are estimates.
    cautious : Reading
        The same with the constants' upper confidence limits, and the largest possible M if known.
    in_mean : Reading
        As the constraints have it, which are about means: δ = 0, and ζ is what every layer's mean slack
        is below with confidence.
    largest_possible : float or None
        What the gradient norm cannot exceed at any weights, where the model says so.
    fall : Fall
        How fast the gradient norm fell.
    checks : tuple of Check
        The assumptions.
    """

    subject: str
    tasks: int
    training_tasks: int
    confidence: float
    gradient: str
    layers: tuple[Layer, ...]
    per_run: Reading
    cautious: Reading
    in_mean: Reading
    largest_possible: float | None
    fall: Fall
    checks: tuple[Check, ...]

    @property
    def readings(self) -> tuple[Reading, Reading, Reading]:
        """All readings, the paper's first."""
        return self.per_run, self.cautious, self.in_mean

    @property
    def holds(self) -> bool:
        """Whether the second theorem's bound, with estimated constants, holds at every layer."""
        return self.per_run.holds

    @property
    def vacuous(self) -> bool:
        """Whether that bound says nothing that was not known without it."""
        return bool(self.per_run.vacuous)

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        return f"{self._told(self.per_run)} {self._told(self.in_mean)}"

    def _told(self, reading: Reading) -> str:
        start, last = self.layers[0].norm, len(self.layers) - 1
        bound, constants = reading.rate_bound[-1], reading.constants
        verb = "holds at every layer" if reading.holds else "does NOT hold at every layer"
        values = f"δ = {constants.failure:.3g}, ζ = {constants.sample_error:.3g}"
        if reading is not self.in_mean:
            values += f", M = {constants.largest_norm:.3g}"
        said = f"The bound of the second theorem {reading.about} ({values}) {verb}"
        if not reading.vacuous:
            share = f"{100 * bound / start:.0f} % of the {start:.3g} at the start"
            return f"{said} and says something: after layer {last} it is {bound:.3g}, {share}."
        joint = "but" if reading.holds else "and"
        why = {
            "infinite": "there it is infinite, as the constraint of a layer failed on every task",
            "largest": f"after layer {last} it is {bound:.3g}, and no gradient norm was above "
            f"{self.largest_seen:.3g}",
            "start": f"after layer {last} it is {bound:.3g}, and the gradient norm began at "
            f"{start:.3g}",
        }[reading.vacuous]
        return f"{said}, {joint} it is vacuous: {why}."

    @property
    def largest_seen(self) -> float:
        """M as seen: the largest gradient norm over all layers and tasks."""
        return max(layer.largest_norm for layer in self.layers)

    @property
    def failure_needed(self) -> float:
        """The δ below which the first theorem's radius would be below the norm at the start."""
        return self.per_run.constants.failure_needed(self.layers[0].norm)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layer, measured numbers and bounds, for CSV."""
        rows = []
        for layer in self.layers:
            row = asdict(layer)
            constraint = row.pop("constraint") or dict.fromkeys(
                field.name for field in fields(Constraint)
            )
            bounds = {
                f"{reading.name}_{bound}": plain(getattr(reading, bound)[layer.layer])
                for reading in self.readings
                for bound in ("rate_bound", "recursive_bound")
            }
            rows.append({**row, **constraint, **bounds})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON; None stands for infinity."""
        content: dict[str, Any] = plain(asdict(self))
        for reading in self.readings:
            content[reading.name]["radius"] = plain(reading.radius)
        return {
            "sentence": self.sentence,
            "holds": self.holds,
            "vacuous": self.vacuous,
            "failure_needed": self.failure_needed,
            **content,
        }


def certify(
    run: Experiment | Path | str,
    *,
    tasks: int = 30,
    training_tasks: int | None = None,
    confidence: float = 0.95,
    gradient_examples: GradientExamples | None = None,
    progress: OpenBar = silent,
) -> Certificate:
    """Measure the theorems' quantities for a meta-trained optimizer.

    Parameters
    ----------
    run : Experiment or Path or str
        A trained experiment, or the folder of one.
    tasks : int
        The number of meta-test tasks, at least 2; those of `evaluate`, which follow from the run's seed.
    training_tasks : int or None
        The number of meta-training tasks beside which they are set; as many where None, and at most
        as many as meta-training had.
    confidence : float
        The level of intervals and limits.
    gradient_examples : {"mini-batch", "all"} or None
        The examples on which the gradients are taken; those of the constraints where None. On
        mini-batches their noise makes constraints fail that hold on all examples.
    progress : callable
        Opens a progress bar with a title and a total.
    """
    check_confidence(confidence)
    if tasks < 2:
        raise ValueError(
            f"tasks: got {tasks}, but a certificate takes at least 2, for its intervals"
        )
    experiment = run if isinstance(run, Experiment) else Experiment.load(Path(run))
    config, optimizer = experiment.config, experiment.optimizer
    there = config.surf.tasks
    count = min(tasks, there) if training_tasks is None else training_tasks
    if not 2 <= count <= there:
        raise ValueError(
            f"training_tasks: got {count}, but it must be from 2 to {there}, the number of tasks that "
            "meta-training had"
        )
    seen = [
        experiment.tasks.train.draw(seeded(config.seed, "train-task", number))
        for number in range(count)
    ]
    test = experiment.test_tasks(tasks)
    imposed = config.surf.descent
    descent = replace(imposed, gradient_examples=gradient_examples or imposed.gradient_examples)
    with progress(f"{optimizer.name}: gradient norms", tasks + count) as advance:
        norms = measure_norms(experiment, test, descent, "descent", advance)
        training_norms = measure_norms(experiment, seen, descent, "certificate", advance)
    return certificate_of(
        norms,
        training_norms,
        descent,
        subject=optimizer.name,
        confidence=confidence,
        largest_possible=_largest_possible(experiment, [*test, *seen]),
    )


@torch.no_grad()
def measure_norms(
    experiment: Experiment,
    tasks: Sequence[Task],
    descent: DescentConfig,
    purpose: str,
    advance: Callable[[], None],
) -> Tensor:
    """Return ‖∇f(W_l)‖ as `descent` takes it, on every task, float64 `[tasks, layers + 1]`.

    `purpose` names the random numbers of the starts and mini-batches.
    """
    surf = experiment.config.surf
    rows = []
    for number, task in enumerate(tasks):
        _, norms = unroll(
            experiment.optimizer,
            experiment.optimizer.steps,
            task,
            experiment.network,
            descent,
            gradient_batch_size=surf.gradient_batch_size,
            weighting=surf.weighting,
            seed=experiment.config.seed,
            path=(purpose, number),
        )
        rows.append(norms.double())
        advance()
    return torch.stack(rows)


def certificate_of(
    norms: Tensor,
    training_norms: Tensor,
    descent: DescentConfig,
    *,
    subject: str = "optimizer",
    confidence: float = 0.95,
    largest_possible: float | None = None,
) -> Certificate:
    """Make a certificate from gradient norms at W_0 … W_L.

    Parameters
    ----------
    norms : Tensor
        On meta-test tasks, `[tasks, layers + 1]`.
    training_norms : Tensor
        On meta-training tasks, `[tasks, layers + 1]`.
    descent : DescentConfig
        The constraints. The slack is that of the theorems, a difference of norms, whatever their form.
    subject : str
        What the optimizer is called.
    confidence : float
        The level of intervals and limits.
    largest_possible : float or None
        What the gradient norm cannot exceed at any weights, if known.
    """
    check_confidence(confidence)
    norms, training_norms = norms.double(), training_norms.double()
    for name, values in (("norms", norms), ("training_norms", training_norms)):
        if values.dim() != 2 or values.shape[0] < 2 or values.shape[1] < 2:
            raise ValueError(
                f"{name}: got shape {list(values.shape)}, but it must be [tasks, layers + 1], "
                "of at least 2 tasks and 1 layer"
            )
        if not values.isfinite().all():
            bad = int((~values.isfinite()).any(1).sum())
            raise ValueError(
                f"{name}: got gradient norms that are no numbers on {bad} of {len(values)} tasks: "
                "the optimizer diverged there, and no bound can hold"
            )
    if norms.shape[1] != training_norms.shape[1]:
        raise ValueError(
            f"training_norms: got {training_norms.shape[1] - 1} layers, but norms have "
            f"{norms.shape[1] - 1}"
        )
    epsilon = descent.epsilon
    layers = layers_of(norms, training_norms, epsilon, confidence)
    constraints = [layer.constraint for layer in layers if layer.constraint is not None]
    means = [layer.norm for layer in layers]
    largest = max(layer.largest_norm for layer in layers)
    estimated = Constants(
        epsilon,
        max(one.sample_error for one in constraints),
        max(one.failed for one in constraints),
        largest,
    )
    # The limit of δ is that of failing by more than the estimated ζ, which is more than by its limit.
    limits = Constants(
        epsilon,
        max(one.sample_error_limit for one in constraints),
        max(one.failed_limit for one in constraints),
        largest if largest_possible is None else largest_possible,
    )
    mean_limit = max(0.0, *(one.slack_limit for one in constraints))
    level = f"{100 * confidence:g} % confidence"
    readings = (
        ("per_run", "with the constants as estimated", estimated),
        ("cautious", f"with the constants' limits at {level}", limits),
        (
            "in_mean",
            f"read in the mean, with {level}",
            Constants(epsilon, mean_limit, 0.0, largest),
        ),
    )
    per_run, cautious, in_mean = (
        _reading(name, about, constants, means, largest) for name, about, constants in readings
    )
    return Certificate(
        subject,
        len(norms),
        len(training_norms),
        confidence,
        _gradient(descent),
        layers,
        per_run,
        cautious,
        in_mean,
        largest_possible,
        fall_of(norms, confidence),
        check_assumptions(
            descent,
            training_slacks=[one.training_slack for one in constraints],
            training_limits=[one.training_slack_limit for one in constraints],
            before_where_held=[one.before_where_held for one in constraints],
            largest=largest,
            largest_possible=largest_possible,
        ),
    )


def _reading(
    name: str, about: str, constants: Constants, means: Sequence[float], largest: float
) -> Reading:
    start = means[0]
    rate = tuple(constants.rate_bound(start, layer) for layer in range(len(means)))
    recursive = tuple(constants.recursive_bound(start, layer) for layer in range(len(means)))
    return Reading(
        name,
        about,
        constants,
        rate,
        recursive,
        # What follows from the constants by algebra alone may miss by rounding.
        all(mean <= bound * (1 + 1e-9) for mean, bound in zip(means, rate, strict=True)),
        vacuity(rate[-1], start, largest),
        vacuity(recursive[-1], start, largest),
    )


def _gradient(descent: DescentConfig) -> str:
    where = {
        "stacked": "all agents' gradients, each at its own weights",
        "average": "the gradient at the network's average weights",
    }[descent.gradient_of]
    norm = {"frobenius": "Frobenius norm", "root-mean-square": "root mean square over agents"}
    on = {"mini-batch": "mini-batches", "all": "all training examples"}[descent.gradient_examples]
    return f"{norm[descent.norm]} of {where}, on {on}"


def _largest_possible(experiment: Experiment, tasks: Sequence[Task]) -> float:
    """Return what the gradient norm cannot exceed on any of the tasks, at any weights.

    An example's gradient under a softmax head is [x, 1] times P − Y, and ‖P − Y‖ ≤ √2.
    """
    surf, limits = experiment.config.surf, []
    for task in tasks:
        share = task.agent_weights(surf.weighting).double()
        lengths = (task.train.x.double().square().sum(2) + 1).mul(2).sqrt().amax(1)
        if surf.descent.gradient_of == "average":
            limit = share @ lengths
        elif surf.descent.norm == "frobenius":
            limit = torch.linalg.vector_norm(share * lengths)
        else:
            limit = (share @ lengths.square()).sqrt()
        limits.append(float(limit))
    return max(limits)
