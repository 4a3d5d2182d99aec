"""What all commands share: the two streams, JSON, a wrong command line, and how many threads they use."""

import json
import math
import os
import sys
from typing import Any

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

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
    sys.stdout.write(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    """Replace what JSON has no word for, infinity and NaN, by null."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
