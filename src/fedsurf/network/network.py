"""A network: a graph in action. `mix` is one communication round; it is counted, link by link."""

from collections.abc import Sequence
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from fedsurf.checks import check_whole
from fedsurf.network.graphs import check_graph
from fedsurf.network.losses import NO_LOSSES, Losses
from fedsurf.network.shift import Shift, shift_operator


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
        self._link_floats += floats if losses.unsent is None else floats * ~losses.unsent
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

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return check_graph(graph)

    def _product(self, operator: Tensor, values: Tensor) -> Tensor:
        flat = values.flatten(1)
        if not operator.is_sparse:
            return _product(operator, flat).reshape(values.shape)
        mixed: Tensor = _SparseProduct.apply(operator, flat)  # type: ignore[no-untyped-call]
        return mixed.reshape(values.shape)

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


class StarNetwork(Network):
    """A server (node 0, without data) and agents, of whom a few report in each round.

    In a round the server receives the rows of `reporting` agents drawn at random, and every agent
    receives the server's. The server's row of S keeps its sum: the weights of the agents who do
    not report go, in equal parts, to those who do. The links are those from the server to agent
    1, 2, …, then those from agent 1, 2, … to the server.

    Parameters
    ----------
    agents : int
        The number of agents, without the server.
    reporting : int or None
        How many of them report in a round (the paper: 10 of 100); all where None.
    generator : torch.Generator
        Draws who reports.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S.
    """

    server = True

    def __init__(
        self,
        agents: int,
        reporting: int | None,
        generator: torch.Generator,
        shift: Shift = "adjacency",
    ) -> None:
        check_whole(agents, "agents")
        if reporting is not None:
            check_whole(reporting, "reporting", " or None for all agents")
        if agents < 1:
            raise ValueError(f"agents: got {agents}, but a network has at least one agent")
        if reporting is not None and not 1 <= reporting <= agents:
            raise ValueError(
                f"reporting: got {reporting}, but it must be between 1 and {agents}, the agents"
            )
        self._reporting = agents if reporting is None else reporting
        super().__init__(nx.star_graph(agents), shift, generator)

    @property
    def reporting(self) -> int:
        """How many agents are heard in a round."""
        return self._reporting

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run: nothing was sent yet, and who reports is drawn from `generator`."""
        super().reset(generator)
        nobody = torch.empty(0, dtype=torch.int64)
        self._unreached, self._unheard = nobody, nobody

    def carry(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], losses: Losses, floats: int
    ) -> list[Tensor]:
        """Let sampled agents send to the server, and the server to all agents."""
        reporters = 1 + torch.randperm(self.agents, generator=self._generator)[: self.reporting]
        self._rounds += 1
        down = self.links[0] == 0
        up = torch.isin(self.links[0], reporters)
        used = down | up if losses.unsent is None else (down | up) & ~losses.unsent
        self._link_floats += floats * used
        return [
            self._carry_between(*part, reporters, losses) for part in zip(values, sent, strict=True)
        ]

    def _carry_between(
        self, values: Tensor, sent: Tensor, reporters: Tensor, losses: Losses
    ) -> Tensor:
        # A star's operator is one row, one column and a diagonal: no product of matrices is needed.
        own, links = self._own_and_links(values.dtype)
        column, row = links.reshape(2, -1)
        heard = row[reporters - 1] * (self.agents / self.reporting)
        if losses is not NO_LOSSES:
            every = torch.zeros_like(row).index_copy(0, reporters - 1, heard)
            own, links = losses.weigh(own, torch.cat([column, every]), self.links[1])
            column, row = links.reshape(2, -1)
            heard = row[reporters - 1]
        flat = sent.flatten(1)
        mixed = own[:, None] * values.flatten(1)
        from_server = column[:, None] * flat[:1]
        to_server = (heard @ flat[reporters])[None]
        return (mixed + torch.cat([to_server, from_server])).reshape(values.shape)

    def summon(self, losses: Losses) -> Tensor:
        """Begin a round between the server and some agents: draw them, int64 `[reporting]`, from 0 on.

        A server's method downloads to them, lets them work, and uploads from them: one round. With
        losses, those are drawn but not returned who are away, or whose download or upload will not
        arrive: they take no part, and are after the round what they were before it. If that leaves
        nobody, the server waits for the first that it has drawn.
        """
        self._rounds += 1
        drawn = torch.randperm(self.agents, generator=self._generator)[: self.reporting]
        lost = torch.zeros(self.links.shape[1], dtype=torch.bool)
        lost_down, lost_up = (lost if losses.lost is None else losses.lost).reshape(2, -1)[:, drawn]
        away = (lost if losses.unsent is None else losses.unsent).reshape(2, -1)[:, drawn].all(0)
        arrive = ~(lost_down | lost_up)
        if not arrive.any():
            arrive[0] = True
        self._unreached = drawn[~arrive & ~away]
        self._unheard = drawn[~arrive & ~away & ~lost_down]
        return drawn[arrive]

    def download(self, value: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the server's `value[…]` to the given agents: `[agents, …]`.

        What it sent to those of this round's whom it did not reach counts, too: to all of them, or to
        those `among`, bool `[agents]`, to whom it has to send this.
        """
        reached = torch.cat([agents, _some(self._unreached, among)])
        self._count(self.links[0] == 0, self.links[1], reached, value.numel())
        return value.expand(len(agents), *value.shape)

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the given agents' `values[agents, …]` to the server.

        What those of this round's sent whom it did not hear counts, too: of all of them, or of those
        `among`, bool `[agents]`, who have to send this.
        """
        sending = torch.cat([agents, _some(self._unheard, among)])
        self._count(self.links[1] == 0, self.links[0], sending, values.shape[1:].numel())
        return values

    def _count(self, direction: Tensor, ends: Tensor, agents: Tensor, size: int) -> None:
        self._link_floats += size * (direction & torch.isin(ends, 1 + agents))


class _SparseProduct(torch.autograd.Function):
    """The product of a sparse matrix and a dense one; its derivative, too, does without a matrix of zeros."""

    @staticmethod
    def forward(operator: Tensor, values: Tensor) -> Tensor:
        return _product(operator, values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.operator = inputs[0]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        return None, _SparseProduct.apply(ctx.operator.t(), slope)  # type: ignore[no-untyped-call]


def _product(operator: Tensor, values: Tensor) -> Tensor:
    # Adding nothing, instead of a plain product: that would make a matrix of zeros to begin with.
    return torch.addmm(values.detach(), operator, values, beta=0)


def _some(agents: Tensor, among: Tensor | None) -> Tensor:
    return agents if among is None else agents[among[agents]]
