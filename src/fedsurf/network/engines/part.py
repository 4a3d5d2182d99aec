"""A part of a network whose messages a transport carries, none of which is ever lost."""

from typing import Protocol

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.network.engines.process import ProcessNetwork
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.wire import Form, Layout


class Transport(Protocol):
    """Carries tensors between processes; messages of two processes arrive in the order they were sent."""

    process: int
    """The number of this process."""

    def send(self, to: int, value: Tensor) -> None:
        """Send a tensor to another process."""

    def receive(self, sender: int) -> Tensor:
        """Wait for the next tensor of another process."""


class Part(ProcessNetwork):
    """The rows of one process, as a network.

    Parameters
    ----------
    whole, owners
        As in `ProcessNetwork`.
    transport : Transport
        Carries the messages.
    """

    def __init__(self, whole: Network, owners: Tensor, transport: Transport) -> None:
        super().__init__(whole, owners, transport.process)
        self._transport = transport

    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:  # noqa: ARG002
        """Send rows over the needed links and wait for those of the neighbours; none is missing."""
        senders, receivers = self.links
        owners = self._owners
        received = self._local_sources(rows)
        here = self.process
        others = [other for other in range(self._processes) if other != here]
        for other in others:
            leaving = senders[needed & self._from_here & (owners[receivers] == other)].unique()
            if len(leaving):
                self._transport.send(other, rows[torch.searchsorted(self._nodes, leaving)])
        for other in others:
            arriving = (owners[senders] == other) & (owners[receivers] == here)
            nodes = senders[needed & arriving].unique()
            if len(nodes):
                received[self._source_place[nodes]] = self._transport.receive(other)
        return received, NOTHING_LOST

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send the server's `value[servers, …]` to called agents: a message for each."""
        server_ids = self.ids[: self.servers]
        value, _ = self._star.send("download", value, server_ids, called, among, layout)
        if self.servers:
            for owner in self._owners[1 + called.agents].tolist():
                if owner != self.process:
                    self._transport.send(owner, value)
        server = int(self._owners[0])
        rows = [value if self.servers else self._transport.receive(server) for _ in called.here]
        return torch.cat(rows) if rows else value.new_zeros(0, *value.shape[1:])

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server; elsewhere nothing is received."""
        senders = self.agent_rows(self.ids)[called.here]
        values, _ = self._star.send("upload", values, senders, called, among, layout)
        server = int(self._owners[0])
        if not self.servers:
            for row in values:
                self._transport.send(server, row)
            return values[:0]
        own = iter(values)
        owners = self._owners[1 + called.agents].tolist()
        here = self.process
        rows = [next(own) if owner == here else self._transport.receive(owner) for owner in owners]
        return torch.stack(rows) if rows else values[:0]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all processes, `[…]`."""
        return torch.stack(self._gather(values.sum(0))).sum(0)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents, in the order of their ids, in every process."""
        agents = self._owners[int(self.server) :]
        numbers = [(agents == other).nonzero().flatten() for other in range(self._processes)]
        return torch.cat(self._gather(values))[torch.cat(numbers).argsort()]

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the text of every process by its name, in the order of their numbers."""
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=CPU)
        found = enumerate(self._gather(own))
        return {f"process {number}": bytes(text.tolist()).decode() for number, text in found}

    def _gather(self, values: Tensor) -> list[Tensor]:
        """Return what every process has, in the order of their numbers."""
        here = self.process
        for other in range(self._processes):
            if other != here:
                self._transport.send(other, values)
        return [
            values if other == here else self._transport.receive(other)
            for other in range(self._processes)
        ]

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's `value[servers, …]` for every agent that lives here, `[agents, …]`."""
        here, server = self.process, int(self._owners[0])
        if self.servers:
            for other in range(self._processes):
                if other != here:
                    self._transport.send(other, value)
        else:
            value = self._transport.receive(server)
        return value.expand(len(self.ids) - self.servers, *value.shape[1:])
