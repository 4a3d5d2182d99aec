"""Wording of messages: counts, lists of names, and text that is safe to print."""

from collections.abc import Iterable

MAX_NAMES = 10
"""Names that a message lists before it says how many more there are."""
MAX_CHARACTERS = 200
"""Characters of a text from a file that a message shows."""


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun: 1 task, 2 tasks; give `plural` where it is not `singular` + s."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def listed(names: Iterable[object]) -> str:
    """Join names for a message: the first ten of them, printable."""
    every = [printable(name) for name in names]
    more = f" and {len(every) - MAX_NAMES} more" if len(every) > MAX_NAMES else ""
    return (", ".join(every[:MAX_NAMES]) or "(none)") + more


def percent(share: float | None, style: str = ".1f") -> str:
    """Return a share as a number of percent, "-" for None."""
    return "-" if share is None else f"{100 * share:{style}}"


def printable(value: object, limit: int = MAX_CHARACTERS) -> str:
    """Return text that is safe to show in a terminal, on one line.

    Control characters, among them terminal escape codes, and characters that change the direction of
    writing are escaped as Python escapes them; text above the limit is shortened in the middle.
    """
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
