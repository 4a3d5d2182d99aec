"""Labelled examples in the files that people have: .csv, .parquet and .npz.

Columns and arrays are chosen by name. Types and missing values are those that pandas finds, except that
labels and agents are read as text, so that "007" stays apart from "7".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsurf.common.files import FileError, array_names, column_names, read_arrays, read_columns
from fedsurf.common.text import counted, listed
from fedsurf.estimator.federations import Array
from fedsurf.tasks.dataset import split
from fedsurf.tasks.sources.formats import NPZ_WHOLE, part_names

LABELS = ("label", "y", "target")
"""Names by which a column of labels is found; without one, it is the last column."""
AGENTS = ("agent", "agents")
"""Names by which a column or an array of agents is found."""
_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names that pandas gives to columns without a name, often the index of a data frame."""
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")
"""Names of columns that may be the first row of a table without names."""
_WHOLE_FLOAT = r"^(-?(?:0|[1-9]\d*))\.0$"
"""A whole number as many programs write it if another value of its column is missing."""


@dataclass(frozen=True)
class LabelledTable:
    """Training and test examples."""

    x: Array
    """Features as float64 `[rows, features]`, or float32 where an .npz file has that."""
    y: Array
    """Labels, `[rows]`."""
    agents: Array | None
    """The agent of each row, `[rows]`; None if the file has no agents."""
    test_x: Array
    """Features of examples that are held out; possibly no rows."""
    test_y: Array
    """Their labels."""
    features: tuple[str, ...] | None = None
    """The names of the features, if they have any."""
    label: str | None = None
    """The name of the column of labels, if it has one."""
    agent: str | None = None
    """The name of the column of agents, if there is one."""
    agents_held_out: int = 0
    """The number of agents without training examples, because all their rows are held out."""


def read_labelled(
    path: Path,
    *,
    label: str | None = None,
    agent: str | None = None,
    drop: Sequence[str] = (),
    test_share: float = 0.2,
    one_agent: bool = False,
) -> LabelledTable:
    r"""Read examples, and hold a share of each class out.

    Parameters
    ----------
    path : Path
        A .csv file whose first line names the columns, a .parquet file, or an .npz file with `x, y` or
        `train_x, train_y, test_x, test_y`, and perhaps `agents`.
    label : str or None
        The column of labels; by default the one called label, y or target, or else the last.
    agent : str or None
        The column, or array, of agents; by default the one called agent or agents, if any.
    drop : sequence of str
        Columns that are not features.
    one_agent : bool
        All rows are one agent's, and no column tells the agent.
    test_share : float
        The share of each class to hold out, evenly spaced in the file. An .npz file with test arrays
        is divided already.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data.csv"
    ...     _ = path.write_text("size,site,label\n1,007,a\n2,7,b\n")
    ...     table = read_labelled(path, agent="site", test_share=0)
    >>> table.features, table.agents.tolist(), table.y.tolist()
    (('size',), ['007', '7'], ['a', 'b'])
    """
    if not 0 <= test_share < 1:
        raise ValueError(f"test_share: got {test_share}, but it must be at least 0 and below 1")
    if _kind_of(path) == ".npz":
        if label is not None or drop:
            raise ValueError("label, drop: got names of columns, but an .npz file has none")
        return _read_npz(path, agent, test_share)
    asked = [label] if label else LABELS, [agent] if agent else AGENTS, drop
    names = column_names(path, [name for some in asked for name in some])
    unknown = [name for name in drop if name not in names or name in (label, agent)]
    if unknown:
        raise ValueError(f"drop: got {listed(unknown)}, but {path} has {listed(names)} to drop")
    kept = [name for name in names if name not in drop]
    usual = () if one_agent else AGENTS
    agent = _choose(path, "agent", agent, [name for name in kept if name != label], usual)
    rest = [name for name in kept if name != agent]
    label = _choose(path, "label", label, rest, LABELS) or next(reversed(rest), None)
    features = [name for name in rest if name != label]
    if label is None or not features:
        raise FileError(f"{path}: got {listed(names)}, but there must be a label and a feature")
    unnamed = next((name for name in features if _UNNAMED.fullmatch(name)), None)
    if unnamed is not None:
        raise FileError(
            f"{path}: column {unnamed!r}: got no name, like row numbers that pandas writes, but features "
            f"must have one: drop {unnamed!r}, or name it"
        )
    text = [label] if agent is None else [label, agent]
    frame = read_columns(path, [*features, *text], text)
    if not len(frame):
        raise FileError(f"{path}: got no rows, but there must be some")
    numbered = names == [str(place) for place in range(len(names))]
    like_a_row = not numbered and any(_NUMBER.fullmatch(name) for name in features)
    if like_a_row and label in frame[label].astype(str).to_numpy():
        raise FileError(f"{path}: got the first line {listed(names)}, but it must name the columns")
    ids = None if agent is None else _labels_of(path, agent, frame[agent])
    x, y = _numbers_of(path, frame[features]), _labels_of(path, label, frame[label])
    return _divide(x, y, ids, test_share, features=tuple(features), label=label, agent=agent)


