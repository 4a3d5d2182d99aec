"""Downloads of data sets: by pooch, verified by their checksums, complete or not at all."""

import gzip
import hashlib
import logging
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from fedsurf.common.writing import filled_folder

TIMEOUT_SECONDS = 30
"""Seconds without an answer after which a download is given up."""


class FetchError(OSError):
    """Data cannot be downloaded; the message says why and what to do."""


def fetch(
    downloads: Mapping[str, str], files: Mapping[str, str], folder: Path, *, progress: bool
) -> None:
    """Download files, unpack them, verify the result, and move it into a folder.

    `downloads` and `files` are those of a `Source`. Other files in the folder stay.
    """
    pooch.get_logger().setLevel(logging.WARNING)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    bars = Progress(*columns, console=Console(stderr=True), disable=not progress)
    try:
        with filled_folder(folder) as new, bars:
            for url, checksum in downloads.items():
                name = url.rpartition("/")[2]
                bar = _Bar(bars, bars.add_task(name, total=None))
                downloader = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS)
                pooch.retrieve(url, checksum, fname=name, path=new, downloader=downloader)
                unpack(new / name, files, new)
            verify(new, files)
    except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
        raise FetchError(" ".join(str(error).split())[:500]) from error


def unpack(archive: Path, files: Mapping[str, str], folder: Path) -> None:
    """Take files out of a tar archive or a gzipped file, and remove it; another file stays as it is.

    Of a tar archive only regular members are read, by the last part of their names, so that no link is
    followed and nothing is written outside the folder.
    """
    if archive.name in files:
        return
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and {name, name.removesuffix(".gz")} & set(files):
                    with (folder / name).open("wb") as target:
                        shutil.copyfileobj(content, target)
                    unpack(folder / name, files, folder)
    else:
        with gzip.open(archive) as packed, (folder / archive.stem).open("wb") as target:
            shutil.copyfileobj(packed, target)
    archive.unlink()


def verify(folder: Path, files: Mapping[str, str]) -> None:
    """Raise unless the folder holds all files with the right SHA-256."""
    for name, checksum in files.items():
        if not (folder / name).is_file():
            raise ValueError(f"{name}: there is no such file in what was fetched")
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != checksum:
            raise ValueError(f"{name}: got the SHA-256 {found}, but it must be {checksum}")


class _Bar:
    """A progress bar with the attributes that pooch expects."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.total: int | None = None
        self._progress, self._task = progress, task

    def update(self, size: int) -> None:
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()
