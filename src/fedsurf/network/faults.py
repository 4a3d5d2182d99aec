"""Faults, as networks that wrap a network: stale agents, lost messages, agents that leave and return.

A fault changes the messages of a round, and the network that it wraps exchanges and counts them. So
faults wrap graphs, stars and each other. The faults of a round are a function of the run's seed, the
number of the round, and the link or the agent alone, so different methods have the same faults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.common.checks import (
    check_below_one,
    check_kind,
    check_option,
    check_share,
    check_whole,
)
from fedsurf.common.devices import CPU
from fedsurf.common.randomness import copied, next_seed
from fedsurf.common.streams import SHARED, Streams
from fedsurf.network.config import LostWeights, Wire
from fedsurf.network.facts import Facts
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.star import check_called
from fedsurf.network.wire import Layout


class FaultyNetwork(Network):
    """A network with faults around an `inner` one, whose graph, S, rounds and floats it shares.

    The faults are drawn from a stream of their own, seeded by `generator`: a star calls the same agents
    with and without faults.
    """

    def __init__(self, inner: Network, generator: torch.Generator) -> None:
        check_kind(inner, Network, "inner", "a Network")
        check_kind(generator, torch.Generator, "generator", "a torch.Generator")
        self.inner = inner
        self.server, self.servers, self.ids = inner.server, inner.servers, inner.ids
        self.graph, self.shift, self.links = inner.graph, inner.shift, inner.links
        # Two faults of one kind draw from different streams.
        self._depth = inner._depth_of(type(self)) if isinstance(inner, FaultyNetwork) else 0
        self._seed = next_seed(generator)
        self._begin()

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know."""
        return replace(self.inner.facts, reliable=False)

    @property
    def wire(self) -> Wire:
        """The numbers of messages as they travel in the inner network."""
        return self.inner.wire

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self.inner.rounds

    @property
    def link_floats(self) -> Tensor:
        """Floats sent over each link so far, lost messages included, int64 `[links]`."""
        return self.inner.link_floats

    @property
    def link_bytes(self) -> Tensor:
        """Bytes sent over each link so far, lost messages included, int64 `[links]`."""
        return self.inner.link_bytes

    def streams(self, ids: Tensor) -> Streams:
        """Return the streams that round messages in the inner network."""
        return self.inner.streams(ids)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; `generator` becomes the source of randomness."""
        # A copy, so that the inner network draws the same as without faults.
        self.inner.reset(None if generator is None else copied(generator))
        if generator is not None:
            self._seed = next_seed(generator)
        self._begin()

    def operator(self, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return the S of the inner network, without faults."""
        return self.inner.operator(dtype, device)

    def operators(self) -> list[Tensor]:
        """Return every S that a round of the inner network may have, without faults."""
        return self.inner.operators()

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all agents of the inner network."""
        return self.inner.total(values)

    def collect(self, values: Tensor) -> Tensor:
        """Return the rows of all agents of the inner network."""
        return self.inner.collect(values)

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's value for every agent that lives here."""
        return self.inner.publish(value)

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the text of every process by its name."""
        return self.inner.gather_text(text)

    def state(self) -> dict[str, Tensor]:
        """Return what the next round depends on: the inner network's, and the fault's seed and memory."""
        own = {"seed": torch.tensor(self._seed, device=CPU), **self._memory()}
        return self.inner.state() | {f"{self._name}.{name}": value for name, value in own.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        self.inner.restore(state)
        prefix = f"{self._name}."
        own = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
        self._seed = int(own.pop("seed"))
        self._begin()
        self._remember(own)

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Disturb the messages of a round, and let the inner network exchange them."""
        return self.inner.exchange(values, self._send(sent), self._lose(lost), floats)

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server with the agents whose messages arrive."""
        return self.inner.call(self._lose(lost))

    def attend(self, called: Called) -> Called:
        """Wait for the server's message; see `Network.attend`."""
        return self.inner.attend(called)

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send the server's `value[servers, …]` to called agents: `[called, …]`."""
        return self.inner.download(value, called, among, layout)

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server."""
        return self.inner.upload(values, called, among, layout)

    def _begin(self) -> None:
        """Forget the last run, and draw what is the same in all rounds of the next."""

    def _send(self, sent: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what the neighbours receive of every node in this round, part by part."""
        return sent

    def _lose(self, lost: LostMessages) -> LostMessages:
        """Return the messages that do not arrive in this round."""
        return lost

    def _memory(self) -> dict[str, Tensor]:
        """Return what the fault remembers of earlier rounds, as named tensors."""
        return {}

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        """Put a memory in the place of the fault's own."""

    @property
    def _name(self) -> str:
        return f"{type(self).__name__}-{self._depth}"

    def _draws(self, ids: Tensor, *path: str | int) -> Streams:
        """Return this fault's streams, one for each of some links or nodes."""
        return Streams(self._seed, ids, "fault", self._name, *path)

    def _depth_of(self, kind: type) -> int:
        """Return the number of faults of a kind, from here inwards."""
        deeper = self.inner._depth_of(kind) if isinstance(self.inner, FaultyNetwork) else 0
        return deeper + int(type(self) is kind)

    def _check_weights(self, weights: LostWeights) -> LostWeights:
        check_option(weights, LostWeights, "weights")
        if weights == "renormalised" and self.shift == "laplacian":
            raise ValueError(
                "weights: got 'renormalised' with the shift operator 'laplacian', whose rows are not "
                "averages, but it must be 'kept-by-receiver'"
            )
        return weights


