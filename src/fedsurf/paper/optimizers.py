"""What a report says of the meta-trained optimizers: their settings, how far they got, how fast."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsurf.common.files import FileError, read_json
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.plots import STYLE
from fedsurf.paper.stages import parameters_of
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.loop import read_run_config


@dataclass(frozen=True)
class Trained:
    """An optimizer of a reproduction, finished or not.

    Attributes
    ----------
    name : str
        What tells it from the others.
    config : ExperimentConfig
        What it was made from.
    log : list of dict
        Its validations so far.
    seconds : float or None
        Of a step of its meta-training.
    parameters : int
        How many it has.
    """

    name: str
    config: ExperimentConfig
    log: list[dict[str, Any]]
    seconds: float | None
    parameters: int

    @property
    def step(self) -> int:
        """How far it got."""
        return int(self.log[-1]["step"]) if self.log else 0

    @property
    def finished(self) -> bool:
        """Whether its meta-training is finished."""
        return self.step >= self.config.surf.steps

    @property
    def best(self) -> dict[str, Any] | None:
        """The validation that was chosen, None before the first."""
        chosen = [one for one in self.log if one.get("best_by")]
        return chosen[-1] if chosen else None


def trained_in(folder: Path, data: Mapping[str, Mapping[str, Any]]) -> list[Trained]:
    """Return all optimizers in the folder of a reproduction, which is about these data."""
    found = []
    # A file of features is called by the data set that it stands for.
    names = {one["source"]: name for name, one in data.items() if one["source"].endswith(".npz")}
    for place in sorted((folder / "runs").glob("*/config.json")):
        run = place.parent
        try:
            config = read_run_config(RunFolder(run), ExperimentConfig)
        except FileError:
            continue
        log = run / "log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        pace = folder / "pace" / f"{run.name}.json"
        seconds = read_json(pace)["seconds_per_step"] if pace.is_file() else None
        rows = [json.loads(line) for line in lines]
        found.append(Trained(describe(config, names), config, rows, seconds, parameters_of(config)))
    return sorted(found, key=lambda one: one.name)


def describe(config: ExperimentConfig, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Name an optimizer by what tells it from the others; `names` are those of sources."""
    source = source_name(config.data.source)
    graph = {"regular": "3-regular", "erdos-renyi": "random graph", "star": "server"}
    parts = [names.get(source, source), graph.get(config.network.graph.kind, "graph")]
    if config.task.partition == "dirichlet":
        parts.append(f"α = {config.task.alpha:g}")
    if not config.surf.descent.constrained:
        parts.append("without constraints")
    return ", ".join(parts)


def source_name(source: str) -> str:
    """Return the name of a source; of a file without its folder."""
    return Path(source).name if source.endswith(".npz") else source


def learning_curves(trained: list[Trained]) -> Figure:
    """Draw validation accuracy over the steps of meta-training."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axis = figure.subplots()
        colours = mpl.colormaps["tab10"]
        for number, one in enumerate(trained):
            if one.log:
                x = [row["step"] for row in one.log]
                y = [100 * row["pooled_accuracy"] for row in one.log]
                axis.plot(
                    x, y, label=one.name, color=colours(number % 10), marker="o", markersize=3
                )
        axis.set_ylim(0, 100)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("meta-training steps")
        axis.set_ylabel("validation accuracy (%)")
        figure.legend(loc="outside right upper", fontsize=8)
    return figure
