"""Reading files: JSON and safetensors with JSON metadata. No pickle is ever read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


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
    """A file is missing, damaged, too large, or holds something else.

    The message is one line that begins with the file's name.
    """


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path}: there is no such file") from error
    except ValueError as error:
        raise FileError(f"{path}: damaged, it is not JSON ({error})") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata that `write_tensors` wrote, without reading the tensors."""
    with _opened(path) as file:
        stored = file.metadata() or {}
    if "fedsurf" not in stored:
        raise FileError(f"{path}: a safetensors file, but not one that fedsurf wrote")
    try:
        metadata: dict[str, Any] = json.loads(stored["fedsurf"])
    except ValueError as error:
        raise FileError(f"{path}: damaged, its metadata cannot be read ({error})") from error
    return metadata


def read_tensors_into(path: Path, into: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy the tensors of a file into the given ones, in place, and return the metadata.

    Their names, shapes and types must agree; otherwise nothing is changed.
    """
    import torch

    metadata = read_metadata(path)
    with _opened(path) as file:
        names = set(file.keys())
        if names != set(into):
            missing, surplus = sorted(set(into) - names), sorted(names - set(into))
            raise FileError(
                f"{path}: lacks the tensors {missing[:3]} and has the unknown ones {surplus[:3]}"
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
    """Read all tensors of a file, whatever they are."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise FileError(f"{path}: truncated, damaged or not safetensors ({error})") from error
