"""The theory: certificates of U-DGD over its layers, with and without the descending constraints."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame
from torch import Tensor

from fedsurf.evaluation.plots import COLOURS, STYLE
from fedsurf.paper.artefacts import SURF_T, Artifact, ArtifactStore
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.figures.ablation import WITH, WITHOUT, optimizers
from fedsurf.paper.figures.figure import FigureResult, PaperFigure
from fedsurf.paper.sizes import Size

MIN_R_SQUARED = 0.9
"""Smallest share of the variance of the log gradient norm that an exponential must explain."""

Certified = Mapping[str, Any]
"""A certificate as plain values."""


def judge(certified: Certified) -> list[Claim]:
    """Judge the theorems by the certificate of the optimizer with constraints."""
    layers, reading = certified["layers"], certified["per_run"]
    last = layers[-1]
    error = last["norm_spread"] / sqrt(certified["tasks"])
    bound = reading["values"][-1]
    bounded = Claim(
        "theory-bound",
        "E‖∇f(W_L)‖ ≤ (1 − δ)^L (1 − ε)^L E‖∇f(W_0)‖ + (ζ + δM/(1 − δ))/ε.",
        "The mean gradient norm is below the bound at every layer, with constants measured on "
        "meta-test tasks. The numbers are those of the last layer.",
        Number("gradient norm at the last layer", last["norm"], error),
        Number("the bound there", float("inf") if bound is None else bound),
        bool(reading["holds"]),
        unit="",
        note=certified["sentence"],
    )
    fall = certified["fall"]
    # Half the width of the interval counts as two standard errors.
    exponential = Claim(
        "theory-exponential",
        "The unrolled optimizer trained via SURF has an exponential rate of convergence.",
        "The factor by which the norm changes at each layer, fitted on a logarithmic scale, is below 1 "
        f"with {100 * certified['confidence']:g} % confidence, and the exponential explains at least "
        f"{100 * MIN_R_SQUARED:g} % of the variance over layers.",
        Number("factor of a layer", fall["factor"], (fall["high"] - fall["low"]) / 4),
        Number("no fall", 1.0),
        fall["high"] < 1 and fall["r_squared"] >= MIN_R_SQUARED,
        unit="",
        note=(
            f"From layer 0 to {last['layer']} the norm falls from {layers[0]['norm']:.3g} to "
            f"{last['norm']:.3g}; the exponential explains {100 * fall['r_squared']:.0f} % of the variance."
        ),
    )
    return [bounded, exponential]


def draw(certificates: Mapping[str, Certified], pretrained: Tensor) -> Figure:
    """Draw gradient norms with the bounds of the constrained optimizer, and the slacks.

    `pretrained` are the gradient norms of SURF-T, `[tasks, layers + 1]`.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        frames = {label: DataFrame(one["layers"]) for label, one in certificates.items()}
        for colour, (label, layers) in zip(COLOURS, frames.items(), strict=False):
            look = {"color": colour, "marker": "o", "markersize": 3.5}
            left.plot(layers["layer"], layers["norm"], label=f"measured, {label}", **look)
            low, high = layers["norm_low"], layers["norm_high"]
            left.fill_between(layers["layer"], low, high, color=colour, alpha=0.18, linewidth=0)
            limits = layers[1:]
            slack = limits["slack"]
            errors = (slack - limits["slack_low"], limits["slack_high"] - slack)
            right.errorbar(limits["layer"], slack, errors, capsize=2, **look)
        look = {"color": "black", "marker": "s", "markersize": 3.5}
        left.plot(pretrained.mean(0).tolist(), label=f"measured, {SURF_T}", **look)
        for name, style, label in (
            ("per_run_bound", "--", "bound, constants as measured"),
            ("in_mean_bound", ":", "bound, read in the mean"),
        ):
            bounds = frames[WITH][name].astype(float)
            left.plot(bounds.tolist(), color="black", linestyle=style, label=label)
        left.set_yscale("log")
        left.set_ylabel("gradient norm ‖∇f(W_l)‖")
        right.axhline(0, color="black", linewidth=0.8)
        right.set_ylabel("slack of the descending constraint")
        for axis in (left, right):
            axis.set_xlabel("layer l")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = left.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _rows(certificates: Mapping[str, Certified], pretrained: Tensor) -> list[dict[str, Any]]:
    norms = enumerate(pretrained.mean(0).tolist())
    layers = {label: certified["layers"] for label, certified in certificates.items()}
    layers[SURF_T] = [{"layer": layer, "norm": norm} for layer, norm in norms]
    return [{"curve": label, **row} for label, rows in layers.items() for row in rows]


def _artifacts(size: Size) -> list[Artifact]:
    certificates = [Artifact("certificate", config) for config in optimizers(size).values()]
    return [*certificates, Artifact("norms", size.ablation)]


def _make(store: ArtifactStore) -> FigureResult:
    size = store.size
    certificates = {
        label: dict(store.read(Artifact("certificate", config)).content)
        for label, config in optimizers(size).items()
    }
    norms = store.read(Artifact("norms", size.ablation)).tensors["norms"]
    caption = (
        "Gradient norms over the layers with the bounds of the second theorem, and the slack of the "
        f"descending constraints (above 0 is a violation). Means over {size.tasks} meta-test tasks "
        f"with {100 * certificates[WITH]['confidence']:g} % confidence intervals. SURF-T was "
        "meta-trained under other constraints: it has no bound and no slack here."
    )
    return FigureResult(
        judge(certificates[WITH]),
        draw(certificates, norms),
        caption,
        extra={
            "certificates": certificates,
            "without_constraints": certificates[WITHOUT]["sentence"],
        },
        table=_rows(certificates, norms),
    )


THEORY = PaperFigure(
    "theory",
    "The theorems, in measured numbers",
    "A 3-regular graph; the certificates of the two optimizers of the ablation: gradient norms, slacks, "
    "and the bound of the second theorem.",
    optimizers,
    _artifacts,
    _make,
)
