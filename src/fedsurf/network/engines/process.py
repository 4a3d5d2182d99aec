"""The rows of one process as a network, whatever carries its messages.

Everybody knows the graph, and so how S, calls and faults of a round come out; rows travel. A process does
with messages what the network does in one process, to the same numbers but for rounding.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_
from typing import Generic, TypeVar

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

Result = TypeVar("Result")


class Latest(Generic[Result]):
    """A function of tensors that keeps its last result, and returns it for the same tensors.

    In most networks all rounds have the same weights. Tensors are told apart by identity; they must not be
    changed in place.
    """

    def __init__(self, work: Callable[..., Result]) -> None:
        self._work = work
        self._last: tuple[tuple[Tensor | None, ...], Result] | None = None

    def __call__(self, *values: Tensor | None) -> Result:
        """Return `work(*values)`."""
        last = self._last
        if last is None or not all(map(is_, last[0], values)):
            self._last = last = values, self._work(*values)
        return last[1]


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
        senders, receivers = self.links
        self._from_here = owners[senders] == process
        # The nodes whose rows mix with those here: first own ones, if they are linked to each other.
        remote = senders[(owners[receivers] == process) & ~self._from_here].unique()
        remote = remote[owners[remote].argsort(stable=True)]
        linked = bool((self._from_here & (owners[receivers] == process)).any())
        self._local = self._nodes.shape[0] if linked else 0
        self._sources = torch.cat([self._nodes[: self._local], remote])
        self._source_place = torch.full_like(owners, -1)
        self._source_place[self._sources] = torch.arange(self._sources.shape[0], device=CPU)
        self._like = torch.empty(0, device=CPU)  # who sends is decided on the host
        self._needed, self._weights_here = Latest(_needed), Latest(self._weigh)

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
        kind = values[0].dtype
        if self._like.dtype != kind:
            self._like = self._like.to(kind)
        own, links, used = self.whole.round_weights(self._like, lost)
        # Own values have the diagonal's weight; rows of this process reach each other as sent, too.
        flat = [part if part.dim() == 2 else part.flatten(1) for part in sent]
        rows = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        needed = self._needed(links, used)
        form = self.form(values, floats)
        received, missing = self._swap(rows, needed, form)
        own, links = missing.weigh(own, links, self.links[1])
        self.whole.count_round(floats, used, form)
        own, incoming = self._weights_here(own, links, needed)
        if rows.device != CPU:
            own, incoming = own.to(rows.device), incoming.to(rows.device)
        mixed = incoming @ received
        if len(values) == 1 and values[0].dim() == 2:
            return [torch.addcmul(mixed, own, values[0])]
        parts = torch.split(mixed, [part.shape[1:].numel() for part in values], 1)
        return [
            torch.addcmul(part, own, value.flatten(1)).reshape(value.shape)
            for part, value in zip(parts, values, strict=True)
        ]

    @abstractmethod
    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:
        """Send rows over the needed links, bool `[links]`, and wait for those of the neighbours.

        The rows are rounded already, and travel in this form.

        Return a row for each of `_sources`, zero if not heard, and the needed messages that did not arrive.
        """

    def _local_sources(self, rows: Tensor) -> Tensor:
        """Return a row for each of `_sources`, zero but for those that live here."""
        received = rows.new_zeros(self._sources.shape[0], rows.shape[1])
        received[: self._local] = rows[: self._local]
        return received

    def _weigh(self, own: Tensor, links: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the rows' own values, `[rows, 1]`, and of their sources, `[rows, sources]`."""
        senders, receivers = self.links
        mine = needed & (self._owners[receivers] == self.process)
        rows = torch.searchsorted(self._nodes, receivers[mine])
        weights = links.new_zeros(self._nodes.shape[0], self._sources.shape[0])
        incoming = weights.index_put((rows, self._source_place[senders[mine]]), links[mine])
        return own[self._nodes, None], incoming

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server; every process knows whom it calls."""
        return Called.of(self.whole.call(lost).agents, self.agent_rows(self.ids))

    @property
    def _star(self) -> StarNetwork:
        if not isinstance(self.whole, StarNetwork):
            raise self._no_server()
        return self.whole


def _needed(links: Tensor, used: Tensor | None) -> Tensor:
    """Return which links have weight and are used, bool `[links]`."""
    return links != 0 if used is None else (links != 0) & used
