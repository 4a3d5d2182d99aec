"""Claims of the paper, judged by numbers: what it says, two numbers with their spread, holds or not.

A number is more than another one only if it is by more than two standard errors of their difference,
which is taken task by task where both were measured on the same tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error, within_error

SAME = 0.02
"""Two accuracies that differ by no more than this count as the same."""


@dataclass(frozen=True)
class Number:
    """A measured number.

    Attributes
    ----------
    label : str
        What was measured.
    mean : float
        Its mean over tasks.
    error : float or None
        The standard error of it; None for a number that is given, or of one task.
    """

    label: str
    mean: float
    error: float | None = None

    @staticmethod
    def of(label: str, values: Tensor) -> "Number":
        """Return the mean of `values[tasks]` and its standard error."""
        values = values.double()
        return Number(label, float(values.mean()), finite(standard_error(values)))


@dataclass(frozen=True)
class Claim:
    """One claim, and what became of it here.

    Attributes
    ----------
    id : str
        What programs call it.
    paper : str
        What the paper says.
    criterion : str
        How it is judged here.
    left, right : Number
        The two numbers that decide, the paper's method first.
    holds : bool
        Whether the claim holds here; rivals are tuned.
    note : str
        What else there is to say.
    unit : {"%", "points", ""}
        In what the numbers are shown.
    untuned : Number or None
        The second number with the rivals' settings of the paper, where there are rivals.
    holds_untuned : bool or None
        Whether the claim would hold against these.
    """

    id: str
    paper: str
    criterion: str
    left: Number
    right: Number
    holds: bool
    note: str = ""
    unit: str = "%"
    untuned: Number | None = None
    holds_untuned: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON, which has no word for infinity but null."""
        plain = asdict(self)
        for name in ("left", "right", "untuned"):
            if plain[name] is not None and not math.isfinite(plain[name]["mean"]):
                plain[name]["mean"] = None
        return plain

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Claim":
        """Return the claim that `to_dict` made plain."""
        plain = dict(content)
        for name in ("left", "right", "untuned"):
            if plain.get(name) is not None:
                mean = plain[name]["mean"]
                plain[name] = Number(**{**plain[name], "mean": math.inf if mean is None else mean})
        return Claim(**plain)

    def noting(self, *notes: str) -> "Claim":
        """Return the claim with more notes."""
        return replace(self, note=" ".join(filter(None, [self.note, *notes])))


Rivals = Mapping[str, Tensor]
"""What each rival reached on every task, `[tasks]`, by its name."""


def above(left: Tensor, right: Tensor) -> bool:
    """Whether `left[tasks]` is above `right[tasks]` by more than two standard errors, task by task."""
    difference = left.double() - right.double()
    return not bool(within_error(difference.mean(), standard_error(difference)))


def best_of(rivals: Rivals) -> tuple[str, Tensor]:
    """Return the rival with the highest mean."""
    if not rivals:
        raise ValueError("rivals: got none, but there must be at least one")
    name = max(rivals, key=lambda one: float(rivals[one].double().mean()))
    return name, rivals[name]


def above_all(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    criterion: str,
    mine: tuple[str, Tensor],
    tuned: Rivals,
    untuned: Rivals | None = None,
    untuned_by: str = "the paper's settings",
) -> Claim:
    """Judge that something is above every rival: above the best of them."""
    label, values = mine
    name, theirs = best_of(tuned)
    claim = Claim(
        id,
        paper,
        criterion,
        Number.of(label, values),
        Number.of(f"{name}, tuned", theirs),
        above(values, theirs),
    )
    if not untuned:
        return claim
    name, theirs = best_of(untuned)
    return replace(
        claim,
        untuned=Number.of(f"{name}, {untuned_by}", theirs),
        holds_untuned=above(values, theirs),
    )


def at_least(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    criterion: str,
    mine: tuple[str, Tensor],
    bound: tuple[str, float],
    unit: str = "%",
) -> Claim:
    """Judge that a mean reaches a bound."""
    left = Number.of(*mine)
    return Claim(id, paper, criterion, left, Number(*bound), left.mean >= bound[1], unit=unit)


def at_most(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    criterion: str,
    mine: tuple[str, Tensor],
    bound: tuple[str, float],
    unit: str = "%",
) -> Claim:
    """Judge that a mean stays within a bound."""
    left = Number.of(*mine)
    return Claim(id, paper, criterion, left, Number(*bound), left.mean <= bound[1], unit=unit)


def same(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    criterion: str,
    left: tuple[str, Tensor],
    right: tuple[str, Tensor],
    margin: float = SAME,
) -> Claim:
    """Judge that two means are the same: within a margin, or within two standard errors."""
    difference = left[1].double() - right[1].double()
    error = standard_error(difference)
    close = abs(float(difference.mean())) <= margin
    alike = bool(within_error(difference.mean().abs(), error)) and bool(error.isfinite())
    return Claim(id, paper, criterion, Number.of(*left), Number.of(*right), close or alike)


def drops_less(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    criterion: str,
    mine: tuple[str, Tensor],
    theirs: tuple[str, Tensor],
) -> Claim:
    """Judge that something loses less than something else, both task by task."""
    holds = above(theirs[1], mine[1])
    left, right = Number.of(*mine), Number.of(*theirs)
    return Claim(id, paper, criterion, left, right, holds, unit="points")


def drop(label: str, before: Tensor, after: Tensor) -> Number:
    """Return how much was lost between tasks of one kind and other tasks, which are not paired."""
    before, after = before.double(), after.double()
    errors = standard_error(before).square() + standard_error(after).square()
    return Number(label, float(before.mean() - after.mean()), finite(errors.sqrt()))


def smaller(left: Number, right: Number) -> bool:
    """Whether a number is below another one by more than two standard errors, which are independent."""
    errors = [0.0 if one.error is None else one.error for one in (left, right)]
    return right.mean - left.mean > 2 * float(torch.tensor(errors).norm())


def least(numbers: Sequence[Number]) -> Number:
    """Return the number with the smallest mean."""
    if not numbers:
        raise ValueError("numbers: got none, but there must be at least one")
    return min(numbers, key=lambda one: one.mean)
