"""Agreement of a federation's processes on features and classes before they train; no row is sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsurf.common.text import counted, listed
from fedsurf.network import Network

Array = NDArray[Any]
Kind = Literal["text", "numbers"]


@dataclass(frozen=True)
class Columns:
    """The features and labels of a process; a server has none."""

    count: int
    """Number of features."""
    names: tuple[str, ...] | None
    """Their names, if they have any."""
    labels: Kind
    """Whether labels are text or numbers."""
    classes: tuple[Any, ...]
    """The classes of its rows."""
    single: bool = False
    """Whether its features are in single precision."""

    @staticmethod
    def of(x: Array, classes: Array, names: Sequence[str] | None) -> Columns:
        """Return the columns of some rows with these classes."""
        kind: Kind = "numbers" if classes.dtype.kind in "biuf" else "text"
        known = None if names is None else tuple(map(str, names))
        return Columns(
            x.shape[1], known, kind, tuple(classes.tolist()), bool(x.dtype == np.float32)
        )

    def found(self) -> Array:
        """Return the classes as an array, sorted."""
        return np.array(sorted(self.classes))

    def difference(self, other: Columns) -> str | None:
        """Tell what another process has that does not fit these columns, if anything."""
        if self.labels != other.labels:
            return f"labels that are {other.labels} in place of {self.labels}"
        if self.count != other.count:
            return f"{counted(other.count, 'feature')} in place of {self.count}"
        if self.names == other.names:
            return None
        mine, its = self.names or (), other.names or ()
        added, missing = (
            [n for n in one if n not in rest] for one, rest in ((its, mine), (mine, its))
        )
        if not added and not missing:
            return "the same features in another order"
        return (
            f"features {listed(added) or 'without names'} in place of {listed(missing) or 'none'}"
        )


def agreed_columns(network: Network, own: Columns | None) -> Columns:
    """Return the features of all processes and the classes that any of them has, or raise where they differ.

    Every process sends its own columns, or None for a server, and no row.
    """
    text = json.dumps(None if own is None else asdict(own))
    found = {}
    for name, said in network.gather_text(text).items():
        columns = read_columns(name, said)
        if columns is not None:
            found[name] = columns
    return common_columns(found)


def common_columns(found: Mapping[str, Columns]) -> Columns:
    """Return the features that all have and the classes that any has, or raise with those that differ.

    Features that most have are taken for right, so that the error is about the others.
    """
    if not found:
        raise ValueError("network: got no process that holds rows")
    shapes = Counter((c.count, c.names, c.labels) for c in found.values())
    [(shape, _)] = shapes.most_common(1)
    usual = next(c for c in found.values() if (c.count, c.names, c.labels) == shape)
    others = {name: usual.difference(columns) for name, columns in found.items()}
    wrong = [f"{name} has {difference}" for name, difference in others.items() if difference]
    if wrong:
        raise ValueError(
            f"X, y: got columns that differ between the processes of the federation: {'; '.join(wrong)}. "
            "All must have the same features, in the same order"
        )
    classes = sorted({label for columns in found.values() for label in columns.classes})
    single = all(columns.single for columns in found.values())
    return replace(usual, classes=tuple(classes), single=single)


def read_columns(name: str, text: str) -> Columns | None:
    """Parse what a process tells of its columns, which is not trusted to have the right form."""
    try:
        content = json.loads(text)
        return None if content is None else columns_from(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"network: got something else than features and classes from {name} ({error})"
        ) from error


def columns_from(content: Any) -> Columns:
    """Return columns from plain data, such as `dataclasses.asdict` makes."""
    if not isinstance(content, dict) or set(content) != {field.name for field in fields(Columns)}:
        raise ValueError("other fields")
    names, labels = content["names"], content["labels"]
    kinds: dict[str, tuple[type, ...]] = {"text": (str,), "numbers": (int, float)}
    of_label = kinds[labels]
    sound = (
        type(content["count"]) is int
        and content["count"] > 0
        and isinstance(content["single"], bool)
        and (names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)))
        and isinstance(content["classes"], list)
        and all(isinstance(label, of_label) for label in content["classes"])
    )
    if not sound:
        raise ValueError("values of another kind")
    known = None if names is None else tuple(names)
    return Columns(content["count"], known, labels, tuple(content["classes"]), content["single"])
