"""Sources: named data sets, how to read them, and how to download them.

`load("digits")` reads one, `get("mnist")` downloads one, `catalogue()` lists them all. Data of users is a path
that ends in `.npz`.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from fedsurf.common.checks import check_kind
from fedsurf.common.writing import check_folder
from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.sources.formats import read_npz
from fedsurf.tasks.sources.registry import SOURCES, Source, home

__all__ = ["SOURCES", "Entry", "MissingDataError", "Source", "catalogue", "get", "home", "load"]


class MissingDataError(FileNotFoundError):
    """The files of a source are not on this machine; the message says how to get them."""

    exit_code = 3


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue.

    Attributes
    ----------
    name, about, examples, licence : str
        Name, description, numbers of training and test examples, and licence.
    status : str
        "included", "ready" or "missing".
    folder : str or None
        The folder of data that is ready.
    """

    name: str
    about: str
    examples: str
    licence: str
    status: str
    folder: str | None


def catalogue() -> list[Entry]:
    """Describe all sources.

    Examples
    --------
    >>> from fedsurf.tasks import sources
    >>> [entry.examples for entry in sources.catalogue() if entry.name == "digits"]
    ['1,083 + 714']
    """
    entries = []
    for source in SOURCES.values():
        found = source.find() if source.files else None
        status = "included" if not source.files else "ready" if found else "missing"
        place = None if found is None else str(found)
        entries.append(
            Entry(source.name, source.about, source.examples, source.licence, status, place)
        )
    return entries


def load(
    name: str, folder: Path | str | None = None, *, test_fraction: float = TEST_FRACTION
) -> Dataset:
    """Read a source.

    Parameters
    ----------
    name : str
        A key of `SOURCES`, or the path of an `.npz` file, which `read_npz` describes.
    folder : Path or str, optional
        The folder of the standard files; by default the one that `get` fills.
    test_fraction : float
        The share of each class that becomes the test part of an `.npz` file without one.

    Raises
    ------
    MissingDataError
        If there are no such files. The message says how to get them.

    Examples
    --------
    >>> from fedsurf.tasks import sources
    >>> sources.load("digits").train_x.shape
    (1083, 8, 8, 1)
    """
    check_source(name)
    if name.endswith(".npz"):
        return read_npz(Path(folder or "", name).expanduser(), test_fraction)
    source = SOURCES[name]
    if not source.files:
        if folder is not None:
            raise ValueError(f"folder: got {folder}, but {name} is inside the package")
        return source.read(Path())
    given = None if folder is None else Path(folder).expanduser()
    place = source.find(given)
    if place is None:
        raise MissingDataError(
            f"{name}: {given or source.folder} does not hold {', '.join(source.files)}. "
            f"Get it with: fedsurf data get {name}"
        )
    return source.read(place)


def get(name: str, folder: Path | str | None = None, *, progress: bool = True) -> Path:
    """Download the files of a source, verify them, and return their folder.

    Intact files are not downloaded again. An interrupted call leaves nothing under the final name.

    Parameters
    ----------
    name : str
        A key of `SOURCES`.
    folder : Path or str, optional
        The destination; by default `data/NAME` in the folder of FEDSURF_HOME, or else in the user's
        cache.
    progress : bool
        Whether to show a bar on the standard error stream.

    Raises
    ------
    FetchError
        If the download fails. The message says why and what to do.
    """
    from fedsurf.tasks.sources.fetch import FetchError, fetch, verify

    check_source(name, "name")
    source = SOURCES.get(name)
    if source is None or not source.files:
        raise ValueError(f"name: got {name!r}, but there is nothing to download for it")
    target = source.folder if folder is None else Path(folder).expanduser()
    try:
        verify(target, source.files)
    except ValueError:  # files are missing or damaged
        check_folder(target)
        try:
            fetch(source.downloads, source.files, target, progress=progress)
        except FetchError as error:
            raise FetchError(
                f"{name}: the download failed ({error}). Repeat it with a connection to the internet, "
                f"put {', '.join(source.files)} into {target}, or see docs/data.md for data from packages"
            ) from error
    return target


def check_source(name: str, argument: str = "source") -> None:
    """Raise unless a source has that name, or it ends in .npz; the file may be missing."""
    check_kind(name, str, argument, "the name of a source")
    if name not in SOURCES and not name.endswith(".npz"):
        near = difflib.get_close_matches(name, SOURCES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{argument}: got {name!r}, but it must be one of {', '.join(SOURCES)}, "
            f"or a path that ends in .npz{hint}"
        )
