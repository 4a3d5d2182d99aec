"""Standard output, standard error and JSON, for all commands."""

import sys
from typing import Any

from rich.console import Console

from fedsurf.common.writing import json_text

# No markup and emoji: text in brackets or between colons may be the name of a user's file.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)


class CommandLineError(ValueError):
    """A wrong command line that the parser accepts."""

    exit_code = 2


def print_json(content: Any) -> None:
    """Print JSON on standard output; infinity and NaN become null."""
    sys.stdout.write(json_text(content, indent=2) + "\n")
