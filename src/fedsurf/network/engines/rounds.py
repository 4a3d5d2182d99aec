"""Rounds by messages: the rows of one process, whose neighbours may be late, dead, or back again."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.checks import check_option, check_positive
from fedsurf.common.devices import CPU
from fedsurf.network.engines.arrivals import AHEAD, GRACE
from fedsurf.network.engines.config import LateRows
from fedsurf.network.engines.evaluations import AnsweringNetwork, numbers_of, tensor_of
from fedsurf.network.engines.messages import Kind, Slot
from fedsurf.network.engines.peer import Peer
from fedsurf.network.engines.process import Latest
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.wire import Form, Layout

GREETING = 5.0
"""Seconds for which a process that was restarted waits to hear which round its neighbours are in."""


@dataclass(frozen=True)
class Neighbour:
    """What a process knows of a neighbour."""

    name: str
    alive: bool
    differs: bool
    """Whether it has another federation."""
    round: int
    """The round of its latest message."""
    wait: float
    """Seconds for which its last message was waited for, or has been so far."""
    sent: int
    received: int
    """Bytes of messages to it and from it."""


@dataclass(frozen=True)
class _Traffic:
    """The rows of a round that are sent between this process and its neighbours."""

    leaving: list[tuple[list[int], slice | list[int]]]
    """Processes, and the rows among those here that each of them gets."""
    arriving: dict[int, tuple[int, slice | list[int]]]
    """For other processes, the number of their rows and the places among those of all other processes."""


class PeerNetwork(AnsweringNetwork):
    """The rows of one process, which a `Peer` exchanges with its neighbours.

    Parameters
    ----------
    whole, owners, process
        As in `ProcessNetwork`.
    peer : Peer
        The process among its neighbours.
    deadline, patience, late
        As in `ZenohNetwork`, whose attributes these are, too.
    """

    def __init__(
        self,
        whole: Network,
        owners: Tensor,
        process: int,
        peer: Peer,
        *,
        deadline: float,
        patience: float,
        late: LateRows,
    ) -> None:
        super().__init__(whole, owners, process)
        check_positive(deadline, "deadline")
        check_positive(patience, "patience")
        check_option(late, LateRows, "late")
        self.deadline, self.patience, self.late = deadline, patience, late
        self.names = peer.arrivals.names
        self.missing: list[tuple[int, str, str]] = []
        self.skipped: list[tuple[int, int]] = []
        self._peer, self._arrivals = peer, peer.arrivals
        self._run, self._used, self._parts = 0, False, Counter[Kind]()
        self._traffic = Latest(self._find_traffic)
        self._advance()

    @property
    def refused(self) -> dict[str, Counter[str]]:
        """How many messages under a process's name were refused, by reason."""
        with self._arrivals.changed:
            return {name: Counter(found) for name, found in self._arrivals.refused.items()}

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Bytes of messages sent, by neighbour."""
        return self._peer.bytes_sent

    @property
    def bytes_received(self) -> dict[str, int]:
        """Bytes of messages received, by neighbour."""
        return self._arrivals.bytes_received

    @property
    def round_bytes_sent(self) -> dict[str, int]:
        """Those bytes sent that are of rounds, by neighbour; the others answer evaluations."""
        return self._peer.round_bytes_sent

    @property
    def round_bytes_received(self) -> dict[str, int]:
        """Those bytes received that are of rounds, by neighbour."""
        return self._arrivals.round_bytes_received

    @property
    def present(self) -> list[str]:
        """The names of the neighbours that are alive."""
        with self._arrivals.changed:
            return [self.names[one] for one in sorted(self._arrivals.alive)]

    @property
    def neighbours(self) -> list[Neighbour]:
        """What is known of the neighbours, for people who watch."""
        arrivals = self._arrivals
        with arrivals.changed:
            return [
                Neighbour(
                    name=(name := self.names[one]),
                    alive=one in arrivals.alive,
                    differs=one in arrivals.others,
                    round=arrivals.heard.get(one, Slot(0, 0)).round,
                    wait=self._peer.waits[one],
                    sent=self.bytes_sent[name],
                    received=self.bytes_received[name],
                )
                for one in arrivals.neighbours
            ]

    def rejoin(self, seconds: float = GREETING) -> int:
        """Go to the round that the neighbours are in, and return it; for a process that was restarted.

        Through a server, an agent goes on in its own round: it takes those that it missed without messages.
        """
        arrivals = self._arrivals
        self._peer.wait(lambda: arrivals.heard.keys() >= arrivals.alive, seconds)
        self._peer.wait(lambda: False, GRACE)  # each sends its last two messages
        with arrivals.changed:
            most = arrivals.majority()
        if most is not None and most > arrivals.now:
            self._run, self._used = most.run, True
            if self.server:
                self._advance()
            else:
                self._skip_to(most.round)
        return self.rounds

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; the same generator in every process."""
        super().reset(generator)
        # Only what follows messages is another run, whoever resets how often before.
        self._run, self._used = self._run + self._used, False
        self._advance()

    def state(self) -> dict[str, Tensor]:
        """Return what the next round depends on, as named tensors."""
        return super().state() | {"run": torch.tensor(self._run, device=CPU)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        super().restore(state)
        self._run, self._used = int(state.get("run", self._run)), True
        self._advance()

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange the messages of one round, and return the rows of S·part that live here."""
        self.catch_up()
        self._used = True
        mixed = super().exchange(values, sent, lost, floats)
        self._advance()
        return mixed

    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:
        """Send rows over the needed links, and wait for those of the neighbours until the deadline."""
        traffic, slot, width = self._traffic(needed), self._slot(Kind.ROWS), rows.shape[1]
        numbers = numbers_of(rows, np.float32)
        for others, leaving in traffic.leaving:
            self._peer.send(others, Kind.ROWS, slot, numbers[leaving], form)
        shapes = {other: (count, width) for other, (count, _) in traffic.arriving.items()}
        found, missing = self._peer.receive(Kind.ROWS, slot, shapes, self.deadline)
        lost = torch.zeros_like(needed) if missing else needed
        for other, why in sorted(missing.items()):
            last = self._arrivals.last(other, shapes[other])
            if self.late == "stale" and why != "gone" and last is not None:
                found[other] = last
                why = f"{why}, last row used"
            else:
                senders, receivers = self._owners[self.links]
                lost |= needed & (senders == other) & (receivers == self.process)
            self.missing.append((slot.round, self.names[other], why))
        heard = np.zeros((self._sources.shape[0] - self._local, width), np.float32)
        for other, values in found.items():
            heard[traffic.arriving[other][1]] = values
        received = torch.from_numpy(heard)
        if rows.dtype != torch.float32 or rows.device != CPU:
            received = received.to(rows)
        if self._local:
            received = torch.cat([rows, received])
        if not missing:
            return received, NOTHING_LOST
        # Rows of a Laplacian are no averages, and cannot be scaled to the same sum.
        if self.shift == "laplacian":
            return received, LostMessages(kept=lost)
        return received, LostMessages(renormalised=lost)

    def _find_traffic(self, needed: Tensor) -> "_Traffic":
        owners, here = self._owners.tolist(), self.process
        out, arriving = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
        for sender, receiver in self.links[:, needed].T.tolist():
            ends = owners[sender], owners[receiver]
            if ends[0] != ends[1] and here in ends:
                (out[ends[1]] if ends[0] == here else arriving[ends[0]]).add(sender)
        leaving = defaultdict[tuple[int, ...], list[int]](list)
        row = {node: place for place, node in enumerate(self._nodes.tolist())}
        for other in sorted(out):
            leaving[tuple(row[node] for node in sorted(out[other]))].append(other)
        place = (self._source_place - self._local).tolist()
        places = {one: [place[node] for node in sorted(nodes)] for one, nodes in arriving.items()}
        return _Traffic(
            [(others, _index(rows)) for rows, others in leaving.items()],
            {other: (len(found), _index(found)) for other, found in sorted(places.items())},
        )

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server; every process knows whom it calls."""
        called = super().call(lost)
        self._used = True
        self._advance()
        return called

    def attend(self, called: Called) -> Called:
        """Wait for the server's message of this round; if it went on without them, no agent here is called."""
        server = int(self._owners[0])
        if self.servers or not len(called.here) or self._peer.follow(server, self.patience):
            return called
        self.missing.append((self.rounds, self.names[server], "went on"))
        return replace(called, here=called.here[:0])

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send the server's `value[servers, …]` to called agents, a message for each process of theirs."""
        shape, server_ids = value.shape[1:], self.ids[: self.servers]
        value, form = self._star.send("download", value, server_ids, called, among, layout)
        slot = self._slot(Kind.DOWNLOAD)
        if self.servers:
            others = sorted(set(self._owners[1 + called.agents].tolist()) - {self.process})
            if others:
                numbers = numbers_of(value.flatten(1), np.float32)
                self._peer.send(others, Kind.DOWNLOAD, slot, numbers, form)
        elif len(called.here):
            server, size = int(self._owners[0]), (1, shape.numel())
            found, why = self._peer.receive(Kind.DOWNLOAD, slot, {server: size}, self.patience)
            if why.get(server) == "gone":  # between two parts of its message
                self._peer.wait(lambda: server in self._arrivals.alive, self.patience)
                found, _ = self._peer.receive(Kind.DOWNLOAD, slot, {server: size}, self.patience)
            if server not in found:
                raise ConnectionError(
                    f"{self.names[server]}: a part of its message is missing in round {slot.round}"
                )
            value = tensor_of(found[server], value).reshape(1, *shape)
        return value.expand(len(called.here), *shape) if len(value) else value

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server, which gets those that arrive in time.

        These may be none.
        """
        shape, senders = values.shape[1:], self.agent_rows(self.ids)[called.here]
        values, form = self._star.send("upload", values, senders, called, among, layout)
        slot, flat = self._slot(Kind.UPLOAD), values.flatten(1)
        if not self.servers:
            if len(values):
                numbers = numbers_of(flat, np.float32)
                self._peer.send([int(self._owners[0])], Kind.UPLOAD, slot, numbers, form)
            return values[:0]
        owners = self._owners[1 + called.agents]
        others = [other for other in sorted(set(owners.tolist())) if other != self.process]
        shapes = {other: (int((owners == other).sum()), shape.numel()) for other in others}
        found, missing = self._peer.receive(Kind.UPLOAD, slot, shapes, self.deadline)
        self.missing += [(slot.round, self.names[one], missing[one]) for one in sorted(missing)]
        received = flat.new_zeros(len(owners), shape.numel())
        here = torch.zeros_like(owners, dtype=torch.bool)
        for other, rows in (found | {self.process: flat}).items():
            place = owners == other
            received[place] = rows if isinstance(rows, Tensor) else tensor_of(rows, flat)
            here |= place
        return received[here].reshape(-1, *shape)

    def behind(self) -> bool:
        """Whether most neighbours are in a later round."""
        with self._arrivals.changed:
            return self._arrivals.left_behind(1)

    def catch_up(self) -> int:
        """Skip rounds if most neighbours are further ahead than messages are kept for."""
        arrivals = self._arrivals
        with arrivals.changed:
            if arrivals.latest() <= (self._run, self.rounds + AHEAD):
                return self.rounds
            most = arrivals.majority()
            if most is None or most.run != self._run or most.round <= self.rounds + AHEAD:
                return self.rounds
            first = most.round - AHEAD
            target = min(
                s.round for s in arrivals.heard.values() if s.run == most.run and s.round >= first
            )
        self._skip_to(target)
        return self.rounds

    def _skip_to(self, round_: int) -> None:
        self.skipped.append((self.rounds, round_))
        if self.server:
            while self.rounds < round_:  # those who are called in turn depend on all rounds before
                self.whole.call()
        else:
            self.whole.restore({**self.whole.state(), "rounds": torch.tensor(round_, device=CPU)})
        self._advance()

    def _slot(self, kind: Kind) -> Slot:
        """Return the place of the next message of a kind."""
        self._parts[kind] += 1
        return Slot(self._run, self.rounds, self._parts[kind] - 1)

    def _advance(self) -> None:
        """Let the arrivals know of the round."""
        self._parts.clear()
        with self._arrivals.changed:
            self._arrivals.advance(Slot(self._run, self.rounds))


def _index(places: Sequence[int]) -> slice | list[int]:
    """Return places as an index of an array; consecutive ones as a slice, which copies nothing."""
    first, end = places[0], places[-1] + 1
    return slice(first, end) if len(places) == end - first else list(places)
