"""A network: a graph in action. `mix` is one communication round; it is counted, link by link."""

from dataclasses import dataclass, field

import networkx as nx
import torch
from torch import Tensor

from fedsurf.network.graphs import GraphConfig, check_graph, make_graph
from fedsurf.network.shift import Shift, shift_operator


class Network:
    """Agents linked by a graph, who talk to their neighbours in rounds.

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
    rounds : int
        Communication rounds so far.
    link_floats : Tensor
        The floats that crossed each link so far, int64 `[links]`.
    """

    server = False
    """Whether node 0 is a server that holds no data."""

    def __init__(
        self,
        graph: nx.Graph,
        shift: Shift = "adjacency",
        generator: torch.Generator | None = None,
    ) -> None:
        self.graph = check_graph(graph)
        self._generator = generator
        self.shift = shift
        self._operators = {torch.float64: shift_operator(self.graph, shift)}
        edges = torch.tensor(sorted(self.graph.edges), dtype=torch.int64).reshape(-1, 2).T
        self.links = torch.cat([edges, edges.flip(0)], 1)
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
    def floats(self) -> int:
        """All floats that crossed any link so far."""
        return int(self.link_floats.sum())

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run: nothing was sent yet, and what is random comes from `generator`."""
        if generator is not None:
            self._generator = generator
        self.rounds = 0
        self.link_floats = torch.zeros(self.links.shape[1], dtype=torch.int64)

    def operator(self, dtype: torch.dtype) -> Tensor:
        """Return S in the given floating type, `[nodes, nodes]`, dense or sparse."""
        if dtype not in self._operators:
            self._operators[dtype] = self._operators[torch.float64].to(dtype)
        return self._operators[dtype]

    def mix(self, values: Tensor, floats: int | None = None) -> Tensor:
        """Communicate once: return S·values for `values[nodes, …]`.

        A message counts as one float for each number of a row, or as `floats` where the numbers
        are sent in fewer bits.
        """
        self._check(values)
        self.rounds += 1
        self.link_floats += values[0].numel() if floats is None else floats
        return self._product(self.operator(values.dtype), values)

    def agent_rows(self, values: Tensor) -> Tensor:
        """Return the rows of the agents in `values[nodes, …]`: all but a server's."""
        return values[1:] if self.server else values

    def _product(self, operator: Tensor, values: Tensor) -> Tensor:
        return (operator @ values.flatten(1)).reshape(values.shape)

    def _check(self, values: Tensor) -> None:
        if values.dim() < 2 or values.shape[0] != self.nodes:
            raise ValueError(
                f"values: got shape {list(values.shape)}, "
                f"but this network has {self.nodes} nodes, each with a row [nodes, …]"
            )


class StarNetwork(Network):
    """A server (node 0, without data) and agents, of whom a few report in each round.

    In a round the server receives the rows of `reporting` agents drawn at random, and every agent
    receives the server's. The server's row of S keeps its sum: the weights of the agents who do
    not report go, in equal parts, to those who do.

    Parameters
    ----------
    agents : int
        The number of agents, without the server.
    reporting : int or None
        How many of them report in a round (the paper: 10 of 100); all where None.
    generator : torch.Generator
        Draws who reports.
    """

    server = True

    def __init__(
        self,
        agents: int,
        reporting: int | None,
        generator: torch.Generator,
        shift: Shift = "adjacency",
    ) -> None:
        if agents < 1:
            raise ValueError(f"agents: got {agents}, but a network has at least one agent")
        if reporting is not None and not 1 <= reporting <= agents:
            raise ValueError(
                f"reporting: got {reporting}, but it must be between 1 and {agents}, the agents"
            )
        self.reporting = agents if reporting is None else reporting
        super().__init__(nx.star_graph(agents), shift, generator)

    def mix(self, values: Tensor, floats: int | None = None) -> Tensor:
        """Communicate once: sampled agents to the server, the server to all agents."""
        self._check(values)
        reporters = 1 + torch.randperm(self.agents, generator=self._generator)[: self.reporting]
        self.rounds += 1
        size = values[0].numel() if floats is None else floats
        down = self.links[0] == 0
        up = torch.isin(self.links[0], reporters)
        self.link_floats += size * (down | up)
        # A star's operator is one row, one column and a diagonal: no product of matrices is needed.
        flat = values.flatten(1)
        diagonal, row, column = self._arms(values.dtype)
        mixed = diagonal[:, None] * flat
        from_server = column[:, None] * flat[:1]
        heard = row[reporters - 1] * (self.agents / self.reporting)
        to_server = (heard @ flat[reporters])[None]
        return (mixed + torch.cat([to_server, from_server])).reshape(values.shape)

    def call(self) -> Tensor:
        """Begin a round between the server and some agents: draw them, int64 `[reporting]`, from 0 on.

        A server's method downloads to them, lets them work, and uploads from them: one round.
        """
        self.rounds += 1
        return torch.randperm(self.agents, generator=self._generator)[: self.reporting]

    def download(self, value: Tensor, agents: Tensor) -> Tensor:
        """Send the server's `value[…]` to the given agents: `[agents, …]`."""
        self._count(self.links[0] == 0, self.links[1], agents, value.numel())
        return value.expand(len(agents), *value.shape)

    def upload(self, values: Tensor, agents: Tensor) -> Tensor:
        """Send the given agents' `values[agents, …]` to the server."""
        self._count(self.links[1] == 0, self.links[0], agents, values[0].numel())
        return values

    def _count(self, direction: Tensor, ends: Tensor, agents: Tensor, size: int) -> None:
        self.link_floats += size * (direction & torch.isin(ends, 1 + agents))

    def _arms(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        operator = self.operator(dtype).to_dense()
        return operator.diagonal(), operator[0, 1:], operator[1:, 0]


@dataclass(frozen=True)
class NetworkConfig:
    """Who talks to whom, and how their messages are weighted."""

    graph: GraphConfig = field(default_factory=GraphConfig)
    """The graph."""
    shift: Shift = "adjacency"
    """The shift operator: adjacency with self-loops normalised by rows, Metropolis–Hastings
    weights, or the normalised Laplacian."""
    reporting: int | None = None
    """How many agents report to the server in a round of a star; all where None."""


def make_network(config: NetworkConfig, agents: int, generator: torch.Generator) -> Network:
    """Build the network that `config` describes, its random graph drawn from `generator`."""
    if config.graph.kind == "star":
        return StarNetwork(agents, config.reporting, generator, config.shift)
    if config.reporting is not None:
        raise ValueError(
            f"reporting: got {config.reporting} with a {config.graph.kind} graph, "
            "but only in a star do some agents report and others not"
        )
    return Network(make_graph(config.graph, agents, generator), config.shift)
