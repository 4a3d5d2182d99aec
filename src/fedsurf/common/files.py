"""The one way in for files: JSON, TOML, safetensors with JSON metadata, .npz, .csv and .parquet.

Every file that is missing, damaged, too large or of another kind raises a `FileError`. Sizes and shapes are
compared before anything large is read or unpacked, only what is asked for is unpacked, and no pickle is
ever read.
"""

from __future__ import annotations

import json
import math
import tomllib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from fedsurf.common.text import listed, printable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from torch import Tensor

MAX_JSON_BYTES = 2**26
"""Size of the largest JSON file, and of the largest header of a safetensors file."""
MAX_JSON_DEPTH = 100
"""Levels of lists and tables inside each other in JSON."""
MAX_TOML_BYTES = 2**20
"""Size of the largest TOML file; people write them."""
MAX_TENSOR_BYTES = 2**32
"""Size of the largest safetensors file that is read without knowing its shapes."""
MAX_TABLE_BYTES = 2**34
"""Size of the largest table or file of arrays."""
MAX_UNPACKED_BYTES = 2**28
"""Size in memory up to which data are read without a look at how small their file is."""
MAX_UNPACKED_RATIO = 200
"""Size in memory of larger data, compared with the size of their file."""
MAX_MESSAGE_CHARACTERS = 1000
"""Length of the longest message of a `FileError`."""


class FileError(ValueError):
    """A file is missing, damaged, too large, or holds something else.

    The message is one printable line that begins with the file's name.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, MAX_MESSAGE_CHARACTERS))


@contextmanager
def reading(path: Path, kind: str, limit: int | None = None) -> Iterator[None]:
    """Turn all errors of reading a file into a `FileError`.

    `kind` names the expected format in the message, and `limit` is the largest size in bytes.
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
        raise FileError(
            f"{path}: truncated, damaged or not {kind} ({str(error).strip()})"
        ) from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with reading(path, "JSON", MAX_JSON_BYTES):
        return _parse(path, path.read_text(encoding="utf-8"))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    with reading(path, "TOML", MAX_TOML_BYTES):
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))


def read_json_lines(path: Path) -> list[Any]:
    """Read a file that has a JSON value in each line."""
    with reading(path, "lines of JSON", MAX_JSON_BYTES):
        return [_parse(path, line) for line in path.read_text(encoding="utf-8").splitlines()]


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
    metadata = read_metadata(path)
    with _opened(path) as file:
        names = set(file.keys())
        if names != set(into):
            raise FileError(
                f"{path}: lacks the tensors {listed(sorted(set(into) - names))} "
                f"and has the unknown ones {listed(sorted(names - set(into)))}"
            )
        stored = {name: file.get_tensor(name) for name in into}  # mapped, not in memory yet
        for name, tensor in into.items():
            found = stored[name]
            if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                raise FileError(
                    f"{path}: {name} is {found.dtype} of shape {list(found.shape)}, but {tensor.dtype} of "
                    f"shape {list(tensor.shape)} was expected"
                )
        for name, tensor in into.items():
            tensor.detach().copy_(stored[name])
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


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz file."""
    with reading(path, "a .npz file", MAX_TABLE_BYTES), ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz file by their names; the others stay packed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data.npz"
    ...     np.savez(path, x=np.ones(2), y=np.arange(3))
    ...     print(array_names(path), read_arrays(path, ["y"]))
    ['x', 'y'] {'y': array([0, 1, 2])}
    """
    from numpy.lib.format import read_array

    arrays = {}
    with reading(path, "a .npz file", MAX_TABLE_BYTES), ZipFile(path) as archive:
        for name in names:
            _check_member(path, archive, name)
            with archive.open(f"{name}.npy") as member:
                arrays[name] = read_array(member, allow_pickle=False)
    return arrays


def column_names(path: Path, asked: Collection[str | None] = ()) -> list[str]:
    """Return the names of a table's columns; the index of a data frame only if it is among `asked`."""
    if path.suffix.lower() == ".parquet":
        with reading(path, "a .parquet file", MAX_TABLE_BYTES), _opened_parquet(path) as file:
            schema = file.schema_arrow
            stored = schema.pandas_metadata
            index = stored.get("index_columns", []) if isinstance(stored, dict) else []
            names = [name for name in schema.names if name not in index or name in asked]
            if len(set(names)) < len(names):
                raise FileError(f"{path}: got several columns of one name among {listed(names)}")
            return names
    names = [str(name) for name in _read_csv(path, rows=0).columns]
    if len(names) == 1 and any(separator in names[0] for separator in ";\t"):
        raise FileError(
            f"{path}: got the first line {names[0]!r}, but commas must separate the columns"
        )
    return names


def read_columns(path: Path, names: Sequence[str], text: Collection[str] = ()) -> pd.DataFrame:
    """Read columns of a .csv or .parquet file by their names.

    Columns of a .csv file among `text` are read as text, so that "007" stays apart from "7"; the others have
    the types that pandas finds.
    """
    if path.suffix.lower() != ".parquet":
        return _read_csv(path, text=text)[list(names)]
    with reading(path, "a .parquet file", MAX_TABLE_BYTES), _opened_parquet(path) as file:
        _check_unpacked(path, _parquet_bytes(file.metadata, names), path.stat().st_size)
        return file.read(columns=list(names)).replace_schema_metadata(None).to_pandas()


def _check_member(path: Path, archive: ZipFile, name: str) -> None:
    """Compare the size of an array with the size of its part of the file, before it is unpacked."""
    from numpy.lib import format as npy

    member = archive.getinfo(f"{name}.npy")
    _check_unpacked(path, member.file_size, min(member.compress_size, path.stat().st_size))
    with archive.open(member) as opened:
        version = npy.read_magic(opened)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(opened)
    if dtype.hasobject:
        raise FileError(
            f"{path}: {name}: got Python objects, but it must hold numbers or text, as of "
            f"np.asarray(…, dtype={'float' if name.endswith('x') else 'str'})"
        )
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{name} is cut short")


def _check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    if unpacked > max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed):
        raise FileError(
            f"{path}: takes {unpacked} bytes when it is unpacked, more than {MAX_UNPACKED_RATIO} times its "
            "size; write it without compression if that is right"
        )


def _opened_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: reading .parquet takes pyarrow: pip install 'fedsurf[parquet]'"
        ) from error
    return parquet.ParquetFile(path)


def _parquet_bytes(metadata: Any, names: Sequence[str]) -> int:
    """Return the size in memory that a file declares for its columns, at least 8 bytes for each value."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    parts = [group.column(place) for group in groups for place in range(group.num_columns)]
    wanted = set(names)
    return sum(
        max(part.total_uncompressed_size, 8 * part.num_values)
        for part in parts
        if not wanted.isdisjoint((part.path_in_schema, part.path_in_schema.split(".")[0]))
    )


def _read_csv(path: Path, text: Collection[str] = (), rows: int | None = None) -> pd.DataFrame:
    import pandas as pd

    with reading(path, "a .csv file", MAX_TABLE_BYTES), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # of rows that would be cut
        try:
            return pd.read_csv(
                path,
                nrows=rows,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                dtype=dict.fromkeys(text, str),
            )
        except UnicodeDecodeError as error:
            raise FileError(
                f"{path}: got text that is not UTF-8; convert it, for example with "
                f"iconv -f latin-1 -t utf-8 ({error})"
            ) from error
