"""Parts of a figure: the origins of its curves, the curves, and the result with its claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.evaluation.methods import Setting
from fedsurf.evaluation.run import Trajectories
from fedsurf.paper.artefacts import SURF_T, Artifact, ArtifactStore
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.sizes import Size

CurveKind = Literal[
    "the paper's", "tuned", "the paper's settings", "textbook settings", "not the paper's"
]
"""The origin of a method, or of a classical method's settings."""
UNTUNED: tuple[CurveKind, ...] = ("the paper's settings", "textbook settings")

MEASURED = ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "floats")
ACCURACIES = ("accuracy", "pooled_accuracy")
"""Values that count as 0 once a run has diverged."""


@dataclass(frozen=True)
class Source:
    """The origin of a curve: runs on meta-test tasks.

    Attributes
    ----------
    label : str
        Name in figures and tables.
    kind : str
        Origin of the method, or of a classical method's settings.
    artifact : Artifact
        The runs.
    note : str
        Origin of the settings, in words.
    """

    label: str
    kind: CurveKind
    artifact: Artifact
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """A curve of a figure.

    Attributes
    ----------
    label, kind, note
        As in `Source`.
    over : str
        Name of the horizontal axis: rounds, layer, stale_agents.
    x : list of float
        Positions on it.
    values : dict
        Measured values by name, `[tasks, x]`.
    panel : str
        Panel of a figure that has several.
    settings : dict
        Settings of a classical method.

    Examples
    --------
    >>> import torch
    >>> from fedsurf.paper.figures.figure import Curve
    >>> curve = Curve("DGD", "tuned", "rounds", [0, 10], {"loss": torch.tensor([[2.0, 1.0]])})
    >>> curve.at("loss", 9)
    tensor([2.], dtype=torch.float64)
    """

    label: str
    kind: CurveKind
    over: str
    x: list[float]
    values: dict[str, Tensor]
    panel: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    note: str = ""

    def at(self, name: str, x: float | None = None) -> Tensor:
        """Return the last values, or the last ones at or before `x`, on each task: `[tasks]`."""
        column = len(self.x) - 1
        if x is not None:
            column = max(place for place, value in enumerate(self.x) if value <= x)
        return self.values[name][:, column].double()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each point: means over tasks with standard errors."""
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
    """A horizontal line of a figure: the accuracy of centralised training, `[tasks]`."""

    label: str
    values: Tensor
    panel: str = ""


@dataclass(frozen=True)
class FigureResult:
    """A figure with its data and claims.

    Attributes
    ----------
    claims : list of Claim
        The paper's claims, judged.
    drawing : Figure
        The figure.
    caption : str
        Caption of the figure.
    curves, levels
        Contents of the figure.
    extra : dict
        Further plain values.
    table : list of dict
        Rows of data.csv that no curve has.
    """

    claims: list[Claim]
    drawing: Figure
    caption: str
    curves: list[Curve] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return all points, for CSV."""
        found = [*self.table, *(row for curve in self.curves for row in curve.rows())]
        for level in self.levels:
            number = Number.of(level.label, level.values)
            row = {"panel": level.panel, "curve": level.label, "kind": "level"}
            accuracy = {"pooled_accuracy": number.mean, "pooled_accuracy_error": number.error}
            found.append({**row, **accuracy})
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all points as plain values, for JSON."""
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


@dataclass(frozen=True)
class PaperFigure:
    """An experiment of the paper.

    Attributes
    ----------
    name : str
        Name on the command line.
    title : str
        Title in the report.
    about : str
        The experiment in a sentence or two.
    optimizers : callable
        Returns its meta-trained optimizers at a size, by label; each is audited.
    artifacts : callable
        Returns the other artefacts that it needs at a size.
    make : callable
        Makes the figure from a store that has these artefacts.
    """

    name: str
    title: str
    about: str
    optimizers: Callable[[Size], dict[str, ExperimentConfig]]
    artifacts: Callable[[Size], Sequence[Artifact]]
    make: Callable[[ArtifactStore], FigureResult]

    def needs(self, size: Size) -> list[Artifact]:
        """Return all artefacts that the figure needs."""
        audits = [Artifact("audit", config) for config in self.optimizers(size).values()]
        return [*self.artifacts(size), *audits]


def surf_t(study: StudyConfig, rounds: int) -> Source:
    """Return the origin of the pretrained optimizer's curve."""
    return Source(SURF_T, "not the paper's", Artifact("pretrained", study=study, rounds=rounds))


def over_rounds(
    store: ArtifactStore, source: Source, panel: str = "", ceiling: Tensor | None = None
) -> Curve:
    """Return a curve over communication rounds, relative to a centralised accuracy if given."""
    values = _measured(store, source)
    if ceiling is not None:
        values["relative_accuracy"] = values["pooled_accuracy"] / ceiling[:, None]
    rounds = [float(value) for value in _runs(store, source).taken]
    return _curve(store, source, "rounds", rounds, values, panel)


def over_layers(store: ArtifactStore, source: Source) -> Curve:
    """Return a curve over an optimizer's layers; 0 is its start."""
    values = _measured(store, source)
    layers = [float(layer) for layer in range(values["loss"].shape[1])]
    return _curve(store, source, "layer", layers, values)


def over_ends(store: ArtifactStore, sources: dict[int, Source], over: str) -> Curve:
    """Return a curve of the last values of several runs, by what differs between them."""
    ends = [_measured(store, source) for source in sources.values()]
    values = {name: torch.stack([end[name][:, -1] for end in ends], 1) for name in ends[0]}
    first = next(iter(sources.values()))
    return _curve(store, first, over, [float(x) for x in sources], values)


def _runs(store: ArtifactStore, source: Source) -> Trajectories:
    return Trajectories(source.label, **store.read(source.artifact).tensors)


def _measured(store: ArtifactStore, source: Source) -> dict[str, Tensor]:
    runs = _runs(store, source)
    found = {name: getattr(runs, name).double() for name in MEASURED}
    for name in ACCURACIES:
        found[name] = found[name].nan_to_num(0.0)
    return found


def _curve(
    store: ArtifactStore,
    source: Source,
    over: str,
    x: list[float],
    values: dict[str, Tensor],
    panel: str = "",
) -> Curve:
    settings = store.read(source.artifact).content.get("settings", {})
    return Curve(source.label, source.kind, over, x, values, panel, settings, source.note)
