"""What all commands share: the two streams, JSON, a wrong command line."""

import sys
from typing import Any

from rich.console import Console

from fedsurf.common.writing import json_text

# Without markup and emoji: what stands in brackets, or between colons, may be a user's file.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)


class CommandLineError(ValueError):
    """What was typed is wrong in a way that the parser does not see."""


def print_json(content: Any) -> None:
    """Print numbers for programs; what JSON has no word for becomes null."""
    sys.stdout.write(json_text(content, indent=2) + "\n")
