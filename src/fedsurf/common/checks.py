"""Checks of arguments, whose errors name the argument, the value and what it must be."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args


def check_whole(value: object, argument: str, otherwise: str = "") -> None:
    """Raise unless a value is a whole number; `otherwise` names alternatives."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        also = f",{otherwise}" if otherwise else ""
        raise TypeError(f"{argument}: got {value!r}, but it must be a whole number{also}")


def check_count(
    value: int, argument: str, least: int = 1, why: str = "", most: int | None = None
) -> None:
    """Raise unless a value is a whole number from `least` to `most`; `why` gives the reason."""
    check_whole(value, argument)
    if most is not None and not least <= value <= most:
        raise ValueError(f"{argument}: got {value}, but it must be between {least} and {most}{why}")
    if value < least:
        raise ValueError(f"{argument}: got {value}, but it must be at least {least}{why}")


def check_share(value: float, argument: str) -> None:
    """Raise unless a value is a number between 0 and 1, both included."""
    _check_range(value, argument, lambda v: 0 <= v <= 1, "between 0 and 1")


def check_fraction(value: float, argument: str) -> None:
    """Raise unless a value is a number between 0 and 1, both excluded."""
    _check_range(value, argument, lambda v: 0 < v < 1, "above 0 and below 1")


def check_positive(value: float, argument: str) -> None:
    """Raise unless a value is a finite number above 0."""
    _check_range(value, argument, lambda v: 0 < v < math.inf, "a finite number above 0")


def check_not_negative(value: float, argument: str) -> None:
    """Raise unless a value is a finite number of at least 0."""
    _check_range(value, argument, lambda v: 0 <= v < math.inf, "a finite number, at least 0")


def check_below_one(value: float, argument: str) -> None:
    """Raise unless a value is a number of at least 0 and below 1."""
    _check_range(value, argument, lambda v: 0 <= v < 1, "at least 0 and below 1")


def _check_range(value: Any, argument: str, holds: Callable[[Any], bool], wanted: str) -> None:
    check_number(value, argument)
    if not holds(value):
        raise ValueError(f"{argument}: got {value}, but it must be {wanted}")


def check_option(value: object, literal: Any, argument: str) -> None:
    """Raise unless a value is one of a Literal's."""
    if value not in get_args(literal):
        options = " or ".join(map(repr, get_args(literal)))
        raise ValueError(f"{argument}: got {value!r}, but it must be {options}")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or torch means that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def check_kind(value: object, kind: type | UnionType, argument: str, wanted: str) -> None:
    """Raise unless a value is an instance of `kind`, which the message calls `wanted`."""
    if not isinstance(value, kind):
        simple = value is None or isinstance(value, str | Real)
        shown = repr(value)[:60] if simple else type(value).__name__
        raise TypeError(f"{argument}: got {shown}, but it must be {wanted}")


def check_number(value: object, argument: str) -> None:
    """Raise unless a value is a number, or a tensor in the place of one."""
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "item")):
        raise TypeError(f"{argument}: got {value!r}, but it must be a number")
