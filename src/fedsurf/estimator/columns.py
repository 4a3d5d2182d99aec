"""Columns by name, from .csv and .parquet files: read as they are, then made numbers or labels."""

import csv
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsurf.common.text import counted, listed

Array = NDArray[Any]

NO_VALUE = ("NA", "N/A", "#N/A", "<NA>", "NaN", "NAN", "nan", "NULL", "null", "None")
"""What programs write where there is no value."""
EXACT = 2.0**63
"""Below it, whole floats are whole numbers of 64 bits."""


def kind_of(path: Path) -> str:
    """Return .csv, .parquet or .npz, by the file's name."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet", ".npz"):
        raise ValueError(
            f"data: got {str(path)!r}, but it must be a .csv, .parquet or .npz file by its name"
        )
    return kind


def read_columns(path: Path, asked: Container[str] = ()) -> dict[str, Array]:
    """Read all columns of a .csv or .parquet file, as they are: text, or the file's own types.

    The index of a pandas data frame, which a .parquet file holds as columns behind the others, is left
    out as pandas leaves it out of the columns, unless it is asked for by name.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path}: this is a folder, but it must be one file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    columns = _read_parquet(path, asked) if kind_of(path) == ".parquet" else _read_csv(path)
    if not columns or not len(next(iter(columns.values()))):
        raise ValueError(
            f"{path}: got {counted(len(columns), 'column')} and no rows, but there must be some"
        )
    return columns


def numbers_of(path: Path, name: str, values: Array) -> Array:
    """Turn a column into float64 numbers, True and False into 1 and 0, or say which row is none."""
    plain = _plain_numbers(values)
    if plain is not None:
        return plain
    _check_complete(path, name, values)
    values = _truths(values)
    try:
        # A date would become a number in whatever unit the file has.
        none = _is_time(values) or (values.dtype.kind == "O" and any(map(_is_grouped, values)))
        numbers: Array = np.array([]) if none else values.astype(np.float64)
    except (ValueError, TypeError):
        numbers = np.array([])
    if len(numbers) != len(values):
        row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
        raise ValueError(
            f"{path}: column {name!r}: got {repr(values[row])[:60]} (row {row + 1}), but features must "
            "be numbers, or all True or False; is it the label, the agent, or a column to drop?"
        )
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        raise ValueError(
            f"{path}: column {name!r}: got {values[wrong[0]]} (row {wrong[0] + 1}), "
            "but features must be finite numbers"
        )
    return numbers


def _plain_numbers(values: Array) -> Array | None:
    """Return text that is finite numbers throughout, as most columns are; None where one must look closer."""
    if values.dtype.kind != "O":
        return None
    try:
        if _is_grouped("".join(values.tolist())):
            return None
        numbers: Array = values.astype(np.float64)
    except (ValueError, TypeError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _truths(values: Array) -> Array:
    """Return a column of the words True and False, in any case, as truth values; others as they are."""
    if values.dtype.kind != "O":
        return values
    known = values.tolist()
    if not all(isinstance(value, str) and value.lower() in ("true", "false") for value in known):
        return values
    return np.array([value.lower() == "true" for value in known])


def labels_of(path: Path, name: str, values: Array) -> Array:
    """Turn a column into labels: whole numbers if all of them are (also if all end in .0), or else text."""
    values = _decoded(path, name, values)
    _check_complete(path, name, values)
    values = _times_of_python(values)
    if values.dtype.kind in "iub":
        return values
    if values.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            raise ValueError(
                f"{path}: column {name!r}: got {values[wrong[0]]} (row {wrong[0] + 1}), "
                "but labels and agents must be finite numbers, or text"
            )
        if (values == np.floor(values)).all() and (np.abs(values) < EXACT).all():
            return values.astype(np.int64)
        # By its own type: 0.1 in float32 is not the 0.1 that Python has.
        return np.array([str(value) for value in values])
    _check_words(path, name, values)
    text = np.array([str(value) for value in values.tolist()])
    # A column of whole numbers that has a gap somewhere is written as "7.0" by many programs.
    bare = (
        np.array([one[:-2] for one in text.tolist()])
        if np.char.endswith(text, ".0").all()
        else text
    )
    try:
        whole: Array = bare.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    # "007" and "7" are different labels, as text.
    return whole if (whole.astype(bare.dtype) == bare).all() else text


def _decoded(path: Path, name: str, values: Array) -> Array:
    """Return a column of bytes, as which some programs write text, as text; others as they are."""
    if values.dtype.kind not in "SO":
        return values
    known = values.tolist()
    places = [place for place, value in enumerate(known) if isinstance(value, bytes)]
    if not places:
        return values
    decoded = values.astype(object)
    for place in places:
        try:
            decoded[place] = known[place].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: column {name!r}: got {repr(known[place])[:60]} (row {place + 1}), but bytes must be "
                "text in UTF-8"
            ) from error
    return decoded


def _times_of_python(values: Array) -> Array:
    """Return times finer than microseconds, of which Python makes whole numbers, as it writes others."""
    if not _is_time(values) or np.datetime_data(values.dtype)[0] not in ("ns", "ps", "fs", "as"):
        return values
    coarse = values.astype(f"{values.dtype.kind}8[us]")
    known = [
        str(near.item() if near == value else value)
        for near, value in zip(coarse, values, strict=True)
    ]
    return np.array(known, dtype=object)


def words_for_none(labels: Array) -> list[str]:
    """Return which labels are words that programs write where there is no value, as NA."""
    return [label for label in np.unique(labels).tolist() if label in NO_VALUE]