def read_features(
    path: Path, names: Sequence[str] | None, count: int, label: str | None
) -> tuple[Array, Array | None]:
    """Read the features that a classifier was trained on, `[rows, count]`, and labels if there are any.

    Columns are found by name, in any order; other columns are ignored. Without `names`, all columns
    except the label's are features. Of an .npz file, `x` is read. A missing label is None.
    """
    if _kind_of(path) == ".npz":
        stored = array_names(path)
        found = next((name for name in ("x", "test_x") if name in stored), None)
        if found is None:
            raise FileError(f"{path}: got the arrays {listed(stored)}, but it must hold x")
        labels = [name for name in (found.replace("x", "y"),) if name in stored]
        arrays = read_arrays(path, [found, *labels])
        x = _matrix(path, found, arrays[found])
        given = [_vector(path, name, arrays[name], len(x)) for name in labels]
    else:
        usual = LABELS if label is None else (label,)
        columns = column_names(path, {*(names or ()), *usual})
        labels = [name for name in usual if name in columns and name not in (names or ())][:1]
        wanted = [name for name in columns if name not in labels] if names is None else list(names)
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise FileError(
                f"{path}: got no column {listed(missing)}, but the classifier was trained on it; "
                f"the file has {listed(columns)}"
            )
        frame = read_columns(path, [*wanted, *labels], labels)
        x, given = _numbers_of(path, frame[wanted]), [frame[name] for name in labels]
    if x.shape[1] != count:
        raise FileError(
            f"{path}: got {counted(x.shape[1], 'feature')}, but the classifier was trained on {count}"
        )
    if not given or given[0].isna().all():
        return x, None
    known = given[0].notna().to_numpy()
    y = np.full(len(known), None, dtype=object)
    y[known] = _labels_of(path, labels[0], given[0][known]).tolist()
    return x, y


def _kind_of(path: Path) -> str:
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet", ".npz"):
        raise ValueError(f"data: got {str(path)!r}, but it must be a .csv, .parquet or .npz file")
    return kind


def _choose(
    path: Path, argument: str, asked: str | None, names: Collection[str], usual: Sequence[str]
) -> str | None:
    """Return the name that is asked for, or else the usual one that is there, if any."""
    if asked is not None and asked not in names:
        raise ValueError(
            f"{argument}: got {asked!r}, but {path} has {listed(names)} to choose from"
        )
    found = [name for name in usual if name in names] if asked is None else [asked]
    if len(found) > 1:
        raise ValueError(f"{argument}: got None, but {path} has {listed(found)}: choose one")
    return found[0] if found else None


def _read_npz(path: Path, agent: str | None, test_share: float) -> LabelledTable:
    names = part_names(path)
    agent = _choose(path, "agent", agent, array_names(path), AGENTS)
    arrays = read_arrays(path, names if agent is None else [*names, agent])

    def labels(name: str, rows: int) -> Array:
        return _labels_of(path, name, _vector(path, name, arrays[name], rows))

    x = _matrix(path, names[0], arrays[names[0]])
    y, ids = labels(names[1], len(x)), None if agent is None else labels(agent, len(x))
    if names == NPZ_WHOLE:
        return _divide(x, y, ids, test_share, agent=agent)
    test_x = _matrix(path, names[2], arrays[names[2]])
    test_y = labels(names[3], len(test_x))
    if test_x.shape[1] != x.shape[1]:
        raise FileError(
            f"{path}: {names[2]}: got {counted(test_x.shape[1], 'feature')}, but {names[0]} has {x.shape[1]}"
        )
    if "U" in (y.dtype.kind, test_y.dtype.kind):
        y, test_y = y.astype(str), test_y.astype(str)
    return LabelledTable(x, y, ids, test_x, test_y, agent=agent)


