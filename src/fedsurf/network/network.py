"""A network: a graph on which agents exchange messages in rounds, which are counted link by link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_option
from fedsurf.common.devices import CPU
from fedsurf.common.randomness import next_seed
from fedsurf.common.streams import Streams
from fedsurf.network.config import Shift, Wire
from fedsurf.network.facts import Facts, Spectrum
from fedsurf.network.graphs import check_graph
from fedsurf.network.operators import (
    MAX_DENSE_NODES,
    NOTHING_LOST,
    LostMessages,
    product,
    shift_weights,
)
from fedsurf.network.wire import Form, Layout, Parts, Sections, form_of

SERVER = -1
"""The id of a server's row."""
Rows = TypeVar("Rows", Tensor, Streams)


@dataclass(frozen=True)
class Called:
    """The agents that a server calls in a round; everybody knows all of them."""

    agents: Tensor
    """The ids of all of them, ascending, int64 `[all called]`."""
    here: Tensor
    """The rows, among the agents that live here, of those that do, int64 `[called]`, in the same order."""

    def __len__(self) -> int:
        """Return the number of all called agents."""
        return len(self.agents)

    def only(self, mask: Tensor, ids: Tensor) -> "Called":
        """Return those that a mask of all agents names; `ids` are the agents that live here."""
        return Called.of(self.agents[mask[self.agents]], ids)

    @staticmethod
    def of(agents: Tensor, ids: Tensor) -> "Called":
        """Return some agents as called ones; `ids` are the agents that live here, in ascending order."""
        if not len(ids):
            return Called(agents, agents[:0])
        place = torch.searchsorted(ids, agents).clamp(max=len(ids) - 1)
        return Called(agents, place[ids[place] == agents])