def none_among_numbers(values: Array) -> NDArray[np.bool_]:
    """Say of each value whether it is a word for no value, as NA, where all others are numbers.

    Among other words it may be one of them.
    """
    if values.dtype.kind not in "OU":
        return np.zeros(len(values), dtype=bool)
    words = np.array([isinstance(one, str) and one in NO_VALUE for one in values.tolist()], bool)
    return words if all(map(_is_number, values[~words].tolist())) else np.zeros_like(words)


def _check_words(path: Path, name: str, values: Array) -> None:
    rows = np.flatnonzero(none_among_numbers(values))
    if rows.size:
        raise ValueError(
            f"{path}: column {name!r}: got no value in row {rows[0] + 1}, where it says "
            f"{values[rows[0]]!r} ({rows.size} in all), but each row needs one"
        )


def spelled_as(classes: Iterable[Any], labels: Iterable[Any]) -> list[str | None]:
    """Return labels as text, a whole number as the classes have it: "7", or "7.0" among fractions.

    Whether whole numbers have a ".0" depends on what else is in their column, which may differ between
    files. None, where there is no label, stays None.
    """
    known = {str(one) for one in classes}

    def spelled(label: Any) -> str | None:
        if label is None:
            return None
        text = str(label)
        other = text.removesuffix(".0") if text.endswith(".0") else f"{text}.0"
        return other if other in known and text not in known else text

    return [spelled(label) for label in labels]


def _read_csv(path: Path) -> dict[str, Array]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)  # else quotes after a blank are text
        try:
            names = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
        except UnicodeDecodeError as error:
            raise ValueError(_not_utf_8(path)) from error
        except csv.Error as error:
            raise ValueError(
                f"{path}: damaged, or not CSV (line {reader.line_num}: {error})"
            ) from error
    for separator in (";", "\t"):
        if len(names) == 1 and separator in names[0]:
            raise ValueError(
                f"{path}: got the first line {names[0][:60]!r}, whose columns seem to be separated by "
                f"{separator!r}, but commas must separate them"
            )
    _check_once(path, names)
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(
                f"{path}: got {counted(len(row), 'value')} in row {number + 1}, "
                f"but the first line names {counted(len(names), 'column')}"
            )
    values = zip(*rows, strict=True) if rows else ([] for _ in names)
    columns = {
        name: np.array([value.strip() for value in column], dtype=object)
        for name, column in zip(names, values, strict=True)
    }
    _check_names(path, columns)
    return columns


def _not_utf_8(path: Path) -> str:
    """Say where a file is not UTF-8, and how it becomes that."""
    with path.open("rb") as file:
        line, content = next(
            (number, line) for number, line in enumerate(file, 1) if not _is_utf_8(line)
        )
    seen = content.decode("latin-1").strip()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding, wrong = "utf-16", "it seems to be UTF-16"
    else:
        encoding, wrong = "latin-1", f"its line {line} reads {seen[:60]!r} if it is Latin-1"
    return (
        f"{path}: got text that is not UTF-8 ({wrong}), but tables must be UTF-8; to convert it: "
        f"iconv -f {encoding} -t utf-8 {quote(str(path))} > converted.csv"
    )


def _is_utf_8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_once(path: Path, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(
            f"{path}: got several columns called {listed(twice)}, but each must have a name of its own"
        )


def _check_names(path: Path, columns: Mapping[str, Array]) -> None:
    """Raise where the first line is a row like the others: it would be lost, without a word.

    That is where all text in it stands in the same column again, and half of its fractions or more lie
    among the numbers of their columns. So names may be numbers, 0, 1, … or wavelengths.
    """
    if any(not _is_number(name) and name not in values for name, values in columns.items()):
        return
    fractions = [name for name in columns if _is_number(name) and not float(name).is_integer()]
    alike = 0
    for name in fractions:
        numbers = [float(value) for value in columns[name] if _is_number(value)]
        alike += bool(numbers) and min(numbers) <= float(name) <= max(numbers)
    if alike and alike >= len(fractions) / 2:
        raise ValueError(
            f"{path}: got the first line {listed(columns)}, which looks like a row of numbers, but it "
            "must name the columns"
        )


def _read_parquet(path: Path, asked: Container[str]) -> dict[str, Array]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: reading .parquet takes pyarrow: pip install 'fedsurf[parquet]'"
        ) from error
    try:
        _check_once(path, parquet.read_schema(path).names)
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: damaged, or not a .parquet file ({error})") from error
    # Of an index that is only numbered, there is a description in the place of a name.
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in index and name not in asked:
            continue
        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        columns[name] = column.to_numpy()
    return columns


def missing_in(values: Array) -> NDArray[np.bool_]:
    """Say of each value whether it is none: None, NaN, no time, pandas' NA, or no text."""
    if _is_time(values):
        return np.isnat(values)
    if values.dtype.kind == "f":
        unknown: NDArray[np.bool_] = np.isnan(values)
        return unknown
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    return np.array([_is_missing(value) for value in values.tolist()], dtype=bool)


def _check_complete(path: Path, name: str, values: Array) -> None:
    missing = np.flatnonzero(missing_in(values))
    if missing.size:
        raise ValueError(
            f"{path}: column {name!r}: got no value in row {missing[0] + 1}, but each row needs one"
        )


def _is_missing(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return not value
    unlike = value != value  # a NaN is unlike itself
    if isinstance(unlike, bool | np.bool_):
        return bool(unlike)
    return not isinstance(unlike, np.ndarray)  # pandas' NA cannot tell


def _is_time(values: Array) -> bool:
    return values.dtype.kind in "mM"


def _is_grouped(value: Any) -> bool:
    """Tell whether digits are written in groups, as 1_000: a number in Python, and in no table."""
    return isinstance(value, str) and "_" in value


def _is_number(value: Any) -> bool:
    if _is_grouped(value):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
