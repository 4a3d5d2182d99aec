"""What making a figure found: curves over tasks, levels beside them, claims, and the drawing."""

from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.methods import Setting
from fedsurf.evaluation.run import Trajectories
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.workshop import Entry, Kind

ACCURACIES = ("accuracy", "pooled_accuracy", "relative_accuracy")
"""Where a run that diverged counts as 0, being right about nothing."""


@dataclass(frozen=True)
class Curve:
    """One curve of a figure.

    Attributes
    ----------
    label : str
        The method.
    kind : str
        Whose method, or whose settings.
    over : str
        What runs along it: rounds, layer, stale agents.
    x : list of float
        Where it was measured.
    values : dict
        What was measured on each task there, by its name, `[tasks, x]`.
    panel : str
        The part of the figure that it is in, where there are several.
    settings, note
        As in `Entry`.
    """

    label: str
    kind: Kind
    over: str
    x: list[float]
    values: dict[str, Tensor]
    panel: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    note: str = ""

    def at(self, name: str, x: float | None = None) -> Tensor:
        """Return what was measured last, or last at or before `x`, on each task: `[tasks]`."""
        column = len(self.x) - 1
        if x is not None:
            column = max(place for place, value in enumerate(self.x) if value <= x)
        return self.values[name][:, column].double()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each point: means over tasks, and standard errors."""
        found = []
        for place, x in enumerate(self.x):
            row: dict[str, Any] = {"panel": self.panel, "curve": self.label, "kind": self.kind}
            row[self.over] = x
            for name, values in self.values.items():
                row[name] = finite(values[:, place].double().mean())
                row[f"{name}_error"] = finite(standard_error(values[:, place].double()))
            found.append(row)
        return found


@dataclass(frozen=True)
class Level:
    """A horizontal line of a figure: what centralised training reached."""

    label: str
    values: Tensor
    panel: str = ""


@dataclass(frozen=True)
class Finding:
    """What making a figure found.

    Attributes
    ----------
    curves, levels
        What was measured.
    claims : list of Claim
        The paper's claims, judged.
    drawing : Figure
        The figure.
    optimizers : dict
        The meta-trained optimizers, by name.
    caption : str
        What is drawn.
    extra : dict
        Other plain numbers.
    table : list of dict
        Rows of the CSV, where there are no curves over tasks.
    """

    curves: list[Curve]
    levels: list[Level]
    claims: list[Claim]
    drawing: Figure
    optimizers: dict[str, ExperimentConfig]
    caption: str
    extra: dict[str, Any] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return all points of all curves, for CSV."""
        found = [*self.table, *(row for curve in self.curves for row in curve.rows())]
        for level in self.levels:
            number = Number.of(level.label, level.values)
            row = {"panel": level.panel, "curve": level.label, "kind": "level"}
            found.append(
                {**row, "pooled_accuracy": number.mean, "pooled_accuracy_error": number.error}
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        curves = [
            {
                "label": curve.label,
                "kind": curve.kind,
                "panel": curve.panel,
                "settings": dict(curve.settings),
                "note": curve.note,
                "points": [
                    {k: v for k, v in row.items() if k not in ("panel", "curve", "kind")}
                    for row in curve.rows()
                ],
            }
            for curve in self.curves
        ]
        levels = [
            {"panel": level.panel, **vars(Number.of(level.label, level.values))}
            for level in self.levels
        ]
        return {"caption": self.caption, "curves": curves, "levels": levels, **self.extra}


def over_rounds(entry: Entry, panel: str = "", ceiling: Tensor | None = None) -> Curve:
    """Return a curve over communication rounds, beside centralised accuracy if that is given."""
    values = _measured(entry.runs)
    if ceiling is not None:
        values["relative_accuracy"] = values["pooled_accuracy"] / ceiling[:, None]
    rounds = [float(value) for value in entry.runs.taken]
    return _curve(entry, "rounds", rounds, values, panel)


def over_layers(entry: Entry, panel: str = "") -> Curve:
    """Return a curve over an optimizer's layers; 0 is its start."""
    layers = [float(layer) for layer in range(entry.runs.loss.shape[1])]
    return _curve(entry, "layer", layers, _measured(entry.runs), panel)


def over_ends(entries: dict[int, Entry], over: str, panel: str = "") -> Curve:
    """Return a curve of what an optimizer reached at its end, under different circumstances."""
    ends = [_measured(entry.runs) for entry in entries.values()]
    values = {name: torch.stack([end[name][:, -1] for end in ends], 1) for name in ends[0]}
    first = next(iter(entries.values()))
    return _curve(first, over, [float(x) for x in entries], values, panel)


def _curve(entry: Entry, over: str, x: list[float], values: dict[str, Tensor], panel: str) -> Curve:
    return Curve(entry.label, entry.kind, over, x, values, panel, entry.settings, entry.note)


def _measured(runs: Trajectories) -> dict[str, Tensor]:
    names = ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "floats")
    found = {name: getattr(runs, name).double() for name in names}
    for name in ACCURACIES:
        if name in found:
            found[name] = found[name].nan_to_num(0.0)
    return found
