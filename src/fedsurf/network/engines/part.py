"""A part of a network: the rows of one process, whose neighbours' rows arrive as messages.

Everybody knows the graph, and so how S, calls and faults of a round come out; rows travel. A part does
with messages what the network does in one process, to the same numbers but for rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.network.facts import Facts
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.star import StarNetwork


class Transport(Protocol):
    """Carries tensors between processes; messages of two processes arrive in the order they were sent."""

    process: int
    """The number of this process."""

    def send(self, to: int, value: Tensor) -> None:
        """Send a tensor to another process."""

    def receive(self, sender: int) -> Tensor:
        """Wait for the next tensor of another process."""


class Part(Network):
    """The rows of one process, as a network.

    Parameters
    ----------
    whole : Network
        The network without faults, made alike in every process; it draws what is random in a round.
    owners : Tensor
        The process in which each node's row lives, int64 `[nodes]`.
    transport : Transport
        Carries the messages.

    Attributes
    ----------
    floats : int
        Those that the rows of this process sent.
    """

    def __init__(self, whole: Network, owners: Tensor, transport: Transport) -> None:
        self.whole, self.server = whole, whole.server
        self.graph, self.shift, self.links = whole.graph, whole.shift, whole.links
        self._owners, self._transport = owners, transport
        self._processes = int(owners.max()) + 1
        self._nodes = (owners == transport.process).nonzero().flatten()
        self.ids = whole.ids[self._nodes]
        self.servers = int((self.ids < 0).sum())
        self._from_here = owners[self.links[0]] == transport.process

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know."""
        facts = self.whole.facts
        return replace(facts, degrees=facts.degrees[self._nodes])

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self.whole.rounds

    @property
    def link_floats(self) -> Tensor:
        """Floats that this process sent over each link so far, int64 `[links]`."""
        return self.whole.link_floats * self._from_here

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; the same generator in every process."""
        self.whole.reset(generator)

    def operator(self, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return the S of the whole network."""
        return self.whole.operator(dtype, device)

    def operators(self) -> list[Tensor]:
        """Return every S that a round of the whole network may have."""
        return self.whole.operators()

    def state(self) -> dict[str, Tensor]:
        """Return what the next round depends on, as named tensors."""
        return self.whole.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        self.whole.restore(state)

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange the messages of one round, and return the rows of S·part that live here."""
        like = torch.empty(0, dtype=values[0].dtype, device=CPU)  # who sends is decided on the host
        own, links, used = self.whole.round_weights(like, lost)
        self.whole.count_round(floats, used)
        # Own values have the diagonal's weight; rows of this process reach each other as sent, too.
        rows = torch.cat([part.flatten(1) for part in sent], 1)
        needed = links != 0 if used is None else (links != 0) & used
        received = self._swap(rows, needed)
        mixed = self._incoming(links, needed).to(rows.device) @ received
        own = own[self._nodes].to(rows.device)
        parts = torch.split(mixed, [part.shape[1:].numel() for part in values], 1)
        return [
            torch.addcmul(part, own[:, None], value.flatten(1)).reshape(value.shape)
            for part, value in zip(parts, values, strict=True)
        ]

    def _swap(self, rows: Tensor, needed: Tensor) -> Tensor:
        """Send rows over the needed links, bool `[links]`; return a row for each node, zero if not heard."""
        senders, receivers = self.links
        owners = self._owners
        received = rows.new_zeros(len(owners), rows.shape[1])
        received[self._nodes] = rows
        here = self._transport.process
        others = [other for other in range(self._processes) if other != here]
        for other in others:
            leaving = senders[needed & self._from_here & (owners[receivers] == other)].unique()
            if len(leaving):
                self._transport.send(other, rows[torch.searchsorted(self._nodes, leaving)])
        for other in others:
            arriving = (owners[senders] == other) & (owners[receivers] == here)
            nodes = senders[needed & arriving].unique()
            if len(nodes):
                received[nodes] = self._transport.receive(other)
        return received

    def _incoming(self, links: Tensor, needed: Tensor) -> Tensor:
        """Return the weights of the messages that arrive here, `[rows, nodes]`."""
        senders, receivers = self.links
        mine = needed & (self._owners[receivers] == self._transport.process)
        rows = torch.searchsorted(self._nodes, receivers[mine])
        weights = links.new_zeros(len(self._nodes), len(self._owners))
        return weights.index_put((rows, senders[mine]), links[mine])

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server; every process knows whom it calls."""
        return Called.of(self.whole.call(lost).agents, self.agent_rows(self.ids))

    def download(self, value: Tensor, called: Called, among: Tensor | None = None) -> Tensor:
        """Send the server's `value[servers, …]` to called agents: a message for each."""
        self._star.count_downloads(called, among, value.shape[1:].numel())
        if self.servers:
            for owner in self._owners[1 + called.agents].tolist():
                if owner != self._transport.process:
                    self._transport.send(owner, value)
        server = int(self._owners[0])
        rows = [value if self.servers else self._transport.receive(server) for _ in called.here]
        return torch.cat(rows) if rows else value.new_zeros(0, *value.shape[1:])

    def upload(self, values: Tensor, called: Called, among: Tensor | None = None) -> Tensor:
        """Send called agents' `values[called, …]` to the server; elsewhere nothing is received."""
        self._star.count_uploads(called, among, values.shape[1:].numel())
        server = int(self._owners[0])
        if not self.servers:
            for row in values:
                self._transport.send(server, row)
            return values[:0]
        own = iter(values)
        owners = self._owners[1 + called.agents].tolist()
        here = self._transport.process
        rows = [next(own) if owner == here else self._transport.receive(owner) for owner in owners]
        return torch.stack(rows) if rows else values[:0]

    @property
    def _star(self) -> StarNetwork:
        if not isinstance(self.whole, StarNetwork):
            raise self._no_server()
        return self.whole

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all processes, `[…]`."""
        return torch.stack(self._gather(values.sum(0))).sum(0)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents, in the order of their ids, in every process."""
        agents = self._owners[int(self.server) :]
        numbers = [(agents == other).nonzero().flatten() for other in range(self._processes)]
        return torch.cat(self._gather(values))[torch.cat(numbers).argsort()]

    def gather_text(self, text: str) -> list[str]:
        """Return what every process says, in the order of their numbers."""
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=CPU)
        return [bytes(said.tolist()).decode() for said in self._gather(own)]

    def _gather(self, values: Tensor) -> list[Tensor]:
        """Return what every process has, in the order of their numbers."""
        here = self._transport.process
        for other in range(self._processes):
            if other != here:
                self._transport.send(other, values)
        return [
            values if other == here else self._transport.receive(other)
            for other in range(self._processes)
        ]

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's `value[servers, …]` for every agent that lives here, `[agents, …]`."""
        here, server = self._transport.process, int(self._owners[0])
        if self.servers:
            for other in range(self._processes):
                if other != here:
                    self._transport.send(other, value)
        else:
            value = self._transport.receive(server)
        return value.expand(len(self.ids) - self.servers, *value.shape[1:])
