"""The theory: the certificate of U-DGD over its layers, with and without the descending constraints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.plots import COLOURS, STYLE
from fedsurf.paper.ablation import WITH, WITHOUT, both, trained
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.finding import Finding
from fedsurf.paper.plan import Plan
from fedsurf.paper.sizes import Size
from fedsurf.paper.stages import Audited, Stage, Train
from fedsurf.paper.workshop import SURF_T, Workshop

EXPLAINED = 0.9
"""The share of the variance of the logarithm of the gradient norm that an exponential must explain."""

Certified = Mapping[str, Any]
"""A certificate as plain values, as its `to_dict` returns it."""


@dataclass(frozen=True)
class Certify:
    """Measure the quantities of the theorems for an optimizer."""

    train: Train

    @property
    def title(self) -> str:
        """What it does."""
        return f"certify U-DGD, {self.train.name}"

    def needs(self) -> tuple[Stage, ...]:
        """The optimizer."""
        return (self.train,)

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.certificate(self.train.config)


@dataclass(frozen=True)
class Descend:
    """Measure how the gradient norm falls with the pretrained optimizer on the same tasks."""

    config: ExperimentConfig

    @property
    def title(self) -> str:
        """What it does."""
        return f"gradient norms of {SURF_T}"

    def needs(self) -> tuple[Stage, ...]:
        """Nothing."""
        return ()

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.pretrained_norms(self.config)


def judge(certified: Certified) -> list[Claim]:
    """Judge the theorems by the certificate of the optimizer with constraints."""
    layers, reading = certified["layers"], certified["per_run"]
    last = layers[-1]
    error = last["norm_spread"] / sqrt(certified["tasks"])
    bound = reading["values"][-1]
    bounded = Claim(
        "theory-bound",
        "E‖∇f(W_L)‖ ≤ (1 − δ)^L (1 − ε)^L E‖∇f(W_0)‖ + (ζ + δM/(1 − δ))/ε.",
        "The mean gradient norm is below the bound at every layer, with the constants as they were "
        "measured on meta-test tasks. The numbers are those of the last layer.",
        Number("gradient norm at the last layer", last["norm"], error),
        Number("the bound there", float("inf") if bound is None else bound),
        bool(reading["holds"]),
        certified["sentence"],
        unit="",
    )
    fall = certified["fall"]
    # The interval is of the factor's logarithm; its half width stands for two standard errors.
    exponential = Claim(
        "theory-exponential",
        "The gradient norm falls exponentially over the layers.",
        "The factor by which the norm changes at each layer, fitted on a logarithmic scale, is below 1 "
        f"with {100 * certified['confidence']:g} % confidence, and the exponential explains at least "
        f"{100 * EXPLAINED:g} % of the variance over layers.",
        Number("factor of a layer", fall["factor"], (fall["high"] - fall["low"]) / 4),
        Number("no fall", 1.0),
        fall["high"] < 1 and fall["r_squared"] >= EXPLAINED,
        f"From layer 0 to {last['layer']} the norm falls from {layers[0]['norm']:.3g} to "
        f"{last['norm']:.3g}; the exponential explains {100 * fall['r_squared']:.0f} % of the variance.",
        unit="",
    )
    return [bounded, exponential]


def draw(certificates: Mapping[str, Certified], pretrained: Tensor) -> Figure:
    """Draw gradient norms with the bounds of the constrained optimizer, and the slacks.

    `pretrained` are the norms of the pretrained optimizer, `[tasks, layers + 1]`.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for colour, (label, certified) in zip(COLOURS, certificates.items(), strict=False):
            layers = certified["layers"]
            x = [layer["layer"] for layer in layers]
            left.plot(
                x,
                [layer["norm"] for layer in layers],
                color=colour,
                label=f"measured, {label}",
                marker="o",
                markersize=3.5,
            )
            low, high = ([layer[f"norm_{end}"] for layer in layers] for end in ("low", "high"))
            left.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
            limits = layers[1:]
            slacks = [one["slack"] for one in limits]
            errors = [
                [one["slack"] - one["slack_low"] for one in limits],
                [one["slack_high"] - one["slack"] for one in limits],
            ]
            right.errorbar(
                x[1:], slacks, errors, color=colour, marker="o", markersize=3.5, capsize=2
            )
        left.plot(
            range(pretrained.shape[1]),
            pretrained.mean(0).tolist(),
            color="black",
            label=f"measured, {SURF_T}",
            marker="s",
            markersize=3.5,
        )
        certified = certificates[WITH]
        for reading, style, label in (
            ("per_run", "--", "bound, constants as measured"),
            ("in_mean", ":", "bound, read in the mean"),
        ):
            bounds = [float("nan") if b is None else b for b in certified[reading]["values"]]
            left.plot(range(len(bounds)), bounds, color="black", linestyle=style, label=label)
        left.set_yscale("log")
        left.set_ylabel("gradient norm ‖∇f(W_l)‖")
        right.axhline(0, color="black", linewidth=0.8)
        right.set_ylabel("slack of the descending constraint")
        for axis in (left, right):
            axis.set_xlabel("layer l")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8
        )
    return figure


def _rows(certificates: Mapping[str, Certified], pretrained: Tensor) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for label, certified in certificates.items():
        rows += [{"curve": label, **layer} for layer in certified["layers"]]
    for layer, norm in enumerate(pretrained.mean(0).tolist()):
        rows.append({"curve": SURF_T, "layer": layer, "norm": norm})
    return rows


def _stages(size: Size) -> Sequence[Stage]:
    stages: list[Stage] = []
    for train in trained(size).values():
        stages += [train, Certify(train), Audited(train)]
    return [*stages, Descend(size.ablation)]


def _make(workshop: Workshop) -> Finding:
    size, optimizers = workshop.size, both(workshop.size)
    certificates = {label: workshop.certificate(one) for label, one in optimizers.items()}
    norms = workshop.pretrained_norms(size.ablation)
    plain = certificates[WITHOUT]["sentence"]
    claims = judge(certificates[WITH])
    return Finding(
        [],
        [],
        claims,
        draw(certificates, norms),
        optimizers,
        f"Gradient norms over the layers with the bounds of the second theorem, and the slack of the "
        f"descending constraints (above 0 is a violation). Means over {size.tasks} meta-test tasks "
        f"with {100 * certificates[WITH]['confidence']:g} % confidence intervals. SURF-T was "
        "meta-trained under other constraints: it has no bound and no slack here.",
        {"certificates": certificates, "without_constraints": plain},
        _rows(certificates, norms),
    )


THEORY = Plan(
    "theory",
    "The theorems, in measured numbers",
    "MNIST, 3-regular graph; the certificate of the two optimizers of the ablation: gradient norms, "
    "slacks, and the bound of the second theorem.",
    _stages,
    _make,
)
