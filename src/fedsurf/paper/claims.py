"""Claims of the paper, judged by two measured numbers with their standard errors.

A number is above another one only by more than two standard errors of their difference, which is taken
task by task where both were measured on the same tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsurf.common.configuration import from_dict
from fedsurf.common.statistics import finite, standard_error, within_error

SAME_MARGIN = 0.02
"""Largest difference of two accuracies that count as the same."""


@dataclass(frozen=True)
class Number:
    """A measured number."""

    label: str
    mean: float
    error: float | None = None
    """Standard error of the mean; None for a given number, or for one task."""

    @staticmethod
    def of(label: str, values: Tensor) -> "Number":
        """Return the mean of `values[tasks]` with its standard error."""
        values = values.double()
        return Number(label, float(values.mean()), finite(standard_error(values)))

    def text(self, unit: str = "%") -> str:
        """Return the number with its standard error, in percent, in points, or plain."""
        if not math.isfinite(self.mean):
            return "∞"
        if unit == "":
            error = "" if self.error is None else f" ± {self.error:.2g}"
            return f"{self.mean:.3g}{error}"
        error = "" if self.error is None else f" ± {100 * self.error:.1f}"
        return f"{100 * self.mean:.1f}{error} {unit}"


Judgement = tuple[Number, Number, bool]
"""The numbers that are compared, the paper's method first, and whether the claim holds."""
Measured = tuple[str, Tensor]
"""A label with its values, `[tasks]`."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and its judgement."""

    id: str
    paper: str
    """Quotation from the paper."""
    criterion: str
    """The rule by which it is judged."""
    left: Number
    right: Number
    holds: bool
    """Whether the claim holds, with tuned classical methods."""
    unit: str = "%"
    note: str = ""
    """Further numbers, in words."""
    untuned: Number | None = None
    """The second number with the paper's settings of the classical methods, if it has any."""
    holds_untuned: bool | None = None
    """Whether the claim holds compared with that number."""

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Claim":
        """Return a claim stored as JSON, which holds an infinite mean as null."""
        plain = {**content}
        for name in ("left", "right", "untuned"):
            if plain[name] and plain[name]["mean"] is None:
                plain[name] = {**plain[name], "mean": math.inf}
        return from_dict(Claim, plain, "claim")

    def with_untuned(self, judgement: Judgement) -> "Claim":
        """Return the claim with a second judgement, compared with untuned methods."""
        _, untuned, holds = judgement
        return replace(self, untuned=untuned, holds_untuned=holds)


def count_text(claims: Sequence[Claim]) -> str:
    """Return how many claims hold, in words."""
    if not claims:
        return "No figure is finished yet."
    held = sum(claim.holds for claim in claims)
    text = f"{held} of {len(claims)} claims of the paper hold here, compared with tuned methods"
    judged = [claim for claim in claims if claim.holds_untuned is not None]
    if judged:
        tuned = sum(claim.holds for claim in judged)
        untuned = sum(bool(claim.holds_untuned) for claim in judged)
        text += (
            f". Of the {len(judged)} about classical methods, {tuned} hold compared with tuned ones and "
            f"{untuned} compared with the paper's settings, or textbook settings where it gives none"
        )
    return f"{text}."


def above(left: Tensor, right: Tensor) -> bool:
    """Whether `left[tasks]` is above `right[tasks]` by more than two standard errors, task by task."""
    difference = left.double() - right.double()
    return not bool(within_error(difference.mean(), standard_error(difference)))


def best_of(methods: Mapping[str, Tensor]) -> Measured:
    """Return the method with the highest mean."""
    name = max(methods, key=lambda name: float(methods[name].double().mean()))
    return name, methods[name]


def above_all(left: Measured, methods: Mapping[str, Tensor], settings: str) -> Judgement:
    """Judge that values are above those of every method, i.e. of the best one."""
    name, right = best_of(methods)
    number = Number.of(f"{name}, {settings}", right)
    return Number.of(*left), number, above(left[1], right)


def at_least(left: Measured, bound: tuple[str, float]) -> Judgement:
    """Judge that a mean reaches a bound."""
    number = Number.of(*left)
    return number, Number(*bound), number.mean >= bound[1]


def at_most(left: Measured, bound: tuple[str, float]) -> Judgement:
    """Judge that a mean does not exceed a bound."""
    number = Number.of(*left)
    return number, Number(*bound), number.mean <= bound[1]


def same(left: Measured, right: Measured) -> Judgement:
    """Judge that two means are the same: within `SAME_MARGIN`, or within two standard errors."""
    difference = left[1].double() - right[1].double()
    error = standard_error(difference)
    close = abs(float(difference.mean())) <= SAME_MARGIN
    alike = bool(within_error(difference.mean().abs(), error)) and bool(error.isfinite())
    return Number.of(*left), Number.of(*right), close or alike


def drop(label: str, before: Tensor, after: Tensor) -> Number:
    """Return the drop of the mean from some tasks to other ones, with its standard error."""
    before, after = before.double(), after.double()
    errors = standard_error(before).square() + standard_error(after).square()
    return Number(label, float(before.mean() - after.mean()), finite(errors.sqrt()))


def smaller(left: Number, right: Number) -> bool:
    """Whether a number is below an independent one by more than two standard errors."""
    errors = [0.0 if number.error is None else number.error for number in (left, right)]
    return right.mean - left.mean > 2 * float(torch.tensor(errors).norm())
