"""Parts of a figure: the origins of its curves, the curves, and the result with its claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.evaluation.methods import Setting
from fedsurf.paper.artefacts import SURF_T, Artifact, ArtifactStore
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.sizes import Size

CurveKind = Literal[
    "the paper's", "tuned", "the paper's settings", "textbook settings", "not the paper's"
]
"""The origin of a method, or of a classical method's settings."""
UNTUNED_KINDS: tuple[CurveKind, ...] = ("the paper's settings", "textbook settings")
"""Kinds of curves of classical methods that were not tuned."""
MEASURED_VALUES = ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "floats")
"""Values of a trajectory that curves have."""
ACCURACIES = ("accuracy", "pooled_accuracy")
"""Values that count as 0 once a run has diverged."""


@dataclass(frozen=True)
class Source:
    """The origin of a curve: runs on meta-test tasks."""

    label: str
    kind: CurveKind
    artifact: Artifact
    note: str = ""
    """Origin of the settings, in words."""


@dataclass(frozen=True)
class Curve:
    """A curve of a figure; label, kind and note are those of its `Source`."""

    label: str
    kind: CurveKind
    over: str
    """Name of the horizontal axis: rounds, layer, stale_agents."""
    x: list[float]
    values: dict[str, Tensor]
    """Measured values by name, `[tasks, x]`."""
    panel: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    note: str = ""

    def at(self, name: str, x: float | None = None) -> Tensor:
        """Return the last values, or the last ones at or before `x`, on each task: `[tasks]`."""
        column = len(self.x) - 1
        if x is not None:
            column = max(place for place, value in enumerate(self.x) if value <= x)
        return self.values[name][:, column].double()

    def points(self) -> list[dict[str, Any]]:
        """Return a row for each point: its position, means over tasks with standard errors."""
        found: list[dict[str, Any]] = [{self.over: x} for x in self.x]
        for name, values in self.values.items():
            for row, column in zip(found, values.double().T, strict=True):
                row[name] = finite(column.mean())
                row[f"{name}_error"] = finite(standard_error(column))
        return found


@dataclass(frozen=True)
class Level:
    """A horizontal line of a figure: the accuracy of centralised training, `[tasks]`."""

    label: str
    values: Tensor
    panel: str = ""


@dataclass(frozen=True)
class FigureResult:
    """A figure with its data and claims."""

    claims: list[Claim]
    drawing: Figure
    caption: str
    curves: list[Curve] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Further plain values."""
    table: list[dict[str, Any]] = field(default_factory=list)
    """Rows of data.csv that no curve has."""

    def rows(self) -> list[dict[str, Any]]:
        """Return all points, for CSV."""
        found = list(self.table)
        for curve in self.curves:
            of = {"panel": curve.panel, "curve": curve.label, "kind": curve.kind}
            found += [{**of, **point} for point in curve.points()]
        for level in self.levels:
            number = Number.of(level.label, level.values)
            row = {"panel": level.panel, "curve": level.label, "kind": "level"}
            accuracy = {"pooled_accuracy": number.mean, "pooled_accuracy_error": number.error}
            found.append({**row, **accuracy})
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all points as plain values, for JSON."""
        names = ("label", "kind", "panel", "settings", "note")
        curves = [
            {**{name: getattr(curve, name) for name in names}, "points": curve.points()}
            for curve in self.curves
        ]
        levels = [
            {"panel": level.panel, **vars(Number.of(level.label, level.values))}
            for level in self.levels
        ]
        return {"caption": self.caption, "curves": curves, "levels": levels, **self.extra}


@dataclass(frozen=True)
class PaperFigure:
    """An experiment of the paper."""

    name: str
    title: str
    about: str
    """The experiment in a sentence or two."""
    optimizers: Callable[[Size], dict[str, ExperimentConfig]]
    """Returns its meta-trained optimizers at a size, by label; each is audited."""
    artifacts: Callable[[Size], Sequence[Artifact]]
    """Returns the other artefacts that it needs at a size."""
    make: Callable[[ArtifactStore], FigureResult]
    """Makes the figure from a store that has all of them."""

    def needs(self, size: Size) -> list[Artifact]:
        """Return all artefacts that the figure needs."""
        audits = [Artifact("audit", config) for config in self.optimizers(size).values()]
        return [*self.artifacts(size), *audits]


def surf_t(study: StudyConfig, rounds: int) -> Source:
    """Return the origin of the pretrained optimizer's curve."""
    return Source(SURF_T, "not the paper's", Artifact("pretrained", study=study, rounds=rounds))


def curve_of(
    store: ArtifactStore,
    source: Source,
    over: str = "rounds",
    panel: str = "",
    ceiling: Tensor | None = None,
) -> Curve:
    """Return a curve over rounds or layers; `ceiling`, `[tasks]`, is the accuracy of centralised training."""
    made = store.read(source.artifact)
    values = {name: made.tensors[name].double() for name in MEASURED_VALUES}
    values |= {name: values[name].nan_to_num(0.0) for name in ACCURACIES}
    if ceiling is not None:
        values["relative_accuracy"] = values["pooled_accuracy"] / ceiling[:, None]
    # A run that diverged has no further rounds.
    rounds = made.tensors["rounds"].amax(0).tolist()
    x = [float(value) for value in (rounds if over == "rounds" else range(len(rounds)))]
    settings = made.content.get("settings", {})
    return Curve(source.label, source.kind, over, x, values, panel, settings, source.note)


def curve_of_ends(store: ArtifactStore, sources: dict[int, Source]) -> Curve:
    """Return a curve of the last values of runs by their number of stale agents."""
    curves = [curve_of(store, source) for source in sources.values()]
    values = {
        name: torch.stack([curve.values[name][:, -1] for curve in curves], 1)
        for name in MEASURED_VALUES
    }
    return replace(curves[0], over="stale_agents", x=[float(x) for x in sources], values=values)
