"""The folder of a reproduction: artefacts that figures share, each made once, and finished figures.

reproduction.json         the size and the data, the same for the whole folder
runs/KEY/                 meta-trained optimizers, with checkpoints to resume from
artefacts/KIND-KEY.safetensors   every finished artefact: its numbers, and the seconds that it took
FIGURE/                   figure.png, figure.svg, data.csv, data.json, claims.json, config.json, audit/
report.html, report/      the report, and the same in Markdown with its pictures
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

from torch import Tensor

from fedsurf import pretrained
from fedsurf.common.cache import Cache
from fedsurf.common.configuration import differences
from fedsurf.common.files import FileError, read_all_tensors, read_json, read_metadata, reading
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.writing import write_json, write_tensors
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.paper.sizes import Size
from fedsurf.surf.loop import Observer

FORMAT = 2
"""Version of the folder's layout."""

SURF_T = "SURF-T (not the paper's)"
"""Name of the pretrained optimizer in figures."""

ArtifactKind = Literal[
    "optimizer",  # a meta-trained U-DGD
    "audit",  # the audit of `optimizer`
    "certificate",  # the certificate of `optimizer`
    "norms",  # gradient norms of SURF-T on the tasks of `optimizer`
    "run",  # runs of `optimizer` on the tasks of `study`
    "pretrained",  # runs of SURF-T with `rounds` rounds on the tasks of `study`
    "tuning",  # the best settings of `method`
    "method",  # runs of `method` on the tasks of `study`, `tuned` or with the paper's settings
    "centralised",  # accuracy of centralised training on the tasks of `study`
]
_WORK: dict[ArtifactKind, str] = {
    "optimizer": "meta-train U-DGD",
    "audit": "audit U-DGD",
    "certificate": "certify U-DGD",
    "norms": "gradient norms of SURF-T",
    "run": "run U-DGD",
    "pretrained": "run SURF-T",
    "tuning": "tune",
    "method": "run",
    "centralised": "train centrally",
}
_GRAPHS = {"regular": "3-regular", "erdos-renyi": "random graph", "star": "server"}

OpenObservers = Callable[[], AbstractContextManager[Sequence[Observer]]]
"""Opens observers of meta-training, such as a progress bar."""


@dataclass(frozen=True)
class Artifact:
    """Something that figures need, by its kind and configuration; see `ArtifactKind`."""

    kind: ArtifactKind
    optimizer: ExperimentConfig | None = None
    study: StudyConfig | None = None
    method: str = ""
    tuned: bool = False
    rounds: int = 0

    @property
    def title(self) -> str:
        """Name in progress messages and the report."""
        work = f"{_WORK[self.kind]} {self.method}".strip()
        where = describe(self.study or self.trained)
        if self.kind == "method":
            work += " (tuned)" if self.tuned else " (untuned)"
        elif self.kind == "run" and describe(self.trained) != where:
            work += f" ({describe(self.trained)})"
        return f"{work}, {where}"

    @property
    def trained(self) -> ExperimentConfig:
        """The configuration of the optimizer, of kinds that have one."""
        return cast(ExperimentConfig, self.optimizer)

    @property
    def tasks(self) -> StudyConfig:
        """The configuration of the study, of kinds that have one."""
        return cast(StudyConfig, self.study)

    @property
    def needs(self) -> "tuple[Artifact, ...]":
        """The artefacts that must be made before."""
        if self.kind in ("audit", "certificate", "run"):
            return (Artifact("optimizer", self.optimizer),)
        if self.kind == "method" and self.tuned:
            return (Artifact("tuning", study=self.study, method=self.method),)
        return ()


@dataclass(frozen=True)
class Made:
    """The numbers of an artefact: tensors by name, and plain content."""

    tensors: Mapping[str, Tensor]
    content: Mapping[str, Any]


