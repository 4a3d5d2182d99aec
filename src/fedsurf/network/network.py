"""A network: a graph in action. `mix` is one communication round; it is counted, link by link."""

from collections.abc import Sequence
from functools import cached_property

import networkx as nx
import torch
from torch import Tensor

from fedsurf.network.config import Shift
from fedsurf.network.graphs import check_graph
from fedsurf.network.losses import NO_LOSSES, Losses
from fedsurf.network.operators import lowest_eigenvalue, shift_operator
from fedsurf.network.product import product


class Network:
    """Agents linked by a graph, who talk to their neighbours in rounds.

    Every round goes through `carry`. A network of one's own overrides that, and not `mix` or
    `mix_parts`: both call it, and so do faults that wrap the network.

    Parameters
    ----------
    graph : networkx.Graph
        Connected and undirected; its nodes become the agents 0, 1, … in their order.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S.
    generator : torch.Generator or None
        Where a network that is random by itself (a star, a fault) draws from.

    Attributes
    ----------
    links : Tensor
        Every directed link as (from, to), int64 `[2, links]`.
    """

    server = False
    """Whether node 0 is a server that holds no data."""

    def __init_subclass__(cls) -> None:
        """Refuse a round that faults, or messages of several parts, would pass by."""
        super().__init_subclass__()
        for name in ("mix", "mix_parts"):
            if getattr(cls, name) is not getattr(Network, name):
                raise TypeError(
                    f"{cls.__name__}: got a {name} of its own, but a network must override carry instead, "
                    "through which mix, mix_parts and networks with faults go"
                )

    def __init__(
        self,
        graph: nx.Graph,
        shift: Shift = "adjacency",
        generator: torch.Generator | None = None,
    ) -> None:
        self.graph = self._checked(graph)
        self._generator = generator
        self.shift = shift
        self._operators = {torch.float64: shift_operator(self.graph, shift)}
        self._weights: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        edges = torch.tensor(sorted(self.graph.edges), dtype=torch.int64).reshape(-1, 2).T
        self.links = torch.cat([edges, edges.flip(0)], 1)
        # The entries of S are its diagonal and the links, here by receiver, then by sender.
        places = torch.cat([torch.arange(self.nodes).expand(2, -1), self.links.flip(0)], 1)
        self._by_row = (places[0] * self.nodes + places[1]).argsort()
        self._places = places[:, self._by_row]
        self.reset()

    @property
    def nodes(self) -> int:
        """The number of nodes, the server included: the rows that `mix` takes."""
        return len(self.graph)

    @property
    def agents(self) -> int:
        """The number of nodes that hold data."""
        return self.nodes - int(self.server)

    @property
    def reporting(self) -> int:
        """How many agents are heard in a round."""
        return self.agents

    @property
    def reliable(self) -> bool:
        """Whether every round is S: the same links, and every message arrives as it was sent."""
        return self.reporting == self.agents

    @property
    def neighbours(self) -> Tensor:
        """How many neighbours each node hears in a round without faults, `[nodes]`."""
        return torch.bincount(self.links[1], minlength=self.nodes)

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self._rounds

    @property
    def link_floats(self) -> Tensor:
        """The floats that crossed each link so far, int64 `[links]`."""
        return self._link_floats

    @property
    def floats(self) -> int:
        """All floats that crossed any link so far."""
        return int(self.link_floats.sum())

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run: nothing was sent yet, and what is random comes from `generator`."""
        if generator is not None:
            self._generator = generator
        self._rounds = 0
        self._link_floats = torch.zeros(self.links.shape[1], dtype=torch.int64)

    def operator(self, dtype: torch.dtype) -> Tensor:
        """Return S in the given floating type, `[nodes, nodes]`, dense or sparse."""
        if dtype not in self._operators:
            self._operators[dtype] = self._operators[torch.float64].to(dtype)
        return self._operators[dtype]

    def operators(self, dtype: torch.dtype) -> list[Tensor]:
        """Return every S that a round may have, without faults: here the one."""
        return [self.operator(dtype)]

    @cached_property
    def lowest_eigenvalue(self) -> float:
        """The smallest eigenvalue of every S that a round may have, if these average.

        Close to −1, what nodes hold swings from round to round between two sides of the graph.
        """
        return min(lowest_eigenvalue(one) for one in self.operators(torch.float64))

    def mix(self, values: Tensor, floats: int | None = None) -> Tensor:
        """Communicate once: return S·values for `values[nodes, …]`.

        A message counts as one float for each number of a row, or as `floats` where the numbers
        are sent in fewer bits.
        """
        self._check(values)
        size = values[0].numel() if floats is None else floats
        return self.carry([values], [values], NO_LOSSES, size)[0]

    def mix_parts(self, *parts: Tensor) -> list[Tensor]:
        """Communicate once, with a message of several parts, each `[nodes, …]`: return S·part of each."""
        for part in parts:
            self._check(part)
        return self.carry(parts, parts, NO_LOSSES, sum(part[0].numel() for part in parts))

    def carry(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], losses: Losses, floats: int
    ) -> list[Tensor]:
        """Do the work of `mix` and `mix_parts`, with the faults of this round.

        Networks with faults call it. It is what a network of one's own overrides.

        Parameters
        ----------
        values : sequence of Tensor
            What every node holds, and uses of itself: the parts of a message, each `[nodes, …]`.
        sent : sequence of Tensor
            What its neighbours receive of it; the same tensors where nothing differs.
        losses : Losses
            The messages that do not arrive.
        floats : int
            As how many floats a message counts.
        """
        self._rounds += 1
        self._count_floats(floats, None if losses.unsent is None else ~losses.unsent)
        return [self._carry_part(*part, losses) for part in zip(values, sent, strict=True)]

    def _carry_part(self, values: Tensor, sent: Tensor, losses: Losses) -> Tensor:
        if sent is values and losses is NO_LOSSES:
            return self._product(self.operator(values.dtype), values)
        own, links = losses.weigh(*self._own_and_links(values.dtype), self.links[1])
        if sent is values:
            return self._product(self._matrix(own, links), values)
        mixed = self._product(self._matrix(torch.zeros_like(own), links), sent)
        return torch.addcmul(mixed, own.reshape(-1, *[1] * (values.dim() - 1)), values)

    def call(self) -> Tensor:
        """Begin a round between a server and some agents; see `StarNetwork`."""
        return self.summon(NO_LOSSES)

    def summon(self, losses: Losses) -> Tensor:  # noqa: ARG002 - what a star does with it
        """Do the work of `call`, with the losses of this round; networks with faults call it."""
        raise ValueError(self._no_server())

    def download(
        self,
        value: Tensor,  # noqa: ARG002
        agents: Tensor,  # noqa: ARG002
        among: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Send a server's `value[…]` to the given agents; see `StarNetwork`."""
        raise ValueError(self._no_server())

    def upload(
        self,
        values: Tensor,  # noqa: ARG002
        agents: Tensor,  # noqa: ARG002
        among: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Send the given agents' `values[agents, …]` to a server; see `StarNetwork`."""
        raise ValueError(self._no_server())

    def agent_rows(self, values: Tensor) -> Tensor:
        """Return the rows of the agents in `values[nodes, …]`: all but a server's."""
        return values[1:] if self.server else values

    def _count_floats(self, floats: int, used: Tensor | None = None) -> None:
        """Count the floats of a message on the links that were used, bool `[links]`, or on all."""
        # Not in place: whoever looked at the count before has that of then.
        self._link_floats = self._link_floats + (floats if used is None else floats * used)

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return check_graph(graph)

    def _product(self, operator: Tensor, values: Tensor) -> Tensor:
        return product(operator, values.flatten(1)).reshape(values.shape)

    def _own_and_links(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return S by its diagonal `[nodes]` and its entries link by link, `[links]`."""
        if dtype not in self._weights:
            operator = self.operator(dtype).to_sparse().coalesce()
            (row, column), entries = operator.indices(), operator.values()
            own = entries.new_zeros(self.nodes)
            own[row[row == column]] = entries[row == column]
            # What is left is one entry for each link, in the order of `_by_row`.
            links = torch.empty(self.links.shape[1], dtype=dtype)
            order = self._by_row[self._by_row >= self.nodes] - self.nodes
            links[order] = entries[row != column]
            self._weights[dtype] = own, links
        return self._weights[dtype]

    def _matrix(self, own: Tensor, links: Tensor) -> Tensor:
        """Return the matrix with these entries, dense or sparse as S is."""
        size, entries = (self.nodes, self.nodes), torch.cat([own, links])[self._by_row]
        if not self.operator(links.dtype).is_sparse:
            return links.new_zeros(size).index_put(tuple(self._places), entries)
        return torch.sparse_coo_tensor(
            self._places, entries, size, is_coalesced=True, check_invariants=False
        )

    def _no_server(self) -> str:
        return (
            f"network: got a {type(self).__name__} without a server, "
            "but only a server calls agents: use a StarNetwork"
        )

    def _check(self, values: Tensor) -> None:
        if values.dim() < 2 or values.shape[0] != self.nodes:
            raise ValueError(
                f"values: got shape {list(values.shape)}, "
                f"but this network has {self.nodes} nodes, each with a row [nodes, …]"
            )
        if not values.is_floating_point():
            raise TypeError(
                f"values: got {values.dtype}, which cannot hold averages, but it must be a "
                "floating type"
            )
