"""Reading labelled examples from files that people have: .csv, .parquet and .npz.

Columns are known by their names, arrays by those that fedsurf's `.npz` files have everywhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsurf.common.data_files import array_names, read_arrays
from fedsurf.common.text import counted, listed
from fedsurf.estimator.columns import (
    Array,
    kind_of,
    labels_of,
    missing_in,
    none_among_numbers,
    numbers_of,
    read_columns,
    spelled_as,
)
from fedsurf.tasks.dataset import split
from fedsurf.tasks.sources.formats import NPZ_PARTS, NPZ_WHOLE

LABELS = ("label", "y", "target")
"""What a label column may be called to be found; otherwise it is the last column."""
AGENTS = ("agent", "agents")
"""What a column or an array of agents may be called to be found."""
NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""What a column without a name is called: nothing, or what pandas calls it, whose index it often is."""


@dataclass(frozen=True)
class Labelled:
    """Examples to learn from, and examples to judge by.

    Attributes
    ----------
    x, y : Array
        Features as float64 `[rows, features]`, or float32 where the file has that, and labels `[rows]`.
    agents : Array or None
        Whose each row is, `[rows]`; None if the file does not say.
    test_x, test_y : Array
        What is held out; no rows if nothing is.
    features : tuple of str or None
        The names of the features; None if they have none.
    label : str or None
        The name of the label's column; None if it has none.
    agent : str or None
        The name of the agents' column, or array; None if the file does not say whose rows are.
    left_out : int
        The number of agents who take no part, since all their rows are held out.
    """

    x: Array
    y: Array
    agents: Array | None
    test_x: Array
    test_y: Array
    features: tuple[str, ...] | None
    label: str | None
    agent: str | None = None
    left_out: int = 0


def read_labelled(
    path: Path,
    *,
    label: str | None = None,
    agent: str | None = None,
    drop: Sequence[str] = (),
    test_share: float = 0.2,
) -> Labelled:
    """Read examples, and hold some of each class out.

    Parameters
    ----------
    path : Path
        A .csv file whose first line names the columns, a .parquet file, or an .npz file with `x, y`,
        or `train_x, train_y, test_x, test_y`, and perhaps `agents`.
    label : str or None
        The column of labels: by default the one called label, y or target, or else the last.
    agent : str or None
        The column of agents, or the array in an .npz file: by default the one called agent or
        agents, if any.
    drop : sequence of str
        Columns that are no features.
    test_share : float
        The share of each class to hold out, evenly spaced in the file; 0 for none. An .npz file with
        test arrays is divided already.
    """
    if not 0 <= test_share < 1:
        raise ValueError(f"test_share: got {test_share}, but it must be at least 0 and below 1")
    if kind_of(path) == ".npz":
        if label is not None or drop:
            raise ValueError(
                f"label, drop: got {label!r} and {list(drop)}, but arrays in an .npz file have no "
                "columns by name"
            )
        return _from_arrays(path, agent, test_share)
    return _from_columns(path, label, agent, drop, test_share)


def read_features(
    path: Path, names: Sequence[str] | None, count: int, label: str | None
) -> tuple[Array, Array | None]:
    """Read the features that a head was trained on, `[rows, count]`, and labels if there are any.

    Rows may lack a label: theirs is None.

    Columns are found by name, in any order; other columns are left alone. Where the head knows no
    names, all columns but the label's are taken as they come. Of an .npz file, `x` is taken.
    """
    if kind_of(path) == ".npz":
        arrays = _arrays(path)
        found = next((name for name in ("x", "test_x") if name in arrays), None)
        if found is None:
            raise ValueError(f"{path}: got the arrays {listed(arrays)}, but it must hold x")
        x = _matrix(path, found, arrays[found])
        name = found.replace("x", "y")
        y = None
        if name in arrays:
            _check_each(path, name, arrays[name], len(x))
            y = _known_labels(path, name, arrays[name])
    else:
        columns = read_columns(path, {*(names or ()), *(LABELS if label is None else [label])})
        label = label if label is not None else next((n for n in LABELS if n in columns), None)
        y = None
        if label in columns and label not in (names or ()):
            y = _known_labels(path, label, columns.pop(label))
        wanted = list(columns) if names is None else list(names)
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise ValueError(
                f"{path}: got no column {listed(missing)}, but the head was trained on it; "
                f"the file has {listed(columns)}"
            )
        x = _stack(path, {name: columns[name] for name in wanted})
    if x.shape[1] != count:
        raise ValueError(
            f"{path}: got {counted(x.shape[1], 'feature')}, but the head was trained on {count}"
        )
    return x, y


