"""Figures of audits and certificates."""

import math

import matplotlib as mpl
from matplotlib.figure import Figure

from fedsurf.analysis.audit import Audit
from fedsurf.analysis.certificate import Certificate
from fedsurf.evaluation.plots import COLOURS, STYLE


def audit_figure(audit: Audit) -> Figure:
    """Draw a bar for each intervention, with marks for chance and centralised training."""
    rows = [row for row in audit.rows if row.accuracy is not None]
    figure = Figure(figsize=(8, 0.9 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    for place, row in enumerate(rows):
        means = row.to_dict()
        axis.barh(
            place,
            100 * means["accuracy"],
            xerr=100 * means["accuracy_error"],
            height=0.6,
            color=COLOURS[1 if row.expected == "chance" else 0],
            label="with nothing to learn from" if row.name == "blanked" else "",
        )
        for name, colour in (("chance", COLOURS[4]), ("centralised", "black")):
            level, label = 100 * means[name], "" if place else name
            axis.vlines(level, place - 0.4, place + 0.4, color=colour, label=label)
    axis.set_yticks(range(len(rows)), [row.title for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("test accuracy, all agents' examples (%)")
    axis.set_title(f"{audit.subject} {audit.verdict.kind}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def certificate_figure(certificate: Certificate) -> Figure:
    """Draw the gradient norm over layers with its spread, the bounds of both theorems and M."""
    layers, norms = range(len(certificate.layers)), certificate.layers["norm"]
    spreads = certificate.layers["norm_spread"]
    per_run, in_mean = certificate.per_run, certificate.in_mean
    mark = {bound: " (vacuous)" if bound.vacuous else "" for bound in (per_run, in_mean)}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        axis.plot(layers, norms, color=COLOURS[0], marker="o", markersize=3, label="measured")
        low = (norms - spreads).clip(lower=norms.min() / 10)
        axis.fill_between(layers, low, norms + spreads, color=COLOURS[0], alpha=0.15, linewidth=0)
        if math.isfinite(per_run.radius):
            label = f"second theorem, δ = {per_run.failure:.2g}{mark[per_run]}"
            axis.plot(layers, per_run.values, color=COLOURS[1], label=label)
            label = "first theorem: radius of the near-optimal region"
            axis.axhline(per_run.radius, color=COLOURS[1], ls=":", label=label)
        label = f"second theorem, in the mean (δ = 0){mark[in_mean]}"
        axis.plot(layers, in_mean.values, color=COLOURS[2], ls="--", label=label)
        label = "M, the largest norm seen"
        axis.axhline(per_run.largest_norm, color="black", ls="-.", lw=1, label=label)
        axis.set_yscale("log")
        axis.set_xticks(layers[:: max(1, len(layers) // 11)])
        axis.set_xlabel("layer l")
        axis.set_ylabel("gradient norm ‖∇f(W_l)‖")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure
