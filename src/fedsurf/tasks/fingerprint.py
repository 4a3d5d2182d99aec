"""What a run remembers of its data: enough to tell other data, and nothing that rounding changes.

Features of the same data differ between machines in their last digits, and principal components in
their signs. How many examples each class has, and how long they are on average, does not.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fedsurf.tasks.features import Features

TOLERANCE = 1e-3
"""How far mean squares may be apart, as a share of them."""


def fingerprint(features: Features) -> dict[str, Any]:
    """Return the number of features, and of each class of each part its size and its mean square."""
    parts = {
        "train": (features.train_x, features.train_y),
        "test": (features.test_x, features.test_y),
    }
    return {
        "features": features.train_x.shape[1],
        **{name: _of_part(x, y, features.classes) for name, (x, y) in parts.items()},
    }


def other_than(stored: Any, found: dict[str, Any]) -> str | None:
    """Say in which respect a fingerprint is not the stored one; None if it is."""
    if not _whole(stored):
        return "what is stored of it, which is damaged"
    if stored["features"] != found["features"]:
        return f"the number of features, {found['features']} instead of {stored['features']}"
    for part in ("train", "test"):
        then, now = stored[part], found[part]
        if then["examples"] != now["examples"]:
            return f"the examples of each class in its {part} part"
        pairs = zip(then["mean_squares"], now["mean_squares"], strict=True)
        if not all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) for a, b in pairs):
            return f"the features of its {part} part"
    return None


def _whole(stored: Any) -> bool:
    """Whether what was read has the form of a fingerprint."""
    try:
        parts = [stored["train"], stored["test"]]
        lists = [part[name] for part in parts for name in ("examples", "mean_squares")]
        return isinstance(stored["features"], int) and len({len(one) for one in lists}) == 1
    except (TypeError, KeyError):
        return False


def _of_part(x: Tensor, y: Tensor, classes: int) -> dict[str, Any]:
    counts = torch.bincount(y, minlength=classes)
    squares = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).square() / x.shape[1]
    totals = torch.zeros(classes, dtype=torch.float64).index_add(0, y, squares)
    means = totals / counts.clamp(min=1)
    return {"examples": counts.tolist(), "mean_squares": means.tolist()}
