"""Drawing figures: panels side by side, with the same colour for a method in all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from fedsurf.common.statistics import standard_error
from fedsurf.evaluation.plots import COLOURS, STYLE
from fedsurf.paper.figures.figure import UNTUNED_KINDS, Curve, Level

BLUE, RED = COLOURS[0], COLOURS[1]
CLASSICAL_COLOURS = ("#d1495b", "#5b8c5a", "#8d5fa8", "#e09f3e", "#7a5c3e")
PRETRAINED_COLOUR = "#111111"
SECOND_COLOUR = "#6aa9d8"


@dataclass(frozen=True)
class Panel:
    """A panel of a figure: values of curves over rounds, layers or stale agents."""

    value: str
    y_label: str
    curves: Sequence[Curve]
    levels: Sequence[Level] = ()
    title: str = ""
    x_label: str = "communication rounds"
    x_scale: Literal["linear", "rounds", "counts"] = "rounds"
    """rounds: linear to 20 and logarithmic above; counts: linear to 1 and logarithmic above."""
    percent: bool = True
    """Whether the values are shares, shown in percent."""
    log_y: bool = False


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw panels side by side, with one legend below; bands are one standard error over tasks."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(6.4, 3.6 * len(panels)), 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        styles = _styles([curve for panel in panels for curve in panel.curves])
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, styles)
        handles: dict[str, Any] = {}
        for axis in axes:
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        columns = 3 if len(handles) > 4 else len(handles)
        shown = list(handles.values()), list(handles)
        figure.legend(*shown, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def label_of(curve: Curve) -> str:
    """Return the text of a curve in the legend."""
    learned = curve.kind in ("the paper's", "not the paper's")
    return curve.label if learned else f"{curve.label}, {curve.kind}"


Style = dict[str, Any]


def _styles(curves: Sequence[Curve]) -> dict[str, Style]:
    """Return the style of every curve: a colour for each method, dashes for untuned settings."""
    classical = list(dict.fromkeys(c.label for c in curves if c.kind in ("tuned", *UNTUNED_KINDS)))
    learned = list(dict.fromkeys(c.label for c in curves if c.kind == "the paper's"))
    styles: dict[str, Style] = {}
    for curve in curves:
        style: Style = {"linewidth": 1.5, "linestyle": "-"}
        if curve.kind == "the paper's":
            colours = (BLUE, RED) if not classical else (BLUE, SECOND_COLOUR)
            style["color"] = colours[learned.index(curve.label) % 2]
            style |= {"linewidth": 2.2, "marker": "o", "markersize": 3.5, "zorder": 4}
        elif curve.kind == "not the paper's":
            style |= {"color": PRETRAINED_COLOUR, "marker": "s", "markersize": 3, "zorder": 3}
        else:
            style["color"] = CLASSICAL_COLOURS[
                classical.index(curve.label) % len(CLASSICAL_COLOURS)
            ]
            if curve.kind in UNTUNED_KINDS:
                style |= {"linestyle": "--", "linewidth": 1.1}
        styles[label_of(curve)] = style
    return styles


def _draw_panel(axis: Axes, panel: Panel, styles: dict[str, Style]) -> None:
    scale = 100 if panel.percent else 1
    for curve in panel.curves:
        values = scale * curve.values[panel.value].double()
        style = styles[label_of(curve)]
        mean = values.mean(0)
        axis.plot(curve.x, mean.tolist(), label=label_of(curve), **style)
        if len(values) > 1:
            error = standard_error(values)
            low, high = (mean - error).tolist(), (mean + error).tolist()
            axis.fill_between(curve.x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for level in panel.levels:
        height = scale * float(level.values.double().mean())
        axis.axhline(height, color="black", linestyle=":", linewidth=1, label=level.label)
    _set_x(axis, panel.x_scale, max(curve.x[-1] for curve in panel.curves))
    if panel.log_y:
        axis.set_yscale("log")
        bottom, top = axis.get_ylim()
        # A part of a decade may include neither a 2 nor a 5.
        axis.yaxis.set_minor_locator(LogLocator(subs="all" if top < 4 * bottom else (2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
    if panel.percent:
        axis.set_ylim(0, 105 if panel.value == "relative_accuracy" else 100)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)


def _set_x(axis: Axes, scale: str, last: float) -> None:
    if scale == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim(0, last)
        return
    middle = 20.0 if scale == "rounds" else 1.0
    axis.set_xscale("symlog", linthresh=middle, linscale=1.5 if scale == "rounds" else 0.5)
    few = (0,) if scale == "rounds" else (0, 1, 2)
    ticks = [tick for tick in (*few, 5, 10, 20, 50, 100, 200) if tick <= last]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlim(0, last)


def draw_learning_curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw validation accuracy over the steps of meta-training, by optimizer."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.set_prop_cycle(color=mpl.color_sequences["tab10"])
        for name, log in logs.items():
            steps = [record["step"] for record in log]
            accuracy = [100 * record["pooled_accuracy"] for record in log]
            axis.plot(steps, accuracy, label=name, marker="o", markersize=3)
        axis.set_ylim(0, 100)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("meta-training steps")
        axis.set_ylabel("validation accuracy (%)")
        figure.legend(loc="outside right upper", fontsize=8)
    return figure
