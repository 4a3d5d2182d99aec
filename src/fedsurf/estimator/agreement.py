"""Agreement of a federation's processes on features and classes before they train; no row is sent."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsurf.common.text import listed
from fedsurf.network import Network

Array = NDArray[Any]

MAX_TEXT_BYTES = 2**20
"""Size of the longest description of another process's features and classes."""


def description(own: Array, features: int, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a process tells the others: its classes, and the number and names of its features."""
    return {
        "features": features,
        "names": None if names is None else list(names),
        "numbers": own.dtype.kind in "biuf",
        "classes": own.tolist(),
    }


def agreed_classes(
    network: Network, own: Array, features: int, names: Sequence[str] | None = None
) -> Array:
    """Return the classes of all processes, sorted, or raise where this one's features differ.

    `own` are the classes in the rows that live here, `features` their number of features and `names` the
    features' names, if they have any. Every process sends these, and no row.
    """
    described = description(own, features, names)
    texts = network.gather_text(json.dumps(described))
    others = {
        f"process {process}": read_description(f"process {process}", text)
        for process, text in enumerate(texts)
    }
    check_same(described, others)
    found = union(others.values())
    return found.astype(own.dtype) if described["numbers"] else found


def check_same(own: dict[str, Any], others: Mapping[str, dict[str, Any]]) -> None:
    """Raise if another process has other features, or labels of another type, than described in `own`."""
    for name, other in others.items():
        for what in ("features", "names"):
            if other[what] != own[what]:
                raise ValueError(
                    f"X: got {_shown(own[what])} as its {what}, but {name} of the federation has "
                    f"{_shown(other[what])}; all must have the same ones, in the same order"
                )
        if other["numbers"] != own["numbers"]:
            kinds = ["text", "numbers"]
            raise ValueError(
                f"y: got labels that are {kinds[own['numbers']]}, but those of {name} of the federation are "
                f"{kinds[other['numbers']]}"
            )


def union(described: Iterable[dict[str, Any]]) -> Array:
    """Return the classes of all descriptions, sorted."""
    found: Array = np.array(sorted({label for one in described for label in one["classes"]}))
    return found


def _shown(value: int | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else listed(list(value))


def read_description(name: str, text: str) -> dict[str, Any]:
    """Parse the description of another process, which is not trusted to have the right form."""
    try:
        described = json.loads(text[:MAX_TEXT_BYTES])
        labels = (str,) if not described["numbers"] else (int, float)
        fits = (
            isinstance(described["features"], int)
            and (
                described["names"] is None
                or all(isinstance(name, str) for name in described["names"])
            )
            and isinstance(described["numbers"], bool)
            and all(isinstance(label, labels) for label in described["classes"])
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"network: got something else than features and classes from {name} ({error})"
        ) from error
    if not fits:
        raise ValueError(f"network: got something else than features and classes from {name}")
    known: dict[str, Any] = described
    return known
