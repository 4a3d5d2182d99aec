"""What the classical methods ask of their arguments, their state and their network."""

import math
from typing import TypeVar

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State
from fedsurf.common.checks import check_number, check_whole
from fedsurf.network import Network

OwnState = TypeVar("OwnState", bound=State)

TOLERANCE = 1e-9
"""How far S may be from symmetric, and its rows from summing to 1, by rounding alone."""


def check_step_size(step_size: float, argument: str = "step_size") -> None:
    """Raise unless the step is a number above 0."""
    check_number(step_size, argument)
    if not 0 < step_size < math.inf:
        raise ValueError(f"{argument}: got {step_size}, but it must be a finite number above 0")


def check_batch_size(batch_size: int | None) -> None:
    """Raise unless a mini-batch holds a whole number of examples, at least one."""
    if batch_size is not None:
        check_whole(batch_size, "batch_size", " or None for all examples")
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            f"batch_size: got {batch_size}, but it must be at least 1, or None for all examples"
        )


def check_momentum(momentum: float) -> None:
    """Raise unless the momentum is at least 0 and below 1."""
    check_number(momentum, "momentum")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum: got {momentum}, but it must be at least 0 and below 1")


def check_mixes(network: Network, method: str) -> None:
    """Raise unless the rows of S sum to 1, so that agents who agree still do after mixing."""
    if any(_excess(one).abs().max() > TOLERANCE for one in network.operators(torch.float64)):
        raise ValueError(
            f"network: got the shift operator {network.shift!r}, which does not average, but {method} "
            "mixes averages: use 'metropolis' or 'adjacency'"
        )


def check_averages(network: Network, method: str) -> None:
    """Raise unless S is symmetric and its rows sum to 1, so that mixing keeps the agents' average.

    A star in which only some agents report is judged by the S of all of them.
    """
    for operator in network.operators(torch.float64):
        difference = operator - operator.t()
        entries = difference.coalesce().values() if difference.is_sparse else difference.flatten()
        if torch.cat([entries, _excess(operator)]).abs().max() > TOLERANCE:
            raise ValueError(
                f"network: got the shift operator {network.shift!r}, which on this graph is not "
                f"symmetric with rows that sum to 1, but {method} needs that: use 'metropolis'"
            )


def _excess(operator: Tensor) -> Tensor:
    """Return by how much the sum of each row of S exceeds 1, `[nodes]`."""
    return (operator @ torch.ones(len(operator), 1, dtype=operator.dtype) - 1).flatten()


def own_state(state: State, kind: type[OwnState]) -> OwnState:
    """Return `state` as the kind that a method's `init` returned, or raise if it is another's."""
    if not isinstance(state, kind):
        raise TypeError(
            f"state: got a {type(state).__name__}, but this method steps from the "
            f"{kind.__name__} that its init returns"
        )
    return state
