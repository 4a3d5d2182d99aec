"""Sources: named datasets, how to read them, and how to get them.

`load("digits")` reads one, `get("mnist")` fetches one, `catalogue()` lists them all. The user's own
data is a path that ends in `.npz`.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.home import home
from fedsurf.tasks.sources.arrays import read_npz
from fedsurf.tasks.sources.cifar import CIFAR10
from fedsurf.tasks.sources.digits import DIGITS
from fedsurf.tasks.sources.embedded import FASHION_MNIST_MINI
from fedsurf.tasks.sources.fetch import FetchError, Way, fetch
from fedsurf.tasks.sources.idx import FASHION_MNIST, MNIST
from fedsurf.tasks.sources.mnist_5k import MNIST_5K
from fedsurf.tasks.sources.source import MissingDataError, Source
from fedsurf.tasks.sources.synthetic import SYNTHETIC

__all__ = [
    "Entry",
    "FetchError",
    "MissingDataError",
    "catalogue",
    "describe",
    "get",
    "load",
    "names",
]

_SOURCES = {
    source.name: source
    for source in (FASHION_MNIST_MINI, DIGITS, MNIST_5K, MNIST, FASHION_MNIST, CIFAR10, *SYNTHETIC)
}


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue.

    Attributes
    ----------
    name, about, examples, licence : str
        What the source is called, what it is, how many training and test examples it has, and under
        which licence.
    status : str
        Whether it is inside the package, ready in a folder, or how to get it.
    """

    name: str
    about: str
    examples: str
    licence: str
    status: str


def names() -> list[str]:
    """Return the names of all sources."""
    return list(_SOURCES)


def catalogue() -> list[Entry]:
    """Describe all sources."""
    return [describe(name) for name in names()]


def describe(name: str) -> Entry:
    """Say what a source is and whether it can be read."""
    source = _source(name)
    place = _place(source, None)
    if source.recipe is None:
        status = "inside the package"
    elif place is not None:
        status = f"ready in {place}"
    else:
        status = f"missing; get it with: {_command(name)}"
    return Entry(source.name, source.about, source.examples, source.licence, status)


def load(
    name: str, folder: Path | str | None = None, *, test_fraction: float = TEST_FRACTION
) -> Dataset:
    """Read a source.

    Parameters
    ----------
    name : str
        One of `names()`, or the path of an `.npz` file, which `arrays.read_npz` describes.
    folder : Path or str, optional
        A folder that holds the standard files; by default where `get` puts them, or where a system
        package did.
    test_fraction : float
        The share of each class that becomes the test part of an `.npz` file without one.

    Raises
    ------
    MissingDataError
        If the files are not there. The message says how to get them.
    """
    if name.endswith(".npz"):
        return read_npz(Path(folder or "", name).expanduser(), test_fraction)
    source = _source(name)
    if source.recipe is None:
        if folder is not None:
            raise ValueError(
                f"folder: got {folder}, but {name} is inside the package and needs none"
            )
        return source.read(Path())
    place = _place(source, folder)
    if place is None:
        where = _default(source) if folder is None else folder
        raise MissingDataError(
            f"{name}: {where} does not hold it (it must hold {', '.join(source.recipe.files)}). "
            f"Get it with: {_command(name)}"
        )
    return source.read(place)


def get(
    name: str, folder: Path | str | None = None, *, via: Way | None = None, progress: bool = True
) -> Path:
    """Fetch the files of a source, check them, and return the folder that holds them.

    What is there and intact is not fetched again. An interrupted call leaves nothing under the
    final name.

    Parameters
    ----------
    name : str
        One of `names()`.
    folder : Path or str, optional
        Where to put the files; by default `data/NAME` in the folder of FEDSURF_HOME, or else in the
        user's cache.
    via : {"download", "package"}, optional
        Over the open internet, or by the package client of this machine; by default whichever
        works, in this order.
    progress : bool
        Whether to show bars on the standard error stream.

    Raises
    ------
    FetchError
        If no way works. The message says what was tried and what to do.
    """
    source = _source(name, "name")
    if source.recipe is None:
        raise ValueError(
            f"name: got {name!r}, but it is inside the package; there is nothing to get"
        )
    target = _default(source) if folder is None else Path(folder).expanduser()
    return fetch(name, source.recipe, target, via, progress=progress)


def check_source(name: str, argument: str = "source") -> None:
    """Raise unless a source has that name, or it is the path of an .npz file, which may be missing."""
    if not name.endswith(".npz"):
        _source(name, argument)


def _source(name: str, argument: str = "source") -> Source:
    if name not in _SOURCES:
        near = difflib.get_close_matches(name, _SOURCES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{argument}: got {name!r}, but it must be one of {', '.join(_SOURCES)}, "
            f"or a path that ends in .npz{hint}"
        )
    return _SOURCES[name]


def _default(source: Source) -> Path:
    return home() / "data" / source.name


def _place(source: Source, folder: Path | str | None) -> Path | None:
    if folder is not None:
        return source.find(Path(folder).expanduser())
    places = (_default(source), *source.installed)
    return next((place for place in map(source.find, places) if place is not None), None)


def _command(name: str) -> str:
    return f"fedsurf data get {name}"
