"""A network: a graph on which agents exchange messages in rounds, which are counted link by link."""

from collections.abc import Hashable, Sequence
from functools import cached_property

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_kind
from fedsurf.network.config import Shift
from fedsurf.network.operators import (
    MAX_DENSE_NODES,
    NOTHING_LOST,
    LostMessages,
    lowest_eigenvalue,
    product,
    second_eigenvalue,
    shift_weights,
)


class Network:
    """Agents linked by a graph, who exchange messages with their neighbours in rounds.

    Every round of `mix` and `mix_parts` goes through `exchange`, and so do faults that wrap the
    network. A custom network overrides `exchange`, not `mix`.

    Parameters
    ----------
    graph : networkx.Graph
        Connected and undirected; its nodes become the agents 0, 1, … in their order.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S; see `NetworkConfig`.
    generator : torch.Generator or None
        For networks that are random, such as a star.

    Attributes
    ----------
    links : Tensor
        Every directed link as (from, to), int64 `[2, links]`.
    degrees : Tensor
        Number of neighbours of each node in a round without faults, `[nodes]`.
    reporting : int
        Number of agents that send in a round without faults.
    reliable : bool
        Whether every round is S: the same links, and every message arrives as it was sent.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> import fedsurf
    >>> network = fedsurf.Network(nx.path_graph(3), "metropolis")
    >>> network.mix(torch.tensor([[3.0], [0.0], [0.0]])).flatten()
    tensor([2., 1., 0.])
    >>> network.rounds, network.floats
    (1, 4)
    """

    server = False
    """Whether node 0 is a server that holds no data."""

    def __init__(
        self,
        graph: nx.Graph,
        shift: Shift = "adjacency",
        generator: torch.Generator | None = None,
    ) -> None:
        self.graph, self.shift = self._checked(graph), shift
        self._generator = generator
        edges = torch.tensor(sorted(self.graph.edges), dtype=torch.int64).reshape(-1, 2).T
        self.links = torch.cat([edges, edges.flip(0)], 1)
        self.degrees = torch.bincount(self.links[1], minlength=self.nodes)
        self.reporting, self.reliable = self.agents, True
        # S by its diagonal and its links, and as a matrix, in every floating type that was used.
        self._weights = {torch.float64: shift_weights(self.links, self.nodes, shift)}
        self._operators: dict[torch.dtype, Tensor] = {}
        # Entries of the matrix are sorted by receiver, then by sender.
        places = torch.cat([torch.arange(self.nodes).expand(2, -1), self.links.flip(0)], 1)
        self._by_row = (places[0] * self.nodes + places[1]).argsort()
        self._places = places[:, self._by_row]
        few_links = places.shape[1] < self.nodes**2 / 10
        self._sparse = self.nodes > MAX_DENSE_NODES and few_links
        self.reset()

    @property
    def nodes(self) -> int:
        """Number of nodes, the server included: the rows that `mix` takes."""
        return len(self.graph)

    @property
    def agents(self) -> int:
        """Number of nodes that hold data."""
        return self.nodes - int(self.server)

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self._rounds

    @property
    def link_floats(self) -> Tensor:
        """Floats sent over each link so far, int64 `[links]`."""
        return self._link_floats

    @property
    def floats(self) -> int:
        """Floats sent over all links so far."""
        return int(self.link_floats.sum())

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; `generator` becomes the source of randomness."""
        if generator is not None:
            self._generator = generator
        self._rounds = 0
        self._link_floats = torch.zeros(self.links.shape[1], dtype=torch.int64)

    def operator(self, dtype: torch.dtype) -> Tensor:
        """Return S in the given floating type, `[nodes, nodes]`, dense or sparse."""
        if dtype not in self._operators:
            self._operators[dtype] = self._matrix(*self._own_and_links(dtype))
        return self._operators[dtype]

    def operators(self, dtype: torch.dtype) -> list[Tensor]:
        """Return every S that a round without faults may have."""
        return [self.operator(dtype)]

    @cached_property
    def lowest_eigenvalue(self) -> float:
        """The smallest eigenvalue of every S that a round may have, if these average.

        Close to −1, values swing from round to round between two sides of the graph.
        """
        return min(lowest_eigenvalue(one) for one in self.operators(torch.float64))

    @cached_property
    def second_eigenvalue(self) -> float:
        """The second largest absolute eigenvalue of a symmetric S whose rows sum to 1."""
        return second_eigenvalue(self.operator(torch.float64))

    def mix(self, values: Tensor, floats: int | None = None) -> Tensor:
        """Communicate for one round: return S·values for `values[nodes, …]`.

        A message counts as one float for each number of a row, or as `floats` if the numbers are
        sent in fewer bits.
        """
        return self._communicate([values], floats)[0]

    def mix_parts(self, *parts: Tensor) -> list[Tensor]:
        """Communicate for one round with messages of several parts: return S·part for each `[nodes, …]`."""
        return self._communicate(parts)

    def _communicate(self, parts: Sequence[Tensor], floats: int | None = None) -> list[Tensor]:
        for part in parts:
            if part.dim() < 2 or len(part) != self.nodes:
                raise ValueError(
                    f"values: got shape {list(part.shape)}, but it must be [nodes, …] with "
                    f"{self.nodes} nodes"
                )
            if not part.is_floating_point():
                raise TypeError(f"values: got {part.dtype}, but it must be a floating type")
        size = sum(part[0].numel() for part in parts) if floats is None else floats
        return self.exchange(parts, parts, NOTHING_LOST, size)

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange the messages of one round, and return S·part for each part.

        Parameters
        ----------
        values : sequence of Tensor
            The nodes' own values, the parts of a message, each `[nodes, …]`.
        sent : sequence of Tensor
            The values as their neighbours receive them; the same tensors if nothing differs.
        floats : int
            Number of floats of a message.
        """
        self._rounds += 1
        self._count_floats(floats, None if lost.unsent is None else ~lost.unsent)
        return [self._exchange_part(*part, lost) for part in zip(values, sent, strict=True)]

    def _exchange_part(self, values: Tensor, sent: Tensor, lost: LostMessages) -> Tensor:
        if sent is values and lost is NOTHING_LOST:
            return product(self.operator(values.dtype), values)
        own, links = lost.weigh(*self._own_and_links(values.dtype), self.links[1])
        if sent is values:
            return product(self._matrix(own, links), values)
        mixed = product(self._matrix(torch.zeros_like(own), links), sent)
        return torch.addcmul(mixed, own.reshape(-1, *[1] * (values.dim() - 1)), values)

    def call(self, lost: LostMessages = NOTHING_LOST) -> Tensor:  # noqa: ARG002
        """Begin a round of a server; see `StarNetwork`."""
        raise self._no_server()

    def download(self, value: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Send the server's `value[…]` to called agents; see `StarNetwork`."""
        raise self._no_server()

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Send called agents' `values[agents, …]` to the server; see `StarNetwork`."""
        raise self._no_server()

    def agent_rows(self, values: Tensor) -> Tensor:
        """Return the agents' rows of `values[nodes, …]`: all but a server's."""
        return values[1:] if self.server else values

    def _count_floats(self, floats: int, used: Tensor | None = None) -> None:
        """Count the floats of a message on the links that were used, bool `[links]`, or on all."""
        # Copy, so that earlier references to the counts keep their values.
        self._link_floats = self._link_floats + (floats if used is None else floats * used)

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return check_graph(graph)

    def _own_and_links(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the diagonal of S, `[nodes]`, and its entries link by link, `[links]`."""
        if dtype not in self._weights:
            own, links = self._weights[torch.float64]
            self._weights[dtype] = own.to(dtype), links.to(dtype)
        return self._weights[dtype]

    def _matrix(self, own: Tensor, links: Tensor) -> Tensor:
        """Return the matrix with these entries, dense or sparse."""
        size, entries = (self.nodes, self.nodes), torch.cat([own, links])[self._by_row]
        if not self._sparse:
            return links.new_zeros(size).index_put(tuple(self._places), entries)
        return torch.sparse_coo_tensor(
            self._places, entries, size, is_coalesced=True, check_invariants=False
        )

    def _no_server(self) -> ValueError:
        return ValueError(
            f"network: got a {type(self).__name__} without a server, "
            "but only a server calls agents: use a StarNetwork"
        )


def check_graph(graph: nx.Graph) -> nx.Graph:
    """Return a connected graph with its nodes numbered 0, 1, … in their order; raise if it is not one."""
    _check_links(graph, "graph")
    _check_connected(graph, "graph: got")
    return numbered(graph, list(graph))


def check_graphs(graphs: Sequence[nx.Graph]) -> list[nx.Graph]:
    """Return graphs of the same nodes, numbered in the order of the first; raise if they are not.

    All their links together must connect the nodes; a single graph may fall apart.
    """
    if isinstance(graphs, nx.Graph) or not len(graphs):
        got = "one networkx graph" if isinstance(graphs, nx.Graph) else "an empty sequence"
        raise ValueError(f"graphs: got {got}, but it must be a sequence of networkx graphs")
    for place, graph in enumerate(graphs):
        _check_links(graph, f"graphs[{place}]")
        other = set(graphs[0]) ^ set(graph)
        if other:
            raise ValueError(
                f"graphs[{place}]: got other nodes than in the first graph, such as "
                f"{min(other, key=str)!r}, but all graphs must have the same agents"
            )
    _check_connected(nx.compose_all(graphs), "graphs: got, with all links together,")
    return [numbered(graph, list(graphs[0])) for graph in graphs]


def _check_links(graph: nx.Graph, argument: str) -> None:
    check_kind(graph, nx.Graph, argument, "a networkx graph")
    if graph.is_directed() or graph.is_multigraph():
        raise ValueError(
            f"{argument}: got a directed or multigraph, but links are simple and undirected"
        )
    if not len(graph):
        raise ValueError(f"{argument}: got one without nodes, but a network has at least one agent")


def _check_connected(graph: nx.Graph, got: str) -> None:
    parts = sorted(nx.connected_components(graph), key=len)
    if len(parts) > 1:
        smallest = sorted(parts[0], key=str)
        raise ValueError(
            f"{got} {len(parts)} components, but it must be connected; "
            f"nodes {smallest[:5]} cannot reach the others"
        )


def numbered(graph: nx.Graph, nodes: Sequence[Hashable]) -> nx.Graph:
    """Return the graph with these nodes as 0, 1, …, without attributes and links to themselves."""
    plain = nx.empty_graph(len(nodes))
    number = {node: position for position, node in enumerate(nodes)}
    plain.add_edges_from((number[a], number[b]) for a, b in graph.edges if a != b)
    return plain
