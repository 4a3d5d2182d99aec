"""The server's side of a star: it keeps what it has for an agent until it needs something of that agent."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from fedsurf.common.checks import check_positive
from fedsurf.common.devices import CPU
from fedsurf.common.text import listed
from fedsurf.network.engines.flower.parcels import (
    AWAY,
    Courier,
    Item,
    Parcel,
    Single,
    packed,
    packed_text,
    unpacked,
    unpacked_text,
)
from fedsurf.network.engines.flower.side import Side
from fedsurf.network.engines.messages import Kind, RefusedError
from fedsurf.network.network import Called
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.star import StarNetwork
from fedsurf.network.wire import Form, Layout

Read = TypeVar("Read")

MAX_PENDING_BYTES = 2**28
"""What the server keeps for an agent that does not answer; with more, the agent is left out."""
PAUSE = 0.5
"""Seconds after which it asks again where no called agent answered."""


class ServerSide(Side):
    """The server's row.

    Parameters
    ----------
    star : StarNetwork
        As at the agents.
    courier : Courier
        Carries the parcels.
    deadline : float
        Seconds that the server waits for the replies of a round; later ones are left out.
    patience : float
        Seconds that it waits where it cannot go on: before training, and where no called agent answers.
    kind : {"float32", "float64"}
        As at the agents.

    Attributes
    ----------
    missing : list of (int, str, str)
        The round, the agent and the reason of every reply that the server went on without.
    bytes_sent, bytes_received : dict of str to int
        Bytes of the numbers sent to and received from each agent, by name.
    """

    def __init__(
        self,
        star: StarNetwork,
        courier: Courier,
        *,
        deadline: float = 60.0,
        patience: float = 600.0,
        kind: Single = "float32",
    ) -> None:
        super().__init__(star, 0, kind)
        check_positive(deadline, "deadline")
        check_positive(patience, "patience")
        self.deadline, self.patience = deadline, patience
        self.missing: list[tuple[int, str, str]] = []
        self._courier = courier
        self._pending: dict[int, dict[str, Item]] = {one: {} for one in range(star.agents)}
        self._left_out: set[int] = set()
        self._sent, self._received = Counter[int](), Counter[int]()

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Bytes of the numbers sent to each agent, by name."""
        return {self._name(one): self._sent[one] for one in self._pending}

    @property
    def bytes_received(self) -> dict[str, int]:
        """Bytes of the numbers received from each agent, by name."""
        return {self._name(one): self._received[one] for one in self._pending}

    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:
        """Send the server's row to the agents, and wait for those of the agents that report."""
        senders, receivers = self.links
        needed, place = needed.to(senders.device), self._place(Kind.ROWS)
        self._put(
            place, (receivers[needed & (senders == 0)] - 1).tolist(), self._packed(rows, form)
        )
        reporting = needed & (receivers == 0)
        agents, shape = (senders[reporting] - 1).tolist(), (1, rows.shape[1])
        found = self._ask(place, agents, lambda item: unpacked(item, shape, rows, form))
        received = self._local_sources(rows)
        for agent, row in found.items():
            received[self._source_place[1 + agent]] = row[0]
        if len(found) == len(agents):
            return received, NOTHING_LOST
        here = torch.tensor([1 + agent for agent in found], dtype=senders.dtype, device=CPU)
        lost = reporting & ~torch.isin(senders, here)
        # Rows of a Laplacian are no averages, and cannot be scaled to the same sum.
        if self.shift == "laplacian":
            return received, LostMessages(kept=lost)
        return received, LostMessages(renormalised=lost)

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Keep the server's `value[1, …]` for the called agents; no agent's row lives here."""
        value, form = self._star.send("download", value, self.ids, called, among, layout)
        item, place = self._packed(value.flatten(1), form), self._place(Kind.DOWNLOAD)
        if not item.shape[0]:
            raise ValueError(f"training diverged: the model of round {self.rounds} is not finite")
        self._put(place, called.agents.tolist(), item)
        return value[:0]

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Wait for the called agents' replies, `[called, …]`; return those that arrive in time."""
        shape = values.shape[1:]
        _, form = self._star.send("upload", values, self.ids[:0], called, among, layout)
        agents, size, place = called.agents.tolist(), (1, shape.numel()), self._place(Kind.UPLOAD)
        if not agents:
            return values
        end = time.monotonic() + self.patience
        while not (
            found := self._ask(place, agents, lambda item: unpacked(item, size, values, form))
        ):
            if time.monotonic() > end or self._left_out.issuperset(agents):
                last = {f"{name}: {why}" for _, name, why in self.missing[-len(agents) :]}
                raise ConnectionError(
                    f"no called agent answered in round {self.rounds} ({listed(sorted(last))})"
                )
            del self.missing[-len(agents) :]
            time.sleep(PAUSE)
        return torch.cat([found[one] for one in sorted(found)]).reshape(-1, *shape)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all that answer, `[…]`."""
        own, place = values.sum(0), self._place(Kind.ANSWER)
        flat = own.reshape(1, -1)
        size = (1, flat.shape[1])
        found = self._ask(place, self._pending, lambda item: unpacked(item, size, flat))
        total = torch.cat([flat, *[found[one] for one in sorted(found)]]).sum(0, keepdim=True)
        self._put(place, self._pending, packed(total))
        return total.reshape(own.shape)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents in the order of their ids, zero for missing ones."""
        place, flat = self._place(Kind.ANSWER), values.flatten(1)
        size = (1, flat.shape[1])
        found = self._ask(place, self._pending, lambda item: unpacked(item, size, flat))
        every = flat.new_zeros(len(self._pending), flat.shape[1])
        for agent, row in found.items():
            every[agent] = row[0]
        self._put(place, self._pending, packed(every))
        return every.reshape(-1, *values.shape[1:])

    def publish(self, value: Tensor) -> Tensor:
        """Keep the server's `value[1, …]` for all agents; none lives here."""
        self._put(self._place(Kind.ANSWER), self._pending, packed(value.flatten(1)))
        return value[:0]

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the texts of the server and of all agents by name; raise unless all answer."""
        found = zip(self._pending, self.tell("", required=True), strict=True)
        said = {"server": text, **{self._name(one): str(its) for one, its in found}}
        self.hear(json.dumps(said))
        return said

    def tell(self, text: str = "", *, required: bool = False) -> list[str | None]:  # noqa: ARG002 - the agents'
        """Return the agents' texts, None for missing ones; if all are required, wait for them, or raise."""
        place = self._place(Kind.ANSWER)
        found = self._ask(place, self._pending, unpacked_text, patient=required)
        silent = [self._name(one) for one in self._pending if one not in found]
        if required and silent:
            whys = {name: why for _, name, why in self.missing}
            raise ConnectionError(
                f"{listed(f'{name} ({whys[name]})' for name in silent)}: no answer, so training does not start"
            )
        return [found.get(one) for one in self._pending]

    def hear(self, text: str) -> str:
        """Keep a text for all agents."""
        self._put(self._place(Kind.ANSWER), self._pending, packed_text(text))
        return text

    def _name(self, agent: int) -> str:
        return self._courier.names.get(agent, f"agent {agent}")

    def _put(self, place: str, agents: Iterable[int], item: Item) -> None:
        """Keep an item for agents until they answer."""
        for agent in set(agents) - self._left_out:
            mine = self._pending[agent]
            mine[place] = item
            if sum(len(one.raw) for one in mine.values()) > MAX_PENDING_BYTES:
                mine.clear()
                self._left_out.add(agent)

    def _ask(
        self,
        place: str,
        agents: Collection[int],
        read: Callable[[Item], Read],
        *,
        patient: bool = False,
    ) -> dict[int, Read]:
        """Send agents what was kept for them; return their items of a place, and note who is missing."""
        found: dict[int, Read] = {}
        why = dict.fromkeys(self._left_out & set(agents), "left out, since it missed too much")
        end = time.monotonic() + (self.patience if patient else self.deadline)
        asked = set(agents) - self._left_out
        while asked and (left := end - time.monotonic()) > 0:
            parcels = {one: Parcel(dict(self._pending[one]), place) for one in sorted(asked)}
            replies, reasons = self._courier.deliver(parcels, left, patient=patient)
            why |= reasons
            for agent in replies.keys() | {
                one for one, reason in reasons.items() if reason != AWAY
            }:
                self._sent[agent] += parcels[agent].size
            for agent, reply in replies.items():
                try:
                    found[agent] = read(self._accept(agent, parcels[agent], reply))
                except RefusedError as error:
                    why[agent] = str(error)
            # An agent that took the parcel, but has no answer, has none later either.
            asked -= {one for one, reply in replies.items() if reply.want == place}
            if not patient:
                break
        late = {one: why.get(one, "late") for one in agents if one not in found}
        self.missing += [(self.rounds, self._name(one), late[one]) for one in sorted(late)]
        return found

    def _accept(self, agent: int, sent: Parcel, reply: Parcel) -> Item:
        """Count what was received; return the wanted item of a reply."""
        self._received[agent] += reply.size
        reply.check()
        if reply.want == sent.want:
            for place in sent.items:
                self._pending[agent].pop(place, None)
        if sent.want not in reply.items:
            raise RefusedError(reply.note[:500] or "another item than the wanted one")
        return reply.items[sent.want]
