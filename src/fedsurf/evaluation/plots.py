"""Figures from trajectories, and of graphs."""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import networkx as nx
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedsurf.common.text import counted
from fedsurf.common.writing import check_file, replacing
from fedsurf.evaluation.evaluate import Evaluation
from fedsurf.evaluation.run import Trajectories

COLOURS = ("#0b6fb8", "#d1495b", "#5b8c5a", "#8d5fa8", "#e09f3e")
"""Legible on white, in print, and to most colour-blind readers."""

KINDS = (".png", ".svg", ".pdf")
"""The files that figures are written into."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "fedsurf",
}
"""Style of all figures."""


def check_figure(path: Path, argument: str = "figure") -> None:
    """Raise unless a figure can be written into a file; for a check before the work."""
    if path.suffix.lower() not in (*KINDS, ""):
        raise ValueError(f"{argument}: got {str(path)!r}, but it must end in {', '.join(KINDS)}")
    check_file(path, argument)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all, in the format of the file's ending."""
    kind = path.suffix.lower().removeprefix(".") or "png"
    with replacing(path) as temporary, mpl.rc_context(STYLE):
        figure.savefig(
            temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
        )


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """Draw accuracy over rounds for all methods, and the gradient norm over the optimizer's layers."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _accuracy(left, evaluation)
        _descent(right, evaluation.descent.norms, evaluation.constraints.epsilon)
    return figure


def layers_figure(evaluations: Sequence[tuple[str, Evaluation]]) -> Figure:
    """Draw loss and accuracy over the layers of several optimizers (the paper's ablation)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        axes = figure.subplots(1, 3)
        for colour, (name, evaluation) in zip(cycle(COLOURS), evaluations, strict=False):
            runs = evaluation.unrolled
            drawn = (runs.loss, 100 * runs.accuracy.nan_to_num(0.0), evaluation.descent.norms)
            for axis, values in zip(axes, drawn, strict=True):
                _band(axis, list(range(values.shape[1])), values, colour, name, marker="o")
        labels = ("test loss", "test accuracy (%)", "gradient norm")
        for axis, label in zip(axes, labels, strict=True):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_xlabel("layer")
            axis.set_ylabel(label)
        axes[0].set_yscale("log")
        axes[1].set_ylim(0, 100)
        axes[2].set_ylim(bottom=0)
        axes[0].legend()
    return figure


def study_figure(results: Sequence[Trajectories], ceiling: Tensor, agents: int) -> Figure:
    """Draw accuracy over rounds, floats and bytes for all entrants of a study."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.6), layout="constrained")
        panels = left, middle, right = figure.subplots(1, 3, sharey=True)
        styles = cycle(("-", "--", "-.", ":"))
        colours = [mpl.colormaps["tab20"](number) for number in range(20)]
        lowest, last_round, most_floats = 100.0, 0, 0.0
        for number, runs in enumerate(results):
            look: dict[str, Any] = {
                "color": colours[number % len(colours)],
                "linestyle": next(styles),
            }
            look |= {"label": _plain(runs.name), "linewidth": 1.4}
            accuracy = 100 * runs.pooled_accuracy.nan_to_num(0.0)
            mean = accuracy.mean(0)
            if int(runs.taken[-1]) == 0:  # without communication: a level, not a curve
                for axis in panels:
                    axis.axhline(float(mean[-1]), **look)
                continue
            spread = accuracy.std(0) if len(accuracy) > 1 else torch.zeros_like(mean)
            rounds = runs.taken.tolist()
            floats = (runs.floats.double().mean(0) / agents).tolist()
            kilobytes = (runs.bytes.double().mean(0) / agents / 1000).tolist()
            for axis, x in zip(panels, (rounds, floats, kilobytes), strict=True):
                axis.plot(x, mean.tolist(), **look)
                low, high = (mean - spread).tolist(), (mean + spread).tolist()
                axis.fill_between(x, low, high, color=look["color"], alpha=0.08, linewidth=0)
            lowest, last_round = min(lowest, float(mean[-1])), max(last_round, rounds[-1])
            most_floats = max(most_floats, floats[-1])
        best = 100 * float(ceiling.mean())
        for axis in panels:
            axis.axhline(best, color="black", linestyle=":", linewidth=1, label="centralised")
            axis.set_ylim(max(0.0, lowest - 25), min(100.0, best + 3))
        left.set_xscale("symlog", linthresh=20, linscale=1.5)
        ticks = [tick for tick in (0, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= last_round]
        left.set_xticks(ticks, [str(tick) for tick in ticks])
        left.set_xlim(0, max(1, last_round))
        left.set_xlabel("communication rounds")
        left.set_ylabel("test accuracy, all agents' examples (%)")
        for axis, label in ((middle, "floats per agent"), (right, "kilobytes per agent")):
            if most_floats > 0:  # a single agent sends none
                axis.set_xscale("log")
            axis.set_xlabel(label)
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return figure


def fit_figure(trajectory: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> Figure:
    """Draw a classifier's accuracy by round, with that of agents alone and of centralised training."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.4), layout="constrained")
        axis = figure.subplots()
        rounds = [row["rounds"] for row in trajectory]
        curves = [("training examples", "accuracy")]
        if result["test_accuracy"] is not None:
            curves.append(("test examples", "test_accuracy"))
            for style, name, key in (
                (":", "test, all data in one place", "centralised"),
                ("--", "test, every agent alone", "alone"),
            ):
                if result[key] is not None:
                    axis.axhline(
                        100 * result[key], color="black", ls=style, linewidth=1, label=name
                    )
        for colour, (name, key) in zip(COLOURS, curves, strict=False):
            values = [100 * row[key] for row in trajectory]
            axis.plot(rounds, values, color=colour, label=name, marker="o", markersize=3)
        axis.set_xlim(0, max(1, rounds[-1]))
        axis.set_ylim(0, 101)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("communication rounds")
        axis.set_ylabel("accuracy (%)")
        axis.legend(loc="lower right")
    return figure


def graph_figure(graph: nx.Graph, names: Sequence[str]) -> Figure:
    """Draw a graph, its nodes on a circle; one that is linked to all others in the middle."""
    first, *others = graph
    star = len(others) > 1 and nx.utils.graphs_equal(graph, nx.star_graph(len(others)))
    places = nx.circular_layout(others if star else graph)
    if star:
        places[first] = (0.0, 0.0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 6), layout="constrained")
        axis = figure.subplots()
        nx.draw_networkx_edges(graph, places, edge_color="#999999", ax=axis)
        nx.draw_networkx_nodes(graph, places, node_size=60, node_color=COLOURS[0], ax=axis)
        below = {node: (x, y - 0.04) for node, (x, y) in places.items()}
        nx.draw_networkx_labels(
            graph,
            below,
            dict(enumerate(names)),
            font_size=8,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5},
            verticalalignment="top",
            ax=axis,
        )
        axis.set_axis_off()
        axis.margins(0.15)
    return figure