class Network:
    """Agents linked by a graph, who exchange messages with their neighbours in rounds.

    All rows live in this process: the network is simulated. Every round of `mix` and `mix_parts` goes
    through `exchange`, and so do faults that wrap the network. A custom network overrides `exchange`, not
    `mix`.

    Parameters
    ----------
    graph : networkx.Graph
        Connected and undirected; its nodes become the agents 0, 1, … in their order.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S; see `NetworkConfig`.
    generator : torch.Generator or None
        For networks that are random, such as a star: the seed of their draws.
    wire : {"float32", "float16", "int8"}
        The numbers of messages as they travel; see `fedsurf.network.wire`. An agent's own values are never
        rounded, and float32 leaves all as they are.

    Attributes
    ----------
    ids : Tensor
        The ids of the rows that live here, int64 `[rows]`: the numbers of agents, and `SERVER` (−1) for a
        server, whose row is the first.
    servers : int
        Number of servers among these rows, 0 or 1.
    links : Tensor
        Every directed link of the whole network as (from, to), int64 `[2, links]`.

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
    """Whether the network has a server that holds no data, node 0 of its graph."""

    def __init__(
        self,
        graph: nx.Graph,
        shift: Shift = "adjacency",
        generator: torch.Generator | None = None,
        *,
        wire: Wire = "float32",
    ) -> None:
        check_option(wire, Wire, "wire")
        self.graph, self.shift = self._checked(graph), shift
        self._wire, self._seed = wire, 0
        edges = (
            torch.tensor(sorted(self.graph.edges), dtype=torch.int64, device=CPU).reshape(-1, 2).T
        )
        self.links = torch.cat([edges, edges.flip(0)], 1)
        self.servers = int(self.server)
        self.ids = torch.arange(self.nodes, device=CPU) - self.servers
        # S by its diagonal and its links, and as a matrix, in every floating type and on every device.
        kind = (torch.float64, torch.device("cpu"))
        self._weights = {kind: shift_weights(self.links, self.nodes, shift)}
        self._operators: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        # Entries of the matrix are sorted by receiver, then by sender.
        places = torch.cat(
            [torch.arange(self.nodes, device=CPU).expand(2, -1), self.links.flip(0)], 1
        )
        self._by_row = (places[0] * self.nodes + places[1]).argsort()
        self._places = places[:, self._by_row]
        few_links = places.shape[1] < self.nodes**2 / 10
        self._sparse = self.nodes > MAX_DENSE_NODES and few_links
        self.reset(generator)

    @property
    def nodes(self) -> int:
        """Number of nodes of the whole network, a server included."""
        return len(self.graph)

    @property
    def agents(self) -> int:
        """Number of nodes of the whole network that hold data."""
        return self.nodes - int(self.server)

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know."""
        return Facts(
            agents=self.agents,
            shift=self.shift,
            degrees=torch.bincount(self.links[1], minlength=self.nodes),
            reporting=self.agents,
            reliable=True,
            spectrum=Spectrum(self.operators),
        )

    @property
    def wire(self) -> Wire:
        """The numbers of messages as they travel."""
        return self._wire

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self._rounds

    @property
    def link_floats(self) -> Tensor:
        """Floats sent over each link so far, int64 `[links]`."""
        return self._link_floats + self._everywhere[0]

    @property
    def floats(self) -> int:
        """Floats sent over all links so far."""
        return int(self.link_floats.sum())

    @property
    def link_bytes(self) -> Tensor:
        """Bytes of the messages sent over each link so far, headers included, int64 `[links]`."""
        return self._link_bytes + self._everywhere[1]

    @property
    def bytes(self) -> int:
        """Bytes of the messages sent over all links so far."""
        return int(self.link_bytes.sum())

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; `generator` seeds the draws of the run.

        What is random in a round is a function of that seed and the number of the round alone.
        """
        if generator is not None:
            self._seed = next_seed(generator)
        self._rounds = 0
        self._link_floats = torch.zeros(self.links.shape[1], dtype=torch.int64, device=CPU)
        self._link_bytes = torch.zeros_like(self._link_floats)
        self._everywhere = 0, 0  # floats and bytes of rounds on all links

    def operator(self, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return S in the given floating type on a device, `[nodes, nodes]`, dense or sparse."""
        if (dtype, device) not in self._operators:
            self._operators[dtype, device] = self._matrix(*self._own_and_links(dtype, device))
        return self._operators[dtype, device]

    def operators(self) -> list[Tensor]:
        """Return every S that a round without faults may have, in float64."""
        return [self.operator(torch.float64)]

    def mix(self, values: Tensor, floats: int | None = None) -> Tensor:
        """Communicate for one round: return the rows of S·values that live here, for `values[rows, …]`.

        A message counts as one float for each number of a row, or as `floats` if the numbers are
        sent in fewer bits.
        """
        return self._communicate([values], floats)[0]

    def mix_parts(self, *parts: Tensor, layout: Layout | None = None) -> list[Tensor]:
        """Communicate for one round with messages of several parts: return S·part for each `[rows, …]`.

        `layout` are the sections of the message that are rounded apart, if the wire is not float32; by
        default the parts.
        """
        return self._communicate(parts, layout=layout)

    def _communicate(
        self, parts: Sequence[Tensor], floats: int | None = None, layout: Layout | None = None
    ) -> list[Tensor]:
        rows = self.ids.shape[0]
        for part in parts:
            if part.dim() < 2 or part.shape[0] != rows:
                raise ValueError(
                    f"values: got shape {list(part.shape)}, but it must be [rows, …] with {rows} rows"
                )
            if not part.is_floating_point():
                raise TypeError(f"values: got {part.dtype}, but it must be a floating type")
        parts = Parts(parts, layout)
        form = self.form(parts, floats)
        sent: Sequence[Tensor] = parts
        if form.wire != "float32":
            sent = form.rounded_parts(parts, self.streams(self.ids).at("rows", self.rounds))
        return self.exchange(parts, sent, NOTHING_LOST, form.numbers)

    def form(self, values: Sequence[Tensor], floats: int | None = None) -> Form:
        """Return the form in which the parts `values` of a message travel, each `[rows, …]`.

        Numbers that their algorithm sends in fewer bits, as `floats`, are not rounded again.
        """
        form = form_of(self.wire, Parts(values).layout)
        if floats is None or floats == form.numbers:
            return form
        return form_of("float32", (Sections(1, floats),))

    def streams(self, ids: Tensor) -> Streams:
        """Return the streams that round the messages of some nodes in this run."""
        return Streams(self._seed, ids, "wire")

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange the messages of one round, and return the rows of S·part for each part.

        Parameters
        ----------
        values : sequence of Tensor
            The rows' own values, the parts of a message, each `[rows, …]`; `Parts` with their layout, or
            any sequence.
        sent : sequence of Tensor
            The values as their neighbours receive them; the same tensors if nothing differs.
        floats : int
            Number of floats of a message.
        """
        used = None if lost.unsent is None else ~lost.unsent
        self.count_round(floats, used, self.form(values, floats))
        return [self._exchange_part(*part, lost) for part in zip(values, sent, strict=True)]

    def _exchange_part(self, values: Tensor, sent: Tensor, lost: LostMessages) -> Tensor:
        if sent is values and lost is NOTHING_LOST:
            return product(self.operator(values.dtype, values.device), values)
        own, links, _ = self.round_weights(values, lost)
        if sent is values:
            return product(self._matrix(own, links), values)
        mixed = product(self._matrix(torch.zeros_like(own), links), sent)
        return torch.addcmul(mixed, own.reshape(-1, *[1] * (values.dim() - 1)), values)

    def round_weights(
        self, like: Tensor, lost: LostMessages
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the weights of the next round of `exchange`, on the device of `like`.

        The weights of the nodes' own values, `[nodes]`; those of the messages, `[links]`; and the links on
        which messages are sent, bool `[links]`, or None for all.
        """
        own, links = self._own_and_links(like.dtype, like.device)
        used = None if lost.unsent is None else ~lost.unsent
        return *lost.weigh(own, links, self.links[1]), used

    def count_round(
        self, floats: int, used: Tensor | None = None, form: Form | None = None
    ) -> None:
        """Count a round with messages of a form on the links that were used, bool `[links]`, or on all."""
        self._rounds += 1
        self._count(floats, form or form_of("float32", (Sections(1, floats),)), used)

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:  # noqa: ARG002
        """Begin a round of a server; see `StarNetwork`."""
        raise self._no_server()

    def attend(self, called: Called) -> Called:
        """Wait for the server's message of this round; return the called agents that it still waits for.

        On real machines it may have gone on without those that live here.
        """
        return called

    def download(
        self,
        value: Tensor,  # noqa: ARG002
        called: Called,  # noqa: ARG002
        among: Tensor | None = None,  # noqa: ARG002
        layout: Layout | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Send the server's `value[servers, …]` to called agents; see `StarNetwork`."""
        raise self._no_server()

    def upload(
        self,
        values: Tensor,  # noqa: ARG002
        called: Called,  # noqa: ARG002
        among: Tensor | None = None,  # noqa: ARG002
        layout: Layout | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server; see `StarNetwork`."""
        raise self._no_server()

    def agent_rows(self, values: Rows) -> Rows:
        """Return the agents' rows of `values[rows, …]`: all but a server's."""
        return values[self.servers :] if self.servers else values

    def with_server(self, values: Tensor, server: Tensor | None = None) -> Tensor:
        """Put the server's row, if it lives here, above `values[agents, …]`: `server[servers, …]`, or zero."""
        if not self.servers:
            return values
        first = torch.zeros_like(values[:1]) if server is None else server
        if not len(values):
            first = values.new_zeros(1, *values.shape[1:]) if server is None else server
        return torch.cat([first, values])

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all processes, `[…]`.

        For evaluation, and for facts at set-up; it is not counted. Each process may give any rows.
        """
        return values.sum(0)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents in the order of their ids; not counted."""
        return values

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's `value[servers, …]` for every agent here, `[agents, …]`; not counted."""
        return value.expand(len(self.ids) - self.servers, *value.shape[1:])

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the text of every process by its name, in the order of their numbers; not counted."""
        return {"this process": text}

    def catch_up(self) -> int:
        """Return the round that comes next; on real machines, after skipping those that this process missed."""
        return self.rounds

    def behind(self) -> bool:
        """Whether most others are in a later round, on real machines; then they answer no evaluation."""
        return False

    def rejoin(self) -> int:
        """Return the round that comes next in a run that goes on from a file, which may be a later one."""
        return self.rounds

    def state(self) -> dict[str, Tensor]:
        """Return what the next round depends on, apart from how the network was made, as named tensors."""
        return {
            "seed": torch.tensor(self._seed, device=CPU),
            "rounds": torch.tensor(self._rounds, device=CPU),
            "link_floats": self.link_floats,
            "link_bytes": self.link_bytes,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        self._seed, self._rounds = int(state["seed"]), int(state["rounds"])
        self._link_floats = state["link_floats"].clone()
        self._link_bytes = state["link_bytes"].clone()
        self._everywhere = 0, 0

    def _count(self, floats: int, form: Form, used: Tensor | None = None) -> None:
        """Count a message on the links that were used, bool `[links]`, or on all."""
        if used is None:
            floats_so_far, bytes_so_far = self._everywhere
            self._everywhere = floats_so_far + floats, bytes_so_far + form.message_bytes
            return
        # Copies, so that earlier references to the counts keep their values.
        self._link_floats = self._link_floats + floats * used
        self._link_bytes = self._link_bytes + form.message_bytes * used

    def _checked(self, graph: nx.Graph) -> nx.Graph:
        return check_graph(graph)

    def _own_and_links(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the diagonal of S, `[nodes]`, and its entries link by link, `[links]`."""
        if (dtype, device) not in self._weights:
            own, links = self._weights[torch.float64, CPU]
            self._weights[dtype, device] = own.to(device, dtype), links.to(device, dtype)
        return self._weights[dtype, device]

    def _matrix(self, own: Tensor, links: Tensor) -> Tensor:
        """Return the matrix with these entries, dense or sparse."""
        size, entries = (self.nodes, self.nodes), torch.cat([own, links])[self._by_row]
        places = self._places.to(links.device)
        if not self._sparse:
            return links.new_zeros(size).index_put(tuple(places), entries)
        return torch.sparse_coo_tensor(
            places,
            entries,
            size,
            device=links.device,
            is_coalesced=True,
            check_invariants=False,
        )

    def _no_server(self) -> ValueError:
        return ValueError(
            f"network: got a {type(self).__name__} without a server, "
            "but only a server calls agents: use a StarNetwork"
        )
