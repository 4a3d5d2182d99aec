"""A reproduction's folder: what was asked for, what is finished, and the files of every figure.

reproduction.json    the size and the data, which stay the same for the whole folder
stages.json          the finished stages and the seconds that they took
runs/, cache/        what figures share (see `workshop`)
FIGURE/              figure.png, figure.svg, data.csv, data.json, claims.json, config.json, audit/
report.html, report/ the report, and the same in Markdown with its pictures
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import differences, to_dict
from fedsurf.common.files import FileError, read_json
from fedsurf.common.writing import replacing, write_json, write_rows
from fedsurf.evaluation.plots import save
from fedsurf.paper.claims import Claim
from fedsurf.paper.finding import Finding
from fedsurf.paper.plan import Plan
from fedsurf.paper.provenance import made_with
from fedsurf.paper.workshop import Workshop

FORMAT = 1
"""The version of the files' layout."""


@dataclass(frozen=True)
class Made:
    """A figure as its folder holds it, for reports."""

    name: str
    title: str
    about: str
    caption: str
    claims: list[Claim]
    config: dict[str, Any]
    data: dict[str, Any]
    audits: dict[str, dict[str, Any]]
    png: Path
    svg: Path


class ReproductionFolder:
    """Reads and writes the files of a reproduction.

    Parameters
    ----------
    path : Path
        The folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, about: Mapping[str, Any], *, resume: bool) -> None:
        """Begin a reproduction, or find that the folder holds one of the same size and data."""
        file = self.path / "reproduction.json"
        wanted = {"format": FORMAT, **about}
        if not self.path.is_dir() or not any(self.path.iterdir()):
            write_json(file, wanted)
            return
        if not resume:
            raise FileExistsError(
                f"{self.path}: there is something in this folder already; resume it, also to add a "
                "figure, or choose another folder"
            )
        there = self.about()
        # Figures may be added that need data which those that are there did not.
        known = {**there, "data": {**wanted["data"], **there["data"]}}
        found = differences(known, {**wanted, "data": {**there["data"], **wanted["data"]}})
        if found:
            raise ValueError(
                f"{self.path}: holds a reproduction that differs in {', '.join(found)}"
            )
        write_json(file, known)

    def about(self) -> dict[str, Any]:
        """Return what the folder is for."""
        content = read_json(self.path / "reproduction.json")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FileError(f"{self.path}: not the folder of a reproduction")
        return content

    def finished(self) -> dict[str, dict[str, Any]]:
        """Return the finished stages: their titles and the seconds that they took, by their keys."""
        file = self.path / "stages.json"
        content: dict[str, dict[str, Any]] = read_json(file) if file.is_file() else {}
        return content

    def finish(self, key: str, title: str, seconds: float) -> None:
        """Note that a stage is finished."""
        done = {**self.finished(), key: {"title": title, "seconds": round(seconds, 1)}}
        write_json(self.path / "stages.json", done)

    def write(self, plan: Plan, workshop: Workshop, finding: Finding) -> None:
        """Write the files of a figure."""
        place = self.path / plan.name
        for ending in ("png", "svg"):
            save(finding.drawing, place / f"figure.{ending}")
        write_rows(place / "data.csv", finding.rows())
        write_json(place / "data.json", finding.to_dict())
        optimizers = {}
        for label, config in finding.optimizers.items():
            run = workshop.place_of(config)
            workshop.audit(config)
            for ending in ("json", "csv"):
                _copy(
                    run / "audit" / f"audit.{ending}", place / "audit" / f"{slug(label)}.{ending}"
                )
            optimizers[label] = {"run": relpath(run, place), "config": to_dict(config)}
        write_json(
            place / "config.json",
            {
                "figure": plan.name,
                "title": plan.title,
                "about": plan.about,
                "size": to_dict(workshop.size),
                "optimizers": optimizers,
                "made_with": made_with(),
            },
        )
        # Last, so that a figure with claims is whole.
        write_json(place / "claims.json", [claim.to_dict() for claim in finding.claims])

    def made(self, name: str) -> Made | None:
        """Return a figure of the folder, None if it is not there."""
        place = self.path / name
        if not (place / "claims.json").is_file():
            return None
        config, data = read_json(place / "config.json"), read_json(place / "data.json")
        try:
            claims = [Claim.from_dict(one) for one in read_json(place / "claims.json")]
            audits = {
                label: read_json(place / "audit" / f"{slug(label)}.json")
                for label in config["optimizers"]
            }
            return Made(
                name,
                config["title"],
                config["about"],
                data["caption"],
                claims,
                config,
                data,
                audits,
                place / "figure.png",
                place / "figure.svg",
            )
        except (KeyError, TypeError) as error:
            raise FileError(f"{place}: damaged, or of another version ({error})") from error


def slug(label: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("α", "alpha")).strip("-")


def _copy(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
