"""What all commands share: the two streams, JSON, a wrong command line, and how many threads they use."""

import os
import sys
from typing import Any

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from fedsurf.plain import json_text

SMALL = 50_000_000
"""Parameters of an optimizer below which one thread is fastest."""

# Without markup and emoji: what stands in brackets, or between colons, may be a user's file.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)


class CommandLineError(ValueError):
    """What was typed is wrong in a way that the parser does not see."""


def limit_threads(parameters: int) -> None:
    """Use one thread where products are small: more of them wait for each other longer than they work.

    It also makes the bits independent of the number of cores. OMP_NUM_THREADS overrides it.
    """
    if "OMP_NUM_THREADS" not in os.environ and parameters < SMALL:
        torch.set_num_threads(1)
        threadpool_limits(1)  # those of NumPy and scikit-learn, too


def print_json(content: Any) -> None:
    """Print numbers for programs; what JSON has no word for becomes null."""
    sys.stdout.write(json_text(content, indent=2) + "\n")
