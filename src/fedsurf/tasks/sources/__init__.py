"""Sources: named data sets, how to read them, and how to download them.

`load("digits")` reads one, `get("mnist")` downloads one, `SOURCES` lists them all. Data of users is a path
that ends in `.npz`.
"""

import difflib
from pathlib import Path

from fedsurf.common.checks import check_kind
from fedsurf.common.writing import check_folder
from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.sources.formats import read_npz
from fedsurf.tasks.sources.registry import SOURCES, Source, home

__all__ = ["SOURCES", "MissingDataError", "Source", "check_source", "get", "home", "load"]


class MissingDataError(FileNotFoundError):
    """The files of a source are not on this machine; the message says how to get them."""

    exit_code = 3


def load(
    name: str, folder: Path | str | None = None, *, test_fraction: float = TEST_FRACTION
) -> Dataset:
    """Read a source; without its files, raise a `MissingDataError` that says how to get them.

    `name` is a key of `SOURCES`, whose files are in the folder that `get` fills by default, or the path of
    an `.npz` file, which `read_npz` describes. `test_fraction` of each class becomes the test part of an
    `.npz` file without one.

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
    given = source.folder if folder is None else Path(folder).expanduser()
    place = source.find(given)
    if place is None:
        raise MissingDataError(
            f"{name}: {given} does not hold {', '.join(source.files)}. "
            f"Get it with: fedsurf data get {name}"
        )
    return source.read(place)


def get(name: str, folder: Path | str | None = None, *, progress: bool = True) -> Path:
    """Download the files of a source, verify them, and return their folder.

    The folder is `data/NAME` in `home()` by default. Intact files are not downloaded again. An interrupted
    call leaves nothing under the final name. A download that fails raises a `FetchError`.
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
