"""Reading files of fedsurf: JSON, and safetensors with JSON metadata. Tables are in `data_files`.

Every file that is missing, damaged, too large or of another kind raises a `FileError`. Sizes and shapes are
compared before tensors are read, and no pickle is ever read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsurf.common.text import listed, printable

if TYPE_CHECKING:
    from torch import Tensor

MAX_JSON_BYTES = 2**26
"""Size of the largest JSON file, and of the largest header of a safetensors file."""
MAX_JSON_DEPTH = 100
"""Levels of lists and tables inside each other in JSON."""
MAX_TENSOR_BYTES = 2**32
"""Size of the largest safetensors file that is read without knowing its shapes."""
MAX_MESSAGE_CHARACTERS = 1000
"""Length of the longest message of a `FileError`."""
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The names of types in safetensors and in torch."""


class FileError(ValueError):
    r"""A file is missing, damaged, too large, or holds something else.

    The message is one printable line that begins with the file's name.

    Examples
    --------
    >>> from fedsurf.common.files import FileError
    >>> print(FileError("wine.csv: has the column 'a\nb'"))
    wine.csv: has the column 'a\nb'
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, MAX_MESSAGE_CHARACTERS))


@contextmanager
def reading(path: Path, kind: str, limit: int | None = None) -> Iterator[None]:
    """Turn all errors of reading a file into a `FileError`.

    Parameters
    ----------
    path : Path
        The file. It must exist.
    kind : str
        What the file must be, for the message, such as "JSON".
    limit : int or None
        The size of the largest file that is read, in bytes; None for any.
    """
    if path.is_dir():
        raise FileError(f"{path}: this is a folder, but it must be a file")
    if not path.is_file():
        raise FileError(f"{path}: there is no such file")
    if limit is not None and path.stat().st_size > limit:
        raise FileError(
            f"{path}: has {path.stat().st_size} bytes, but {kind} must have at most {limit}"
        )
    try:
        yield
    except (FileError, ImportError):
        raise
    except MemoryError as error:
        raise FileError(f"{path}: needs more memory than there is ({error})") from error
    except Exception as error:  # readers of damaged files raise errors of many types
        raise FileError(f"{path}: truncated, damaged or not {kind} ({error})") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from fedsurf.common.files import read_json
    >>> from fedsurf.common.writing import write_json
    >>> with TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", {"rounds": 20})
    ...     read_json(Path(folder) / "a.json")
    {'rounds': 20}
    """
    with reading(path, "JSON", MAX_JSON_BYTES):
        return _parse(path, path.read_text(encoding="utf-8"))


def _parse(path: Path, text: str) -> Any:
    content = json.loads(text)
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            item
            for group in level
            if isinstance(group, dict | list)
            for item in (group.values() if isinstance(group, dict) else group)
        ]
    if level:
        raise FileError(f"{path}: its JSON is nested more than {MAX_JSON_DEPTH} levels deep")
    return content


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata that `write_tensors` wrote, without reading the tensors."""
    with _opened(path) as file:
        stored = file.metadata() or {}
        if "fedsurf" not in stored:
            raise FileError(f"{path}: a safetensors file, but not one that fedsurf wrote")
        metadata = _parse(path, stored["fedsurf"])
    if not isinstance(metadata, dict):
        raise FileError(f"{path}: damaged, its metadata must be a table of fields")
    return metadata


def read_tensors_into(path: Path, into: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy the tensors of a file into the given ones, in place, and return the metadata.

    Names, shapes and types must agree; otherwise nothing is read or changed.
    """
    import torch

    metadata = read_metadata(path)
    with _opened(path) as file:
        names = set(file.keys())
        if names != set(into):
            raise FileError(
                f"{path}: lacks the tensors {listed(sorted(set(into) - names))} "
                f"and has the unknown ones {listed(sorted(names - set(into)))}"
            )
        for name, tensor in into.items():
            stored = file.get_slice(name)
            shape, dtype = stored.get_shape(), stored.get_dtype()
            if getattr(torch, _DTYPES.get(dtype, ""), dtype) != tensor.dtype:
                raise FileError(
                    f"{path}: {name} is {_DTYPES.get(dtype, dtype)}, but {tensor.dtype} was expected"
                )
            if shape != list(tensor.shape):
                raise FileError(
                    f"{path}: {name} has shape {shape}, but {list(tensor.shape)} was expected"
                )
        for name, tensor in into.items():
            tensor.detach().copy_(file.get_tensor(name))
    return metadata


def read_all_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file, of any shape and type."""
    with _opened(path, MAX_TENSOR_BYTES) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path, limit: int | None = None) -> Iterator[Any]:
    from safetensors import safe_open

    with reading(path, "safetensors", limit):
        with path.open("rb") as opened:
            header = int.from_bytes(opened.read(8), "little")
        if header > min(MAX_JSON_BYTES, path.stat().st_size):
            raise ValueError(f"a header of {header} bytes")
        with safe_open(path, framework="pt") as file:
            yield file
