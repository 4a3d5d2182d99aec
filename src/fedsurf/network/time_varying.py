"""A network whose links change from round to round: several graphs of the same agents."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_whole
from fedsurf.common.devices import CPU
from fedsurf.network.config import Shift, Wire
from fedsurf.network.facts import Facts
from fedsurf.network.graphs import check_graphs
from fedsurf.network.network import Network
from fedsurf.network.operators import LostMessages


class TimeVaryingNetwork(Network):
    """Agents whose links change: every round has one of several graphs, and that graph's S.

    Its graph and links are those of all rounds together; a round counts floats on its own links
    only. An agent without a link in a round keeps its row, if S averages.

    Parameters
    ----------
    graphs : sequence of networkx.Graph
        Undirected graphs of the same nodes, which become the agents 0, 1, … in the order of the
        first graph. A single graph may fall apart; all links together must connect the agents.
    order : callable or None
        Maps the number of a round, from 0 on, to an index in `graphs`, always the same one for the
        same round; None for one after another and again from the first.
    wire : {"float32", "float16", "int8"}
        The numbers of messages as they travel; see `Network`.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> from fedsurf.network import TimeVaryingNetwork
    >>> network = TimeVaryingNetwork([nx.Graph([(0, 1), (2, 3)]), nx.Graph([(1, 2), (3, 0)])])
    >>> network.mix(network.mix(torch.eye(4)))[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self,
        graphs: Sequence[nx.Graph],
        shift: Shift = "adjacency",
        order: Callable[[int], int] | None = None,
        *,
        wire: Wire = "float32",
    ) -> None:
        checked = check_graphs(graphs)
        super().__init__(nx.compose_all(checked), shift, wire=wire)
        self._order = order
        self._networks = [_CheckedNetwork(graph, shift) for graph in checked]
        # The links of all lists are sorted: those of one graph keep their order among all.
        self._linked = [
            torch.tensor(
                [graph.has_edge(*link) for link in self.links.T.tolist()], device=CPU
            ).bool()
            for graph in checked
        ]

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know; degrees are means over the graphs."""
        degrees = torch.stack([network.facts.degrees for network in self._networks])
        once = len(self._networks) == 1
        return replace(super().facts, degrees=degrees.float().mean(0), reliable=once)

    def operator(self, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return the S of the next round in the given floating type on a device."""
        return self._networks[self._index()].operator(dtype, device)

    def operators(self) -> list[Tensor]:
        """Return the S of every graph, in float64."""
        return [network.operator(torch.float64) for network in self._networks]

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange messages over the links of this round; losses on other links change nothing."""
        index = self._index()
        linked = self._linked[index]
        used = linked if lost.unsent is None else linked & ~lost.unsent
        self.count_round(floats, used, self.form(values, floats))
        return self._networks[index].exchange(values, sent, lost.over(linked), floats)

    def round_weights(
        self, like: Tensor, lost: LostMessages
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the weights of the next round, 0 on links of other rounds; see `Network.round_weights`."""
        index = self._index()
        linked = self._linked[index]
        own, links, _ = self._networks[index].round_weights(like, lost.over(linked))
        every = links.new_zeros(len(linked)).index_put((linked.nonzero().flatten(),), links)
        return own, every, linked if lost.unsent is None else linked & ~lost.unsent

    def _index(self) -> int:
        """Return the index of the graph of the next round."""
        if self._order is None:
            return self.rounds % len(self._networks)
        index = self._order(self.rounds)
        check_whole(index, "order")
        if not 0 <= index < len(self._networks):
            raise ValueError(
                f"order: got {index} for round {self.rounds}, but it must be between 0 and "
                f"{len(self._networks) - 1}, an index in graphs"
            )
        return index


class _CheckedNetwork(Network):
    """The network of one graph, which was checked together with the others and may fall apart."""

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return graph
