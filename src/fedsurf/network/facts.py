"""The facts of a network that all agents know, and all that algorithms and layers read of its graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.network.config import Shift
from fedsurf.network.operators import lowest_eigenvalue, second_eigenvalue

AVERAGING_TOLERANCE = 1e-9
"""The largest asymmetry of S, and deviation of its row sums from 1, that counts as rounding."""


class Spectrum:
    """Properties of every S that a round may have, each computed when it is first asked for."""

    def __init__(self, operators: Callable[[], Sequence[Tensor]]) -> None:
        self._operators = operators

    @cached_property
    def averages(self) -> bool:
        """Whether the rows of every S sum to 1, so that mixing keeps agreement."""
        excess = [_row_excess(s).abs().max() for s in self._operators()]
        return float(torch.stack(excess).max()) <= AVERAGING_TOLERANCE

    @cached_property
    def keeps_average(self) -> bool:
        """Whether every S is symmetric, and its rows sum to 1: mixing keeps the agents' average."""
        return self.averages and all(
            _asymmetry(s) <= AVERAGING_TOLERANCE for s in self._operators()
        )

    @cached_property
    def lowest_eigenvalue(self) -> float:
        """The smallest eigenvalue of every S, if these average.

        Close to −1, values swing from round to round between two sides of the graph.
        """
        return min(lowest_eigenvalue(one) for one in self._operators())

    @cached_property
    def second_eigenvalue(self) -> float:
        """The second largest absolute eigenvalue of the first S, if it is symmetric and averages."""
        return second_eigenvalue(self._operators()[0])


@dataclass(frozen=True)
class Facts:
    """The facts of a network that all agents know, whichever rows live in the process.

    Examples
    --------
    >>> import networkx as nx
    >>> import fedsurf
    >>> facts = fedsurf.Network(nx.cycle_graph(4), "metropolis").facts
    >>> facts.agents, facts.degrees.tolist(), facts.spectrum.keeps_average
    (4, [2, 2, 2, 2], True)
    """

    agents: int
    """Number of agents of the whole network."""
    shift: Shift
    """The shift operator S."""
    degrees: Tensor
    """Number of neighbours, in a round without faults, of the rows that live here, `[rows]`."""
    reporting: int
    """Number of agents that send in a round without faults."""
    reliable: bool
    """Whether every round is S: the same links, and every message arrives as it was sent."""
    spectrum: Spectrum
    """Eigenvalues of S, and whether it averages."""


def _row_excess(operator: Tensor) -> Tensor:
    """Return the row sums of S minus 1, `[nodes]`."""
    ones = torch.ones(len(operator), 1, dtype=operator.dtype, device=operator.device)
    return (operator @ ones - 1).flatten()


def _asymmetry(operator: Tensor) -> float:
    difference = operator - operator.t()
    entries = difference.coalesce().values() if difference.is_sparse else difference.flatten()
    return float(entries.abs().max()) if len(entries) else 0.0
