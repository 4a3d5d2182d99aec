"""Agreement of a federation's processes on features and classes before they train; no row is sent."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsurf.common.text import listed
from fedsurf.network import Network

Array = NDArray[Any]

MAX_TEXT_BYTES = 2**20
"""Size of the longest description of another process's features and classes."""


def agreed_classes(
    network: Network, own: Array, features: int, names: Sequence[str] | None = None
) -> Array:
    """Return the classes of all processes, sorted, or raise where this one's features differ.

    `own` are the classes in the rows that live here, `features` their number of features and `names` the
    features' names, if they have any. Every process sends these, and no row.
    """
    number = own.dtype.kind in "biuf"
    described = {
        "features": features,
        "names": None if names is None else list(names),
        "numbers": number,
        "classes": own.tolist(),
    }
    classes = set(own.tolist())
    for process, text in enumerate(network.gather_text(json.dumps(described))):
        other = _read(process, text)
        for what in ("features", "names"):
            if other[what] != described[what]:
                raise ValueError(
                    f"X: got {_shown(described[what])} as its {what}, but process {process} of the federation "
                    f"has {_shown(other[what])}; all must have the same ones, in the same order"
                )
        if other["numbers"] != number:
            kinds = ["text", "numbers"]
            raise ValueError(
                f"y: got labels that are {kinds[number]}, but those of process {process} of the federation "
                f"are {kinds[other['numbers']]}"
            )
        classes.update(other["classes"])
    found = np.array(sorted(classes))
    return found.astype(own.dtype) if number else found


def _shown(value: int | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else listed(list(value))


def _read(process: int, text: str) -> dict[str, Any]:
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
            f"network: got something else than features and classes from process {process} ({error})"
        ) from error
    if not fits:
        raise ValueError(
            f"network: got something else than features and classes from process {process}"
        )
    known: dict[str, Any] = described
    return known
