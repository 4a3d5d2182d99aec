"""The report of a reproduction: one HTML file that needs nothing else, and the same in Markdown."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import to_dict
from fedsurf.common.writing import replacing, write_json
from fedsurf.evaluation.plots import save
from fedsurf.paper.claims import Claim
from fedsurf.paper.figures import FIGURES
from fedsurf.paper.folder import Made, ReproductionFolder
from fedsurf.paper.html import html_report
from fedsurf.paper.markdown import markdown_report
from fedsurf.paper.optimizers import Trained, learning_curves, trained_in
from fedsurf.paper.sizes import size_named
from fedsurf.paper.summary import Summary


@dataclass(frozen=True)
class Written:
    """Where a report was written, and what it says."""

    html: Path
    markdown: Path
    claims: dict[str, list[Claim]]


def write_report(folder: ReproductionFolder) -> Written:
    """Write report.html, and report/ with report.md, its pictures and all claims."""
    about = folder.about()
    made = [one for name in FIGURES if (one := folder.made(name)) is not None]
    trained = trained_in(folder.path, about["data"])
    if not made and not trained:
        raise ValueError(f"{folder.path}: got no figure and no optimizer to report on")
    place = folder.path / "report"
    curves = None
    if any(one.log for one in trained):
        curves = place / "meta-training.svg"
        figure = learning_curves(trained)
        save(figure, curves)
        save(figure, curves.with_suffix(".png"))
    summary = Summary(
        about,
        size_named(about["preset"]),
        made,
        trained,
        folder.finished(),
        curves,
        audits_of(made, trained),
    )
    _write(folder.path / "report.html", html_report(summary))
    for one in made:
        with replacing(place / f"{one.name}.png") as temporary:
            shutil.copyfile(one.png, temporary)
    _write(place / "report.md", markdown_report(summary))
    claims = {one.name: one.claims for one in made}
    plain = {name: [claim.to_dict() for claim in judged] for name, judged in claims.items()}
    write_json(place / "claims.json", plain)
    return Written(folder.path / "report.html", place / "report.md", claims)


def audits_of(made: list[Made], trained: list[Trained]) -> dict[str, dict[str, Any]]:
    """Return the audit of each optimizer once, by the name that tells it from the others."""
    names = {str(to_dict(one.config)): one.name for one in trained}
    found: dict[str, dict[str, Any]] = {}
    for figure in made:
        for label, audit in figure.audits.items():
            config = str(figure.config["optimizers"][label]["config"])
            found.setdefault(names.get(config, label), audit)
    return found


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
