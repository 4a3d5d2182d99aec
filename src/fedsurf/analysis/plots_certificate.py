"""The figure of a certificate: measured gradient norms beside the theorems' bounds."""

import math

import matplotlib as mpl
from matplotlib.figure import Figure

from fedsurf.analysis.certificate import Certificate
from fedsurf.evaluation.plots import COLOURS, STYLE


def certificate_figure(certificate: Certificate) -> Figure:
    """Draw the gradient norm over layers with its spread, the bounds of both theorems and M.

    `fedsurf.plots.save` writes it.
    """
    layers = list(certificate.layers)
    x = [layer.layer for layer in layers]
    per_run, in_mean = certificate.per_run, certificate.in_mean
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        norms = [layer.norm for layer in layers]
        axis.plot(x, norms, color=COLOURS[0], marker="o", markersize=3, label="measured")
        lowest = min(norms) / 10
        axis.fill_between(
            x,
            [max(layer.norm - layer.norm_spread, lowest) for layer in layers],
            [layer.norm + layer.norm_spread for layer in layers],
            color=COLOURS[0],
            alpha=0.15,
            linewidth=0,
        )
        failure = per_run.constants.failure
        if math.isfinite(per_run.radius):
            axis.plot(
                x,
                per_run.rate_bound,
                color=COLOURS[1],
                label=f"second theorem, δ = {failure:.2g}{_said(per_run.vacuous)}",
            )
            axis.axhline(
                per_run.radius,
                color=COLOURS[1],
                linestyle=":",
                label="first theorem: radius of the near-optimal region",
            )
        axis.plot(
            x,
            in_mean.rate_bound,
            color=COLOURS[2],
            linestyle="--",
            label=f"second theorem, in the mean (δ = 0){_said(in_mean.vacuous)}",
        )
        axis.axhline(
            certificate.largest_seen,
            color="black",
            linestyle="-.",
            linewidth=1,
            label="M, the largest norm seen",
        )
        axis.set_yscale("log")
        axis.set_xticks(x[:: max(1, len(x) // 11)])
        axis.set_xlabel("layer l")
        axis.set_ylabel("gradient norm ‖∇f(W_l)‖")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _said(vacuous: str) -> str:
    return " (vacuous)" if vacuous else ""
