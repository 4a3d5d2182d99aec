"""Faults: networks that wrap a network. Stale agents, lost messages, agents that leave and return.

A fault changes what a round carries and hands it on to the network that it wraps, which mixes and
counts. So faults wrap each other in any order, over graphs and stars alike, and a method cannot tell
a network with faults from one without. What happens in round r depends on nothing but the generator
of the run and r: methods that are given the same generator meet the same faults in the same rounds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsurf.common.checks import check_kind, check_number, check_whole
from fedsurf.common.randomness import copied, next_seed
from fedsurf.common.randomness import generator as seeded
from fedsurf.network.config import FaultConfig, LostWeights
from fedsurf.network.losses import Losses, check_lost_weights
from fedsurf.network.network import Network
from fedsurf.network.star import check_agents, check_rows


class FaultyNetwork(Network):
    """A network around another one, which it disturbs; the kinds of faults derive from it.

    Parameters
    ----------
    inner : Network
        What is disturbed. Its graph, S, rounds and floats are those of this network.
    active : bool
        Whether anything ever goes wrong. If not, every bit is that of the inner network.
    generator : torch.Generator
        Where the faults are drawn from. They have a stream of their own, so that a star calls the
        same agents with faults and without.
    """

    def __init__(self, inner: Network, *, active: bool, generator: torch.Generator) -> None:
        check_kind(inner, Network, "inner", "a Network")
        check_kind(generator, torch.Generator, "generator", "a torch.Generator")
        self.inner = inner
        self.active = active
        self.server = inner.server
        self.graph, self.shift, self.links = inner.graph, inner.shift, inner.links
        # The same fault may wrap a network twice: each draws its own.
        self._depth = inner._depth_of(type(self)) if isinstance(inner, FaultyNetwork) else 0
        # Without faults nothing is taken from the generator, which a star may share.
        self._generator = self._stream(generator) if active else torch.Generator()
        self._begin()

    @property
    def reporting(self) -> int:
        """How many agents are heard in a round without faults."""
        return self.inner.reporting

    @property
    def reliable(self) -> bool:
        """Whether every round is S: the same links, and every message arrives as it was sent."""
        return self.inner.reliable and not self.active

    @property
    def neighbours(self) -> Tensor:
        """How many neighbours each node hears in a round without faults, `[nodes]`."""
        return self.inner.neighbours

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self.inner.rounds

    @property
    def link_floats(self) -> Tensor:
        """The floats that crossed each link so far, or were sent and lost, int64 `[links]`."""
        return self.inner.link_floats

    def _depth_of(self, kind: type) -> int:
        """Return how many faults of a kind there are from here inwards."""
        deeper = self.inner._depth_of(kind) if isinstance(self.inner, FaultyNetwork) else 0
        return deeper + int(type(self) is kind)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run; faults, and what else is random, come from `generator`."""
        if not self.active:
            self.inner.reset(generator)
            return
        if generator is None:
            self.inner.reset()
        else:
            # A copy, so that the inner network draws what it would draw without faults.
            self.inner.reset(copied(generator))
            self._generator = self._stream(generator)
        self._begin()

    def operator(self, dtype: torch.dtype) -> Tensor:
        """Return the S of the inner network, without faults."""
        return self.inner.operator(dtype)

    def operators(self, dtype: torch.dtype) -> list[Tensor]:
        """Return every S that a round of the inner network may have, without faults."""
        return self.inner.operators(dtype)

    def carry(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], losses: Losses, floats: int
    ) -> list[Tensor]:
        """Disturb the round, and let the inner network carry it."""
        if not self.active:
            return self.inner.carry(values, sent, losses, floats)
        return self.inner.carry(values, self._send(sent), self._lose(losses), floats)

    def summon(self, losses: Losses) -> Tensor:
        """Disturb the round, and let the inner network begin it."""
        return self.inner.summon(self._lose(losses) if self.active else losses)

    def download(self, value: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the server's `value[…]` to the given agents: `[agents, …]`."""
        return self.inner.download(value, agents, among)

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the given agents' `values[agents, …]` to the server."""
        return self.inner.upload(values, agents, among)

    def _begin(self) -> None:
        """Forget the run before, and draw what stays the same in this one."""

    def _send(self, sent: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what the neighbours receive of every node in this round, part by part."""
        return sent

    def _lose(self, losses: Losses) -> Losses:
        """Return what does not arrive in this round."""
        return losses

    def _stream(self, generator: torch.Generator) -> torch.Generator:
        return seeded(next_seed(generator), "fault", type(self).__name__, self._depth)

    def _check_weights(self, weights: LostWeights) -> LostWeights:
        check_lost_weights(weights)
        if self.active and weights == "renormalised" and self.shift == "laplacian":
            raise ValueError(
                "weights: got 'renormalised' with the shift operator 'laplacian', whose rows are "
                "no averages to be renormalised: use 'kept-by-receiver'"
            )
        return weights


class StaleNetwork(FaultyNetwork):
    """Some agents are asynchronous: their neighbours use what these sent in the round before.

    Who they are is drawn once a run; a server is never among them. An agent always uses its own
    current row. In its first round there is nothing older, and a stale agent sends what it has.

    Messages of different shapes are remembered apart: a stale agent sends what it sent in the last
    round that carried rows of the same shape and type. So the weights are late from their second
    round on, whatever else was averaged before them. Two things of one shape in turn would be taken
    for each other: send them in one message, as gradient tracking does. Parts of a message are
    remembered apart by their place in it, and by how many there are.

    Through `upload`, a stale agent sends what it would have sent when it was last called.

    Parameters
    ----------
    inner : Network
        What is disturbed.
    stale : int
        How many agents are stale, the paper's n_asyn.
    generator : torch.Generator
        Draws them.
    """

    def __init__(self, inner: Network, stale: int, generator: torch.Generator) -> None:
        check_kind(inner, Network, "inner", "a Network")
        check_whole(stale, "stale")
        if not 0 <= stale <= inner.agents:
            raise ValueError(
                f"stale: got {stale}, but it must be between 0 and {inner.agents}, the agents"
            )
        self.stale = stale
        super().__init__(inner, active=stale > 0, generator=generator)

    def _begin(self) -> None:
        self._sent: dict[tuple[tuple[int, int], torch.Size, torch.dtype], Tensor] = {}
        self._uploaded: dict[tuple[torch.Size, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.stale_agents = torch.randperm(self.agents, generator=self._generator)[: self.stale]
        self._place = torch.full((self.agents,), -1)
        self._place[self.stale_agents] = torch.arange(self.stale)

    def _send(self, sent: Sequence[Tensor]) -> Sequence[Tensor]:
        return [self._late(part, (place, len(sent))) for place, part in enumerate(sent)]

    def _late(self, sent: Tensor, place: tuple[int, int]) -> Tensor:
        rows = self.stale_agents + int(self.server)
        kind = (place, sent.shape[1:], sent.dtype)
        current = sent[rows]
        before = self._sent.get(kind)
        self._sent[kind] = current
        return sent if before is None else sent.index_copy(0, rows, before)

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the given agents' `values[agents, …]` to the server; the stale ones' are late."""
        if not self.active:
            return self.inner.upload(values, agents, among)
        check_agents(agents, self.agents)
        check_rows(values, agents)
        place = self._place[agents]
        late = (place >= 0).nonzero().flatten()
        place = place[late]
        kind = (values.shape[1:], values.dtype)
        if kind not in self._uploaded:
            nothing = values.new_zeros(self.stale, *values.shape[1:])
            self._uploaded[kind] = nothing, torch.zeros(self.stale, dtype=torch.bool)
        memory, known = self._uploaded[kind]
        self._uploaded[kind] = (
            memory.index_copy(0, place, values[late]),
            known.index_fill(0, place, True),
        )
        late = late[known[place]]
        sent = values.index_copy(0, late, memory[self._place[agents[late]]])
        return self.inner.upload(sent, agents, among)


class LossyNetwork(FaultyNetwork):
    """Every directed link loses its message of a round with the same probability, independently.

    Lost messages were sent, and count as floats. An agent that a server draws, but whose download
    or upload is lost, takes no part in that round.

    Parameters
    ----------
    inner : Network
        What is disturbed.
    loss : float
        The probability, at least 0 and below 1.
    weights : {"renormalised", "kept-by-receiver"}
        What becomes of the weight of a lost message: the receiver's remaining weights, its own
        among them, are scaled to the old sum; or the receiver puts its own value in its place.
    generator : torch.Generator
        Draws what is lost.
    """

    def __init__(
        self,
        inner: Network,
        loss: float,
        generator: torch.Generator,
        weights: LostWeights = "renormalised",
    ) -> None:
        check_number(loss, "loss")
        if not 0 <= loss < 1:
            raise ValueError(f"loss: got {loss}, but it must be at least 0 and below 1")
        self.loss = loss
        super().__init__(inner, active=loss > 0, generator=generator)
        self.weights = self._check_weights(weights)

    def _lose(self, losses: Losses) -> Losses:
        lost = torch.rand(self.links.shape[1], generator=self._generator) < self.loss
        return losses.of_links(lost, self.weights)


class LeavingNetwork(FaultyNetwork):
    """Agents leave and return: before every round, each of them may do so, independently.

    All are there at the beginning. In the long run an agent is away in leave / (leave + comeback) of
    the rounds. Meanwhile it neither sends nor receives, its links count no floats, its row comes
    back from `mix` as it was, and a server does not call it (if it was its turn, it counts as called).
    It knows nothing of all this: local steps it takes as ever. A server itself never leaves.

    Parameters
    ----------
    inner : Network
        What is disturbed.
    leave : float
        The probability with which an agent that is there leaves before a round, between 0 and 1.
    comeback : float
        The probability with which one that is away returns, between 0 and 1.
    weights : {"renormalised", "kept-by-receiver"}
        What becomes of the weights of its messages, as in `LossyNetwork`.
    generator : torch.Generator
        Draws who leaves and who returns.
    """

    def __init__(
        self,
        inner: Network,
        leave: float,
        comeback: float,
        generator: torch.Generator,
        weights: LostWeights = "renormalised",
    ) -> None:
        for name, chance in (("leave", leave), ("comeback", comeback)):
            check_number(chance, name)
            if not 0 <= chance <= 1:
                raise ValueError(f"{name}: got {chance}, but it must be between 0 and 1")
        self.leave, self.comeback = leave, comeback
        super().__init__(inner, active=leave > 0, generator=generator)
        self.weights = self._check_weights(weights)

    def _begin(self) -> None:
        self.away = torch.zeros(self.nodes, dtype=torch.bool)
        """Who was away in the last round, bool `[nodes]`."""

    def _lose(self, losses: Losses) -> Losses:
        drawn = torch.rand(self.nodes, generator=self._generator)
        self.away = torch.where(self.away, drawn >= self.comeback, drawn < self.leave)
        self.away[: int(self.server)] = False
        return losses.of_nodes(self.away, self.links, self.weights)


def with_faults(network: Network, config: FaultConfig, generator: torch.Generator) -> Network:
    """Wrap a network in the faults that `config` names; without any, return the network itself."""
    check_lost_weights(config.weights)
    stale = StaleNetwork(network, config.stale, generator)
    lossy = LossyNetwork(stale if stale.active else network, config.loss, generator, config.weights)
    leaving = LeavingNetwork(
        lossy if lossy.active else lossy.inner,
        config.leave,
        config.comeback,
        generator,
        config.weights,
    )
    return leaving if leaving.active else leaving.inner