class StaleNetwork(FaultyNetwork):
    """`stale` agents are asynchronous: their neighbours use their message of the round before.

    The stale agents are drawn once a run; a server is never one of them. An agent always uses its own
    current row. In the first round, nothing is late.

    A late message is the last one with the same shapes and type. So an algorithm that sends two
    things of one shape must send them in one message, as gradient tracking does. An upload is late by
    one call: a stale agent sends what it would have sent when it was last called.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> import fedsurf
    >>> from fedsurf.network import StaleNetwork
    >>> network = StaleNetwork(fedsurf.Network(nx.path_graph(2)), 2, fedsurf.generator(0))
    >>> values = torch.tensor([[0.0], [2.0]])
    >>> first, second = network.mix(values), network.mix(values + 10)
    >>> second.flatten()  # each agent averages its own 10 or 12 with the other's old 2 or 0
    tensor([6., 6.])
    """

    def __init__(self, inner: Network, stale: int, generator: torch.Generator) -> None:
        check_kind(inner, Network, "inner", "a Network")
        check_whole(stale, "stale")
        if not 0 <= stale <= inner.agents:
            raise ValueError(
                f"stale: got {stale}, but it must be between 0 and {inner.agents}, the agents"
            )
        self.stale = stale
        super().__init__(inner, generator)

    def _begin(self) -> None:
        # The last messages of the stale agents that live here: part by part, and uploads with a mask.
        self._sent: dict[str, Tensor] = {}
        draws = self._draws(torch.tensor([SHARED], device=CPU), "stale")
        self.stale_agents = draws.choose(self.stale, self.agents)[0]
        agents = self.agent_rows(self.ids)
        self._rows = torch.isin(agents, self.stale_agents).nonzero().flatten()
        self._place = torch.full((len(agents),), -1, device=CPU)
        self._place[self._rows] = torch.arange(len(self._rows), device=CPU)

    def _memory(self) -> dict[str, Tensor]:
        return dict(self._sent)

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        self._sent = dict(memory)

    def _send(self, sent: Sequence[Tensor]) -> Sequence[Tensor]:
        rows, received = self._rows + self.servers, []
        for place, part in enumerate(sent):
            rows = rows.to(part.device)
            kind = _kind(part, f"{place} of {len(sent)}")
            before = self._sent.get(kind)
            self._sent[kind] = part[rows]
            late = None if before is None else before.to(part.device)  # on the CPU, from a file
            received.append(part if late is None else part.index_copy(0, rows, late))
        return received

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server, late ones for the stale agents."""
        check_called(called, self.agents, values)
        place = self._place[called.here]
        late = (place >= 0).nonzero().flatten()
        place = place[late]
        kind = _kind(values, "upload")
        known_kind = f"{kind}, known"
        if kind not in self._sent:
            self._sent[kind] = values.new_zeros(len(self._rows), *values.shape[1:])
            self._sent[known_kind] = torch.zeros(len(self._rows), dtype=torch.bool, device=CPU)
        memory, known = self._sent[kind].to(values.device), self._sent[known_kind]
        on_device = late.to(values.device)
        self._sent[kind] = memory.index_copy(0, place.to(values.device), values[on_device])
        self._sent[known_kind] = known.index_fill(0, place, True)
        late = late[known[place]]
        old = memory[self._place[called.here[late]].to(values.device)]
        values = values.index_copy(0, late.to(values.device), old)
        return self.inner.upload(values, called, among, layout)


def _kind(values: Tensor, place: str) -> str:
    """Name the messages of one place, shape and type."""
    shape = "x".join(map(str, values.shape[1:]))
    return f"{place}, {shape}, {str(values.dtype).removeprefix('torch.')}"


class LossyNetwork(FaultyNetwork):
    """Every directed link loses its message of a round with the probability `loss`, independently.

    Lost messages were sent, and count as floats. An agent that a server draws, but whose download
    or upload is lost, does not take part in that round.

    Parameters
    ----------
    weights : {"renormalised", "kept-by-receiver"}
        The weight of a lost message: the receiver's remaining weights, its own included, are scaled
        to the same sum; or the receiver uses its own value instead.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> import fedsurf
    >>> from fedsurf.network import LossyNetwork
    >>> network = LossyNetwork(fedsurf.Network(nx.cycle_graph(5)), 0.5, fedsurf.generator(0))
    >>> network.mix(torch.eye(5)).sum(1)  # the weights of the messages that arrive are scaled
    tensor([1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        inner: Network,
        loss: float,
        generator: torch.Generator,
        weights: LostWeights = "renormalised",
    ) -> None:
        check_below_one(loss, "loss")
        self.loss = loss
        super().__init__(inner, generator)
        self.weights = self._check_weights(weights)

    def _lose(self, lost: LostMessages) -> LostMessages:
        senders, receivers = self.links
        draws = self._draws(senders * self.nodes + receivers, "lost", self.rounds)
        return lost.with_links(draws.uniform(1)[:, 0] < self.loss, self.weights)


class LeavingNetwork(FaultyNetwork):
    """Before every round, each agent may leave, or return, with these probabilities.

    All are present at the beginning; in the long run an agent is away in leave / (leave + comeback) of
    the rounds. An agent that is away neither sends nor receives, its links count no floats, `mix`
    returns its row unchanged, and a server does not call it (its turn is over). It still takes its
    local steps. A server never leaves. `weights` are those of `LossyNetwork`.
    """

    def __init__(
        self,
        inner: Network,
        leave: float,
        comeback: float,
        generator: torch.Generator,
        weights: LostWeights = "renormalised",
    ) -> None:
        check_share(leave, "leave")
        check_share(comeback, "comeback")
        self.leave, self.comeback = leave, comeback
        super().__init__(inner, generator)
        self.weights = self._check_weights(weights)

    def _begin(self) -> None:
        self.away = torch.zeros(self.nodes, dtype=torch.bool, device=CPU)
        """Nodes that were away in the last round, bool `[nodes]`."""

    def _memory(self) -> dict[str, Tensor]:
        return {"away": self.away}

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        self.away = memory["away"]

    def _lose(self, lost: LostMessages) -> LostMessages:
        drawn = self._draws(torch.arange(self.nodes, device=CPU), "leave", self.rounds).uniform(1)[
            :, 0
        ]
        self.away = torch.where(self.away, drawn >= self.comeback, drawn < self.leave)
        self.away[: int(self.server)] = False
        return lost.with_absent(self.away, self.links, self.weights)
