"""Checks of arguments, whose errors name the argument, the value and what it must be; and their wording."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args

MAX_NAMES = 10
"""Names that a message lists before it says how many more there are."""
MAX_CHARACTERS = 200
"""Characters of a text from a file that a message shows."""


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
    check_number(value, argument)
    if not 0 <= value <= 1:
        raise ValueError(f"{argument}: got {value}, but it must be between 0 and 1")


def check_fraction(value: float, argument: str) -> None:
    """Raise unless a value is a number between 0 and 1, both excluded."""
    check_number(value, argument)
    if not 0 < value < 1:
        raise ValueError(f"{argument}: got {value}, but it must be above 0 and below 1")


def check_positive(value: float, argument: str) -> None:
    """Raise unless a value is a finite number above 0."""
    check_number(value, argument)
    if not 0 < value < math.inf:
        raise ValueError(f"{argument}: got {value}, but it must be a finite number above 0")


def check_not_negative(value: float, argument: str) -> None:
    """Raise unless a value is a finite number of at least 0."""
    check_number(value, argument)
    if not 0 <= value < math.inf:
        raise ValueError(f"{argument}: got {value}, but it must be a finite number, at least 0")


def check_below_one(value: float, argument: str) -> None:
    """Raise unless a value is a number of at least 0 and below 1."""
    check_number(value, argument)
    if not 0 <= value < 1:
        raise ValueError(f"{argument}: got {value}, but it must be at least 0 and below 1")


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


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun: 1 task, 2 tasks; give `plural` where it is not `singular` + s."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def listed(names: Iterable[object]) -> str:
    """Join names for a message: the first ten of them, printable."""
    every = [printable(name) for name in names]
    more = f" and {len(every) - MAX_NAMES} more" if len(every) > MAX_NAMES else ""
    return (", ".join(every[:MAX_NAMES]) or "(none)") + more


def printable(value: object, limit: int = MAX_CHARACTERS) -> str:
    """Return text that is safe to show in a terminal, on one line.

    Control characters, among them terminal escape codes, and characters that change the direction of
    writing are escaped as Python escapes them; text above the limit is shortened in the middle.
    """
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
