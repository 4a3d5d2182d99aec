"""What a run remembers of its data: enough to tell other data, and nothing that rounding changes.

Features of the same data differ between machines in their last digits. How many examples each class
has, how long they are on average, and what a few fixed directions see of their mean, does not. The
directions tell signs and the order of features; principal components have theirs fixed by
`Projection`, and those that hardly vary, whose axes may turn, hardly count.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fedsurf.tasks.features import Features
from fedsurf.tasks.projection import CHUNK

TOLERANCE = 1e-3
"""How far mean squares may be apart, as a share of them, and projections, as a share of the features' size."""

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


def fingerprint(features: Features) -> dict[str, Any]:
    """Return the number of features, and of each class of each part what is known of it.

    That is its size, its mean square, and its mean projected on some fixed directions.
    """
    parts = {
        "train": (features.train_x, features.train_y),
        "test": (features.test_x, features.test_y),
    }
    return {
        "features": features.train_x.shape[1],
        **{name: _of_part(x, y, features.classes) for name, (x, y) in parts.items()},
    }


def other_than(stored: Any, found: dict[str, Any]) -> str | None:
    """Say in which respect a fingerprint is not the stored one; None if it is.

    Those from before there were projections are compared by what they have.
    """
    if not _whole(stored):
        return "what is stored of it, which is damaged"
    if stored["features"] != found["features"]:
        return f"the number of features, {found['features']} instead of {stored['features']}"
    for part in ("train", "test"):
        then, now = stored[part], found[part]
        if then["examples"] != now["examples"]:
            return f"the examples of each class in its {part} part"
        if not _close(then["mean_squares"], now["mean_squares"], 1e-12):
            return f"the features of its {part} part"
        size = math.sqrt(max(now["mean_squares"]))
        rows = zip(then.get("projections", []), now["projections"], strict=False)
        if not all(_close(*row, TOLERANCE * size) for row in rows):
            return f"the signs, the order or the means of the features of its {part} part"
    return None


def _close(then: list[float], now: list[float], least: float) -> bool:
    pairs = zip(then, now, strict=True)
    return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=least) for a, b in pairs)


def _whole(stored: Any) -> bool:
    """Whether what was read has the form of a fingerprint."""
    try:
        parts = [stored["train"], stored["test"]]
        lists = [part[name] for part in parts for name in ("examples", "mean_squares")]
        lists += [part["projections"] for part in parts if "projections" in part]
        rows = [row for part in parts for row in part.get("projections", [])]
        numbers = [value for row in (*lists[:4], *rows) for value in row]
        return (
            isinstance(stored["features"], int)
            and len({len(one) for one in lists}) == 1
            and all(len(row) == len(_PRIMES) for row in rows)
            and all(isinstance(value, int | float) for value in numbers)
        )
    except (TypeError, KeyError, AttributeError):
        return False


def _of_part(x: Tensor, y: Tensor, classes: int) -> dict[str, Any]:
    counts = torch.bincount(y, minlength=classes)
    width = x.shape[1]
    squares = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).square() / width
    each = torch.cat([squares[:, None], _projected(x)], 1)
    totals = torch.zeros(classes, each.shape[1], dtype=torch.float64).index_add(0, y, each)
    means = totals / counts.clamp(min=1)[:, None]
    return {
        "examples": counts.tolist(),
        "mean_squares": means[:, 0].tolist(),
        "projections": means[:, 1:].tolist(),
    }


def _projected(x: Tensor) -> Tensor:
    """Return what each direction sees of every example, `[examples, directions]`.

    A direction is a wave that grows ever faster, cos(2π·√p·j²) for feature j and a prime p: as good as
    random, alike on all machines, and with every feature seen differently.
    """
    squares = torch.arange(1, x.shape[1] + 1, dtype=torch.float64).square()
    roots = torch.tensor(_PRIMES, dtype=torch.float64).sqrt()
    directions = (2 * math.pi * (squares[:, None] * roots).frac()).cos()
    directions *= math.sqrt(2 / x.shape[1])
    starts = range(0, max(len(x), 1), CHUNK)  # not all examples are in float64 at a time
    return torch.cat([x[start : start + CHUNK].double() @ directions for start in starts])
