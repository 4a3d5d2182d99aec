"""Writing files so that nothing half-written ever appears under a final name, and folder locks.

Work goes into a temporary folder next to its target, `.NAME.xxxxxxxx.tmp`, and is renamed when it is
complete. A process holds a lock on its temporary folder, so that the next one to write into the same
place can remove what a killed process left.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    fcntl: Any = None
else:
    fcntl = _fcntl

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY_PATTERN = ".*.tmp"
"""Matches the names of temporary folders."""
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that spreadsheets run as formulas."""


def check_folder(folder: Path, argument: str = "folder") -> None:
    """Raise unless files can be written into a folder, new or not; before the work that fills it."""
    place = _nearest(folder)
    if place == folder.absolute() and not place.is_dir():
        raise ValueError(
            f"{argument}: got {str(folder)!r}, which is a file, but it must be a folder"
        )
    _check_writable(place, argument, folder)


def check_file(file: Path, argument: str = "file") -> None:
    """Raise unless a file of that name can be written; before the work that it will hold."""
    place = _nearest(file)
    if place == file.absolute():
        if place.is_dir():
            raise ValueError(
                f"{argument}: got {str(file)!r}, which is a folder, but it must be a file"
            )
        place = place.parent  # a new file takes its place
    _check_writable(place, argument, file)


def _nearest(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    absolute = path.absolute()
    for place in (absolute, *absolute.parents):
        with suppress(PermissionError):  # inside a folder that cannot be searched
            if place.exists():
                return place
    return absolute.parents[-1]


def _check_writable(place: Path, argument: str, got: Path) -> None:
    if not place.is_dir():
        raise ValueError(
            f"{argument}: got {str(got)!r}, but {place} is a file, and nothing can be in a file"
        )
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(
            f"{argument}: got {str(got)!r}, but nothing can be written into {place} ({error.strerror})"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file name, and rename the file to `path` once the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(path, path.parent) as folder:
        temporary = folder / path.name
        temporary.touch()
        yield temporary
        _finish(temporary)
        temporary.replace(path)


@contextmanager
def new_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary folder, and rename it to `path` once the block succeeds.

    Nobody but this user may read a private one, nor its files, at any time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = 0o077 if private else _umask()
    with _temporary_folder(path, path.parent) as folder:
        yield folder
        for file in folder.iterdir():
            _finish(file, mask)
        folder.chmod(0o777 & ~mask)
        try:
            folder.replace(path)
        except OSError as error:
            if not path.exists():
                raise
            raise FileExistsError(
                f"{path}: another process has made this folder in the meantime; choose another"
            ) from error


@contextmanager
def filled_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder, whose files are moved into `path`, new or not, once the block succeeds."""
    if not path.exists():
        with new_folder(path) as folder:
            yield folder
        return
    with _temporary_folder(path, path) as folder:
        yield folder
        for file in folder.iterdir():
            _finish(file)
            file.replace(path / file.name)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Raise if another process is in such a block with the same folder; where files can be locked.

    Leftovers of killed processes are removed, and so are new folders that stay empty.
    """
    if fcntl is None:
        yield
        return
    if folder.is_file():
        raise FileExistsError(f"{folder}: this is a file, but it must be a folder")
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _lock(handle) is False:
            raise FileExistsError(
                f"{folder}: another process is writing into this folder; wait for it, or choose another"
            )
        remove_leftovers(folder)
        yield
    finally:
        with suppress(OSError):  # a folder is not empty
            for place in new:
                place.rmdir()
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed processes from a folder."""
    for leftover in folder.glob(TEMPORARY_PATTERN) if fcntl is not None else ():
        with suppress(OSError):  # another process removes it at the same time
            handle = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _lock(handle):
                    shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write JSON; infinity and NaN, which it lacks, become null."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def json_text(content: Any, indent: int | None = None) -> str:
    """Return content as JSON; infinity and NaN become null."""
    return json.dumps(plain(content), indent=indent, allow_nan=False)


def plain(content: Any) -> Any:
    """Replace infinity and NaN by None, tuples by lists, and NumPy's numbers by Python's."""
    import numpy as np

    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, np.floating):  # the item of a longdouble is a longdouble
        return plain(float(content))
    if isinstance(content, np.generic):
        return plain(content.item())
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_rows(
    target: Path | TextIO,
    rows: Iterable[Mapping[str, Any]],
    columns: Iterable[str] | None = None,
) -> None:
    """Write a table as CSV to a path or an open file, with these columns or those of all rows.

    A text cell that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    if isinstance(target, Path):
        with (
            replacing(target) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            write_rows(file, rows, columns)
        return
    if columns is None:
        rows = list(rows)
        columns = dict.fromkeys(name for row in rows for name in row)
    names = list(columns)
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([_cell(row.get(name, "")) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors with JSON metadata as safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            # One key only: safetensors writes several in random order, and equal content must give equal files.
            save_file(contiguous, temporary, {"fedsurf": json_text(metadata)})
        except SafetensorError as error:  # a full disk
            raise OSError(f"{path}: cannot be written ({error})") from error


@contextmanager
def _temporary_folder(path: Path, parent: Path) -> Iterator[Path]:
    """Give a new locked folder inside `parent`, and remove it after the block if it is still there.

    Errors of a full disk name `path`, the final place, instead of the temporary one.
    """
    remove_leftovers(parent)
    handle = None
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=parent))
        if fcntl is None:
            break
        handle = os.open(folder, os.O_RDONLY)
        if _lock(handle) is not False and folder.exists():
            break
        os.close(handle)  # another process took it for a leftover before it was locked
    try:
        yield folder
    except OSError as error:
        if error.errno in _FULL_DISK_ERRORS:
            raise OSError(f"{path}: cannot be written ({error.strerror})") from error
        if error.errno is None and str(folder) in str(error):  # raised for a file in a folder
            raise OSError(str(error).replace(str(folder), str(path))) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open folder; False if another process holds it, None where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _finish(file: Path, mask: int | None = None) -> None:
    """Flush a file to the disk, with the permissions that a umask, or the user's, gives to new files."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    file.chmod(0o666 & ~(_umask() if mask is None else mask))


def _umask() -> int:
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
