"""Reading data that users bring: arrays in .npz files, tables in .csv and .parquet files.

Names are read first; then only what is asked for is unpacked, after the size that the file declares for it
is compared with the size of the file. All errors are `FileError`s, and no pickle is ever read.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from fedsurf.common.files import FileError, reading
from fedsurf.common.text import listed

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

MAX_TABLE_BYTES = 2**34
"""Size of the largest table or file of arrays."""
MAX_UNPACKED_BYTES = 2**28
"""Size in memory up to which data are read without a look at how small their file is."""
MAX_UNPACKED_RATIO = 200
"""Size in memory of larger data, compared with the size of their file."""
_NPZ, _CSV, _PARQUET = "a .npz file", "a .csv file", "a .parquet file"


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz file."""
    with reading(path, _NPZ, MAX_TABLE_BYTES), ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz file by their names; the others stay packed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from fedsurf.common.data_files import array_names, read_arrays
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data.npz"
    ...     np.savez(path, x=np.ones(2), y=np.arange(3))
    ...     print(array_names(path), read_arrays(path, ["y"]))
    ['x', 'y'] {'y': array([0, 1, 2])}
    """
    from numpy.lib.format import read_array

    arrays = {}
    with reading(path, _NPZ, MAX_TABLE_BYTES), ZipFile(path) as archive:
        for name in names:
            _check_member(path, archive, name)
            with archive.open(f"{name}.npy") as member:
                arrays[name] = read_array(member, allow_pickle=False)
    return arrays


def column_names(path: Path, asked: Collection[str | None] = ()) -> list[str]:
    """Return the names of the columns of a .csv or .parquet file.

    The index of a data frame in a .parquet file is left out, unless it is among `asked`.
    """
    if path.suffix.lower() == ".parquet":
        with reading(path, _PARQUET, MAX_TABLE_BYTES), _opened_parquet(path) as file:
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

    Parameters
    ----------
    path : Path
        The file. The first line of a .csv file names the columns.
    names : sequence of str
        The columns to read.
    text : collection of str
        Columns of a .csv file that are read as text, so that "007" stays apart from "7". The others have
        the types that pandas finds, as those of a .parquet file have theirs.
    """
    if path.suffix.lower() != ".parquet":
        return _read_csv(path, text=text)[list(names)]
    with reading(path, _PARQUET, MAX_TABLE_BYTES), _opened_parquet(path) as file:
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
    asked = [part for part in parts if part.path_in_schema.split(".")[0] in names]
    return sum(max(part.total_uncompressed_size, 8 * part.num_values) for part in asked)


def _read_csv(path: Path, text: Collection[str] = (), rows: int | None = None) -> pd.DataFrame:
    import pandas as pd

    with reading(path, _CSV, MAX_TABLE_BYTES), warnings.catch_warnings():
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