def _from_columns(
    path: Path, label: str | None, agent: str | None, drop: Sequence[str], test_share: float
) -> Labelled:
    asked = {
        *(LABELS if label is None else [label]),
        *(AGENTS if agent is None else [agent]),
        *drop,
    }
    columns = read_columns(path, asked)
    for argument, name in (("label", label), ("agent", agent), *(("drop", one) for one in drop)):
        if name is not None and name not in columns:
            raise ValueError(
                f"{argument}: got {name!r}, but {path} has the columns {listed(columns)}"
            )
    for argument, name in (("label", label), ("agent", agent)):
        if name is not None and name in drop:
            raise ValueError(f"drop: got {name!r}, but that is the {argument}")
    if label is not None and label == agent:
        raise ValueError(f"label: got {label!r}, but it must be another column than the agent's")
    for name in dict.fromkeys(drop):
        del columns[name]
    nameless = next((name for name in columns if NAMELESS.fullmatch(name)), None)
    if nameless not in (None, label, agent):
        raise ValueError(
            f"{path}: column {nameless!r}: got no name, as of the row numbers that pandas writes, but "
            f"features must have one: drop {nameless!r}, or name it"
        )
    if agent is None:
        found = [name for name in AGENTS if name in columns and name != label]
        if len(found) > 1:
            raise ValueError(
                f"agent: got none, but {path} has the columns {listed(found)}: "
                "say which tells whose each row is, and drop what is no feature"
            )
        agent = found[0] if found else None
    ids = None
    if agent is not None:
        ids = labels_of(path, agent, columns.pop(agent))
    if label is None:
        found = [name for name in LABELS if name in columns]
        if len(found) > 1:
            raise ValueError(
                f"label: got none, but {path} has the columns {listed(found)}: "
                "say which is the label, and drop what is no feature"
            )
        label = found[0] if found else list(columns)[-1] if columns else None
    if label is None:
        raise ValueError(f"label: got none, but {path} has no column beside the agent's")
    y = labels_of(path, label, columns.pop(label))
    if not columns:
        raise ValueError(f"{path}: got the label {label!r} only, but there must be a feature")
    x = _stack(path, columns)
    return _divided(x, y, ids, test_share, tuple(columns), label, agent)


def _from_arrays(path: Path, agent: str | None, test_share: float) -> Labelled:
    arrays = _arrays(path, agent)
    conventions: tuple[tuple[str, ...], ...] = (NPZ_PARTS, NPZ_WHOLE)
    names = next((keys for keys in conventions if set(keys) <= set(arrays)), None)
    if names is None:
        raise ValueError(
            f"{path}: got the arrays {listed(arrays)}, but it must hold {', '.join(NPZ_PARTS)}, "
            f"or {' and '.join(NPZ_WHOLE)}"
        )
    if agent is not None and agent not in arrays:
        raise ValueError(f"agent: got {agent!r}, but {path} has the arrays {listed(arrays)}")
    if agent is None:
        found = [name for name in AGENTS if name in arrays]
        if len(found) > 1:
            raise ValueError(
                f"agent: got none, but {path} has the arrays {listed(found)}: "
                "say which tells whose each row is"
            )
        agent = found[0] if found else None
    x = _matrix(path, names[0], arrays[names[0]])
    y = _vector(path, names[1], arrays[names[1]], len(x))
    ids = None if agent is None else _vector(path, agent, arrays[agent], len(x))
    if names == NPZ_WHOLE:
        return _divided(x, y, ids, test_share, None, None, agent)
    test_x = _matrix(path, names[2], arrays[names[2]])
    test_y = _vector(path, names[3], arrays[names[3]], len(test_x))
    if (y.dtype.kind == "U") != (test_y.dtype.kind == "U"):  # only one is all whole numbers
        y, test_y = y.astype(str), test_y.astype(str)
        test_y = np.array(spelled_as(np.unique(y), test_y.tolist()))
    if test_x.shape[1] != x.shape[1]:
        raise ValueError(
            f"{path}: {names[2]}: got {counted(test_x.shape[1], 'feature')}, "
            f"but {names[0]} has {x.shape[1]}"
        )
    return Labelled(x, y, ids, test_x, test_y, None, None, agent)


def _divided(
    x: Array,
    y: Array,
    agents: Array | None,
    share: float,
    features: tuple[str, ...] | None,
    label: str | None,
    agent: str | None,
) -> Labelled:
    held = split(y, share) if share > 0 else np.zeros(len(y), dtype=bool)
    if held.all():
        raise ValueError(
            f"test_share: got {share}, with which all {len(y)} rows are held out, but there must be some "
            "to train with"
        )
    own, left_out = None, 0
    if agents is not None:
        own = agents[~held]
        left_out = len(np.unique(agents)) - len(np.unique(own))
    return Labelled(x[~held], y[~held], own, x[held], y[held], features, label, agent, left_out)


def _known_labels(path: Path, name: str, values: Array) -> Array | None:
    known = ~missing_in(values)
    known[known] = ~none_among_numbers(values[known])
    if not known.any():
        return None
    labels = np.full(len(values), None, dtype=object)
    labels[known] = labels_of(path, name, values[known]).tolist()
    return labels


def _stack(path: Path, columns: Mapping[str, Array]) -> Array:
    return np.stack([numbers_of(path, name, values) for name, values in columns.items()], axis=1)


def _arrays(path: Path, agent: str | None = None) -> dict[str, Array]:
    wanted = {*NPZ_PARTS, *NPZ_WHOLE, *AGENTS, agent}
    return read_arrays(path, [name for name in array_names(path) if name in wanted])


def _matrix(path: Path, name: str, array: Array) -> Array:
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
        raise ValueError(
            f"{path}: {name}: got {array.dtype} of shape {list(array.shape)}, but it must hold "
            "numbers of shape [examples, features]"
        )
    x = array if array.dtype == np.float32 else array.astype(np.float64)
    wrong = np.argwhere(~np.isfinite(x))
    if wrong.size:
        raise ValueError(
            f"{path}: {name}: got a value that is NaN or infinite (example {wrong[0][0]}, "
            f"feature {wrong[0][1]}), but all must be finite"
        )
    return x


def _vector(path: Path, name: str, array: Array, rows: int) -> Array:
    _check_each(path, name, array, rows)
    return labels_of(path, name, array)


def _check_each(path: Path, name: str, array: Array, rows: int) -> None:
    if array.shape != (rows,):
        raise ValueError(
            f"{path}: {name}: got shape {list(array.shape)}, but it must be [{rows}], "
            "one for each example"
        )
