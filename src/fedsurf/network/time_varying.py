"""A network whose links change from round to round: several graphs of the same agents."""

from collections.abc import Callable, Sequence

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_whole
from fedsurf.network.config import Shift
from fedsurf.network.graphs import check_graphs
from fedsurf.network.losses import Losses
from fedsurf.network.network import Network


class TimeVaryingNetwork(Network):
    """Agents whose links change: every round has one of several graphs, and that graph's S.

    An agent without a link in a round keeps its row, if S averages. Its graph and its links are
    those of all rounds together; a round counts floats on its own links only.

    Parameters
    ----------
    graphs : sequence of networkx.Graph
        Undirected graphs of the same nodes, which become the agents 0, 1, … in the order of the
        first graph. Each may fall apart; with all links together they must be connected.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S, of each graph its own.
    order : callable or None
        Maps the number of a round, from 0 on, to the place of its graph in `graphs`; one after
        another and again from the first where None. With the same round it must return the same
        place, so that all methods meet the same links.
    """

    def __init__(
        self,
        graphs: Sequence[nx.Graph],
        shift: Shift = "adjacency",
        order: Callable[[int], int] | None = None,
    ) -> None:
        checked = check_graphs(graphs)
        super().__init__(nx.compose_all(checked), shift)
        self._order = order
        self._moments = [_Moment(graph, shift) for graph in checked]
        # Both lists of links are sorted: those of a graph stand among all in their own order.
        self._linked = [
            torch.tensor(
                [graph.has_edge(*link) for link in self.links.T.tolist()], dtype=torch.bool
            )
            for graph in checked
        ]

    @property
    def reliable(self) -> bool:
        """Whether every round is S: the same links, and every message arrives as it was sent."""
        return len(self._moments) == 1

    @property
    def neighbours(self) -> Tensor:
        """How many neighbours each node hears in a round, in the mean over the graphs, `[nodes]`."""
        return torch.stack([moment.neighbours for moment in self._moments]).float().mean(0)

    def operator(self, dtype: torch.dtype) -> Tensor:
        """Return the S of the round that comes, in the given floating type."""
        return self._moments[self._place()].operator(dtype)

    def operators(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the S of every graph."""
        return [moment.operator(dtype) for moment in self._moments]

    def carry(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], losses: Losses, floats: int
    ) -> list[Tensor]:
        """Let the graph of this round carry it; what is lost of other links means nothing."""
        place = self._place()
        linked = self._linked[place]
        self._rounds += 1
        self._count_floats(floats, linked if losses.unsent is None else linked & ~losses.unsent)
        return self._moments[place].carry(values, sent, losses.among(linked), floats)

    def _place(self) -> int:
        """Return the place of the graph of the round that comes."""
        if self._order is None:
            return self.rounds % len(self._moments)
        place = self._order(self.rounds)
        check_whole(place, "order")
        if not 0 <= place < len(self._moments):
            raise ValueError(
                f"order: got {place} for round {self.rounds}, but it must be between 0 and "
                f"{len(self._moments) - 1}, a place in graphs"
            )
        return place


class _Moment(Network):
    """The graph of one round: it was checked with the others, and may fall apart."""

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return graph
