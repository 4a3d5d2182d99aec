"""Writing files so that nothing half-written is ever found under a final name, and reading them safely.

Tensors are safetensors with JSON metadata. No pickle is read or written. (The weights of one
backbone are a pickle in another package, and are read only if they are the known bytes.)
"""

import csv
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsurf.common.plain import json_text

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What safetensors calls the types."""
UNFINISHED = ".new.*"
"""What is called so in a folder was left by a process that was killed while it filled the folder."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system says where there is no more space, without saying for which file."""


class CheckpointError(ValueError):
    """A file that should hold tensors of fedsurf is missing, damaged, or holds something else."""


def check_folder(folder: Path, argument: str = "folder") -> None:
    """Raise unless files can be put into a folder, made if need be; before the work that fills it."""
    place = _nearest(folder)
    if place == folder.absolute() and not place.is_dir():
        raise ValueError(
            f"{argument}: got {str(folder)!r}, which is a file, but it must be a folder"
        )
    _check_open(place, argument, folder)


def check_file(file: Path, argument: str = "file") -> None:
    """Raise unless a file of that name can be written; before the work that it will hold."""
    place = _nearest(file)
    if place == file.absolute():
        if place.is_dir():
            raise ValueError(
                f"{argument}: got {str(file)!r}, which is a folder, but it must be a file"
            )
        place = place.parent  # a new file takes its place
    _check_open(place, argument, file)


def _nearest(path: Path) -> Path:
    """Return what is there of a path: itself, or the nearest above it."""
    whole = path.absolute()
    for place in (whole, *whole.parents):
        try:
            if place.exists():
                return place
        except PermissionError:  # it is in a folder that cannot be looked into
            continue
    return whole.parents[-1]


def _check_open(place: Path, argument: str, got: Path) -> None:
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
    """Give a temporary file name beside `path`, and rename it to `path` once the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        with _named(path, temporary):
            yield temporary
            _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`, and rename it to `path` once the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        with _named(path, temporary):
            yield temporary
            for file in temporary.iterdir():
                _flush(file)
        temporary.chmod(0o777 & ~_umask())
        try:
            temporary.replace(path)
        except OSError as error:
            if not path.exists():
                raise
            raise FileExistsError(
                f"{path}: another process has made this folder meanwhile; choose another"
            ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def filled_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder, whose files are moved into `path`, new or not, once the block succeeds."""
    if not path.exists():
        with new_folder(path) as temporary:
            yield temporary
        return
    temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED.rstrip("*"), dir=path))
    try:
        with _named(path, temporary):
            yield temporary
            for file in temporary.iterdir():
                _flush(file)
                file.replace(path / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Say what there is no space for, by the name that it would have had."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(f"{path}: cannot be written ({error.strerror})") from error
        if error.errno is None and str(temporary) in str(error):  # said of a file in a folder
            raise OSError(str(error).replace(str(temporary), str(path))) from error
        raise


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Raise if another process is in such a block with the same folder; where files can be locked.

    Folders that are made for it are removed again if they stay empty.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    if folder.is_file():
        raise FileExistsError(f"{folder}: this is a file, but it must be a folder")
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileExistsError(
                f"{folder}: another process is writing into this folder; wait for it, or choose another"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with suppress(OSError):  # one holds something
            for place in new:
                place.rmdir()
        os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all; infinity and NaN, for which it has no word, become null."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def write_rows(
    path: Path, rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None
) -> None:
    """Write a table as CSV, whole or not at all, with these columns or those of all rows."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        put_rows(file, rows, columns)


def put_rows(
    file: TextIO, rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None
) -> None:
    """Write a table as CSV into an open file, with these columns or those of all rows."""
    if columns is None:
        rows = list(rows)
        columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged, it is not JSON ({error})") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors with JSON metadata as safetensors, whole or not at all."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            # One key only: safetensors writes several in random order, and equal files should be equal.
            save_file(plain, temporary, {"fedsurf": json_text(metadata)})
        except SafetensorError as error:  # a full disk
            raise OSError(f"{path}: cannot be written ({error})") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata that `write_tensors` wrote, without reading the tensors."""
    with _opened(path) as file:
        stored = file.metadata() or {}
    if "fedsurf" not in stored:
        raise CheckpointError(f"{path}: a safetensors file, but not one that fedsurf wrote")
    try:
        metadata: dict[str, Any] = json.loads(stored["fedsurf"])
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged, its metadata cannot be read ({error})") from error
    return metadata


def read_tensors(path: Path, into: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy the tensors of a file into the given ones, in place, and return the metadata.

    Their names, shapes and types must agree; otherwise nothing is changed.
    """
    metadata = read_metadata(path)
    with _opened(path) as file:
        names = set(file.keys())
        if names != set(into):
            missing, surplus = sorted(set(into) - names), sorted(names - set(into))
            raise CheckpointError(
                f"{path}: lacks the tensors {missing[:3]} and has the unknown ones {surplus[:3]}"
            )
        for name, tensor in into.items():
            stored = file.get_slice(name)
            shape, dtype = stored.get_shape(), _DTYPES.get(stored.get_dtype())
            if dtype != tensor.dtype:
                raise CheckpointError(
                    f"{path}: {name} is {dtype or stored.get_dtype()}, "
                    f"but {tensor.dtype} was expected"
                )
            if shape != list(tensor.shape):
                raise CheckpointError(
                    f"{path}: {name} has shape {shape}, but {list(tensor.shape)} was expected"
                )
        for name, tensor in into.items():
            tensor.detach().copy_(file.get_tensor(name))
    return metadata


def read_new_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file, whatever they are."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(f"{path}: truncated, damaged or not safetensors ({error})") from error


def _umask() -> int:
    """Return what new files are not open for: the system tells it only to those who set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
