"""Files of a figure: its drawing, data, claims and audits, and the versions that made it."""

import hashlib
import platform
import subprocess
from importlib.metadata import version
from os.path import relpath
from pathlib import Path
from shutil import which

from fedsurf.common.configuration import to_dict
from fedsurf.common.writing import write_json, write_rows
from fedsurf.evaluation.plots import save
from fedsurf.paper.artefacts import Artifact, ArtifactStore, slug
from fedsurf.paper.figures.figure import FigureResult, PaperFigure

WIDE_RATIO = 1.6
"""Ratio of width and height above which a figure takes the whole width of the report."""
PACKAGES = ("fedsurf", "torch", "numpy", "scikit-learn", "cooper-optim")


def write_figure(store: ArtifactStore, figure: PaperFigure, result: FigureResult) -> None:
    """Write the files of a figure into its folder in the store's."""
    folder = store.folder / figure.name
    for ending in ("png", "svg"):
        save(result.drawing, folder / f"figure.{ending}")
    write_rows(folder / "data.csv", result.rows())
    write_json(folder / "data.json", result.to_dict())
    width, height = result.drawing.get_size_inches()
    optimizers = {}
    for label, config in figure.optimizers(store.size).items():
        audit = store.read(Artifact("audit", config)).content
        write_rows(folder / "audit" / f"{slug(label)}.csv", audit["rows"])
        write_json(folder / "audit" / f"{slug(label)}.json", audit)
        run = relpath(store.run_folder(config), folder)
        optimizers[label] = {"run": run, "config": to_dict(config)}
    write_json(
        folder / "config.json",
        {
            "figure": figure.name,
            "title": figure.title,
            "about": figure.about,
            "size": to_dict(store.size),
            "wide": bool(width > WIDE_RATIO * height),
            "optimizers": optimizers,
            "made_with": made_with(),
        },
    )
    # Last, so that a figure with claims is complete.
    write_json(folder / "claims.json", to_dict(result.claims))


def made_with() -> dict[str, str]:
    """Return the versions of Python and the main packages, and the commit of a git checkout."""
    found = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    commit = commit_of(Path(__file__))
    return {**found, "commit": commit} if commit else found


def commit_of(file: Path) -> str | None:
    """Return the commit of the checkout that tracks a file, with -dirty if the checkout was changed."""
    git = which("git")
    if git is None:
        return None
    # Installed into an environment inside another project, the commit would be that project's.
    tracked = ("ls-files", "--error-unmatch", file.name)
    described = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        subprocess.check_output([git, *tracked], cwd=file.parent, stderr=subprocess.DEVNULL)  # noqa: S603
        commit = subprocess.check_output([git, *described], cwd=file.parent, text=True)  # noqa: S603
    except (subprocess.SubprocessError, OSError):
        return None
    return commit.strip()


def checksum_of(file: Path) -> str:
    """Return a checksum of a file's content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