def _plain(name: str) -> str:
    """Return a name that may be a user's folder as matplotlib shows it: no formula, and never hidden."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _accuracy(axis: Axes, evaluation: Evaluation) -> None:
    curves = [evaluation.unrolled, *evaluation.classical]
    for colour, runs in zip(chain(COLOURS, cycle(COLOURS[1:])), curves, strict=False):
        label, marker = runs.name, "o"
        if runs is not evaluation.unrolled:
            label, marker = f"{label}, tuned for {counted(int(runs.taken[-1]), 'round')}", ""
        accuracy = 100 * runs.pooled_accuracy.nan_to_num(0.0)  # 0 where it diverged
        _band(axis, runs.taken.tolist(), accuracy, colour, label, marker)
    ceiling = 100 * float(evaluation.centralised.mean())
    axis.axhline(ceiling, color="black", linestyle=":", linewidth=1, label="centralised")
    axis.set_xscale("symlog", linthresh=20, linscale=1.5)
    last = max(1, *(int(runs.taken[-1]) for runs in curves))
    ticks = sorted({*(tick for tick in (0, 5, 10, 20, 50, 100) if tick <= last), last})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlim(0, ticks[-1])
    axis.set_ylim(0, 100)
    axis.set_xlabel("communication rounds")
    axis.set_ylabel("test accuracy, all agents' examples (%)")
    axis.legend(loc="lower right")


def _descent(axis: Axes, norms: Tensor, epsilon: float) -> None:
    layers = list(range(norms.shape[1]))
    _band(axis, layers, norms, COLOURS[0], "measured", marker="o")
    start = float(norms[:, 0].mean())
    bound = [start * (1 - epsilon) ** layer for layer in layers]
    label = f"(1 − {epsilon:g})^l of the start"
    axis.plot(layers, bound, color="black", linestyle=":", label=label)
    axis.set_xticks(layers[:: max(1, len(layers) // 11)])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("layer l")
    axis.set_ylabel("gradient norm ‖∇f(W_l)‖")
    axis.legend(loc="upper right")


def _band(
    axis: Axes, x: list[int], values: Tensor, colour: str, label: str, marker: str = ""
) -> None:
    """Draw the mean over tasks, and a band of one standard deviation."""
    mean = values.mean(0)
    axis.plot(x, mean.tolist(), color=colour, label=_plain(label), marker=marker, markersize=3)
    if len(values) > 1:
        spread = values.std(0)
        low, high = (mean - spread).tolist(), (mean + spread).tolist()
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