def _divide(x: Array, y: Array, agents: Array | None, share: float, **names: Any) -> LabelledTable:
    held = split(y, share) if share > 0 else np.zeros(len(y), dtype=bool)
    if held.all():
        raise ValueError(f"test_share: got {share}, but some of {len(y)} rows must be for training")
    ids, lost = None, 0
    if agents is not None:
        ids = agents[~held]
        lost = len(np.unique(agents)) - len(np.unique(ids))
    return LabelledTable(x[~held], y[~held], ids, x[held], y[held], agents_held_out=lost, **names)


def _numbers_of(path: Path, frame: pd.DataFrame) -> Array:
    """Return columns as float64 `[rows, columns]`; True and False are 1 and 0."""
    frame = frame.copy(deep=False)
    for name in [n for n, kind in frame.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]:
        column = frame[name]
        dated = column.dtype.kind in "mM"  # pandas would make numbers of dates, too
        numbers = column.isna() if dated else pd.to_numeric(column, errors="coerce")
        wrong = column.notna() & (numbers.isna() | dated)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise FileError(
                f"{path}: column {name!r}: got {str(column.iloc[row])!r} (row {row + 1}), but features must "
                "be numbers, or all True or False; is it the label, the agent, or a column to drop?"
            )
        frame[name] = numbers.where(column.notna())
    x = np.ascontiguousarray(frame.to_numpy(np.float64, na_value=np.nan))
    _check_finite(path, x, [f"column {name!r}" for name in frame.columns])
    return x


def _labels_of(path: Path, name: str, values: pd.Series) -> Array:
    """Return labels or ids: whole numbers if all of them are, or else text; 7.0 is 7."""
    missing = np.flatnonzero(values.isna())
    if missing.size:
        raise FileError(
            f"{path}: column {name!r}: got no value in row {missing[0] + 1} ({missing.size} in all), but each "
            "row needs one"
        )
    if values.dtype.kind == "f":
        _check_finite(path, values.to_numpy()[:, None], [f"column {name!r}"])
    text = values.astype(str).str.strip().str.replace(_WHOLE_FLOAT, r"\1", regex=True)
    labels: Array = text.to_numpy().astype(str)
    try:
        whole: Array = labels.astype(np.int64)
    except (ValueError, OverflowError):
        return labels
    same = (whole.astype(labels.dtype) == labels).all()  # unlike "007", which is not "7"
    return whole if same else labels


def _matrix(path: Path, name: str, array: Array) -> Array:
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
        raise FileError(
            f"{path}: {name}: got {array.dtype} of shape {list(array.shape)}, but it must hold "
            "numbers of shape [examples, features]"
        )
    x = array if array.dtype == np.float32 else array.astype(np.float64)
    _check_finite(path, x, [f"{name}, feature {place}" for place in range(x.shape[1])])
    return x


def _vector(path: Path, name: str, array: Array, rows: int) -> pd.Series:
    if array.shape != (rows,) or array.dtype.kind not in "iufbUmM":
        raise FileError(
            f"{path}: {name}: got {array.dtype} of shape {list(array.shape)}, but it must hold numbers or "
            f"text of shape [{rows}], one for each example"
        )
    return pd.Series(array)


def _check_finite(path: Path, x: Array, columns: Sequence[str]) -> None:
    wrong = np.argwhere(~np.isfinite(x))
    if wrong.size:
        row, place = wrong[0]
        got = "no value" if np.isnan(x[row, place]) else str(x[row, place])
        raise FileError(
            f"{path}: {columns[place]}: got {got} in row {row + 1}, but all must be finite numbers"
        )
