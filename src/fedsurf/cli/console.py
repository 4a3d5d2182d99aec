"""Standard output, standard error, tables and JSON, for all commands."""

import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedsurf.common.writing import json_text

# No markup and emoji: text in brackets or between colons may be the name of a user's file.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(stderr=True, markup=False, emoji=False, highlight=False)


class CommandLineError(ValueError):
    """A wrong command line that the parser accepts."""

    exit_code = 2


def say(text: str) -> None:
    """Print text on standard output, without breaking its lines."""
    out.print(text, soft_wrap=True)


def note(text: str) -> None:
    """Print text on standard error, without breaking its lines."""
    err.print(text, soft_wrap=True)


def new_table(
    title: str,
    columns: Sequence[str],
    *,
    text: Sequence[str],
    wrap: Sequence[str] = (),
    caption: str | None = None,
) -> Table:
    """Return a table of numbers; columns in `text` hold text, cells of those in `wrap` may be broken."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title=title, caption=caption)
    for name in columns:
        justify = "left" if name in text else "right"
        table.add_column(name, justify=justify, no_wrap=name not in wrap)  # type: ignore[arg-type]
    return table


def print_json(content: Any) -> None:
    """Print JSON on standard output; infinity and NaN become null."""
    sys.stdout.write(json_text(content, indent=2) + "\n")