class ArtifactStore:
    """Makes the artefacts of a reproduction, keeps them in its folder, and reads them."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        progress: OpenBar = silent,
        observers: OpenObservers = lambda: nullcontext(()),
    ) -> None:
        self.folder, self.size = folder, size
        self.progress, self.observers = progress, observers

    def has(self, artifact: Artifact) -> bool:
        """Whether an artefact is finished."""
        return self.file(artifact).is_file()

    def make(self, artifact: Artifact) -> float:
        """Make an artefact unless it is finished; return the seconds that it took."""
        from fedsurf.paper.makers import MAKERS

        start = perf_counter()
        if not self.has(artifact):
            made = MAKERS[artifact.kind](self, artifact)
            seconds = round(perf_counter() - start, 1)
            about = {"title": artifact.title, "seconds": seconds, "content": made.content}
            write_tensors(self.file(artifact), made.tensors, about)
        return perf_counter() - start

    def read(self, artifact: Artifact) -> Made:
        """Read a finished artefact."""
        file = self.file(artifact)
        return Made(read_all_tensors(file), read_metadata(file)["content"])

    def run_folder(self, config: ExperimentConfig) -> Path:
        """Return the folder of an optimizer's meta-training."""
        return self.folder / "runs" / self.file(Artifact("optimizer", config)).stem

    def file(self, artifact: Artifact) -> Path:
        """Return the file of an artefact, by its configuration and the weights of SURF-T it uses."""
        surf_t = pretrained.digest() if artifact.kind in ("pretrained", "norms") else ""
        return Cache(self.folder / "artefacts").path(artifact.kind, [artifact, surf_t])


def open_folder(folder: Path, about: Mapping[str, Any], *, resume: bool) -> None:
    """Begin a reproduction, or check that the folder holds one of the same size and data."""
    wanted = {"format": FORMAT, **about}
    if folder.is_dir() and any(folder.iterdir()):
        if not resume:
            raise FileExistsError(
                f"{folder}: the folder is not empty; resume the reproduction, also to add a figure, or "
                "choose another folder"
            )
        there = read_about(folder)
        # Figures may be added that need further data.
        wanted["data"] = {**there["data"], **wanted["data"]}
        there["data"] = {**wanted["data"], **there["data"]}
        found = differences(there, wanted)
        if found:
            raise ValueError(f"{folder}: holds a reproduction that differs in {', '.join(found)}")
    write_json(folder / "reproduction.json", wanted)


def read_about(folder: Path) -> dict[str, Any]:
    """Return the size and the data of a reproduction."""
    path = folder / "reproduction.json"
    with reading(path, "about a reproduction"):
        content = dict(read_json(path))
        content["data"] = dict(content["data"])
    if content.get("format") != FORMAT:
        raise FileError(f"{path}: not of the layout {FORMAT} of a reproduction")
    return content


def finished_in(folder: Path) -> list[tuple[str, float]]:
    """Return all finished artefacts with the seconds that they took, the longest first."""
    files = sorted((folder / "artefacts").glob("*.safetensors"))
    times = [(about["title"], about["seconds"]) for about in map(read_metadata, files)]
    return sorted(times, key=lambda time: -time[1])


def describe(config: ExperimentConfig | StudyConfig) -> str:
    """Name a configuration by what differs between those of a reproduction."""
    parts = [source_name(config.data.source), _GRAPHS[config.network.graph.kind]]
    if config.task.partition == "dirichlet":
        parts.append(f"α = {config.task.alpha:g}")
    if isinstance(config, ExperimentConfig) and not config.surf.descent.constrained:
        parts.append("without constraints")
    if config.network.faults.stale:
        parts.append(f"{config.network.faults.stale} stale agents")
    return ", ".join(parts)


def source_name(source: str) -> str:
    """Return the name of a source, of a file without its folder."""
    return Path(source).name if source.endswith(".npz") else source


def slug(label: str) -> str:
    """Return a label as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("α", "alpha")).strip("-")
