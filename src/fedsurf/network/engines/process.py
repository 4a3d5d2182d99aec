"""The rows of one process as a network, whatever carries its messages.

Everybody knows the graph, and so how S, calls and faults of a round come out; rows travel. A process does
with messages what the network does in one process, to the same numbers but for rounding.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.network.config import Wire
from fedsurf.network.facts import Facts
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.star import StarNetwork
from fedsurf.network.wire import Form


class ProcessNetwork(Network):
    """The rows of one process; an engine adds how messages travel.

    Parameters
    ----------
    whole : Network
        The network without faults, made alike in every process; it draws what is random in a round.
    owners : Tensor
        The process in which each node's row lives, int64 `[nodes]`.
    process : int
        The number of this process.

    Attributes
    ----------
    floats, bytes : int
        Those that the rows of this process sent; a message for each link.
    """

    def __init__(self, whole: Network, owners: Tensor, process: int) -> None:
        self.whole, self.server, self.process = whole, whole.server, process
        self.graph, self.shift, self.links = whole.graph, whole.shift, whole.links
        self._owners = owners
        self._processes = int(owners.max()) + 1
        self._nodes = (owners == process).nonzero().flatten()
        self.ids = whole.ids[self._nodes]
        self.servers = int((self.ids < 0).sum())
        self._from_here = owners[self.links[0]] == process

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know."""
        facts = self.whole.facts
        return replace(facts, degrees=facts.degrees[self._nodes])

    @property
    def wire(self) -> Wire:
        """The numbers of messages as they travel."""
        return self.whole.wire

    @property
    def rounds(self) -> int:
        """Communication rounds so far."""
        return self.whole.rounds

    @property
    def link_floats(self) -> Tensor:
        """Floats that this process sent over each link so far, int64 `[links]`."""
        return self.whole.link_floats * self._from_here

    @property
    def link_bytes(self) -> Tensor:
        """Bytes that this process sent over each link so far, int64 `[links]`."""
        return self.whole.link_bytes * self._from_here

    def streams(self, ids: Tensor) -> Streams:
        """Return the streams that round messages, the same in every process."""
        return self.whole.streams(ids)

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
        # Own values have the diagonal's weight; rows of this process reach each other as sent, too.
        rows = torch.cat([part.flatten(1) for part in sent], 1)
        needed = links != 0 if used is None else (links != 0) & used
        form = self.form(values, floats)
        received, missing = self._swap(rows, needed, form)
        own, links = missing.weigh(own, links, self.links[1])
        self.whole.count_round(floats, used, form)
        mixed = self._incoming(links, needed).to(rows.device) @ received
        own = own[self._nodes].to(rows.device)
        parts = torch.split(mixed, [part.shape[1:].numel() for part in values], 1)
        return [
            torch.addcmul(part, own[:, None], value.flatten(1)).reshape(value.shape)
            for part, value in zip(parts, values, strict=True)
        ]

    @abstractmethod
    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:
        """Send rows over the needed links, bool `[links]`, and wait for those of the neighbours.

        The rows are rounded already, and travel in this form.

        Return a row for each node, zero if not heard, and the needed messages that did not arrive.
        """

    def _incoming(self, links: Tensor, needed: Tensor) -> Tensor:
        """Return the weights of the messages that arrive here, `[rows, nodes]`."""
        senders, receivers = self.links
        mine = needed & (self._owners[receivers] == self.process)
        rows = torch.searchsorted(self._nodes, receivers[mine])
        weights = links.new_zeros(len(self._nodes), len(self._owners))
        return weights.index_put((rows, senders[mine]), links[mine])

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server; every process knows whom it calls."""
        return Called.of(self.whole.call(lost).agents, self.agent_rows(self.ids))

    @property
    def _star(self) -> StarNetwork:
        if not isinstance(self.whole, StarNetwork):
            raise self._no_server()
        return self.whole
