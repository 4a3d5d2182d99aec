"""What has arrived from the neighbours of a process: checked, bounded, and waited for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsurf.network.config import Wire
from fedsurf.network.engines.messages import (
    ROUND_KINDS,
    Kind,
    Message,
    RefusedError,
    Slot,
    decoded,
    is_answer,
)

if TYPE_CHECKING:
    from fedsurf.network.engines.signatures import Signatures

AHEAD = 4
"""Rounds by which a neighbour's message may be ahead."""
AHEAD_OF_SERVER = 10_000
"""The same with a server, as agents do not wait for the rounds in which they are not called."""
MAX_STORED = 64
"""Messages of a neighbour that wait for their round."""
MAX_FAR = 2
"""Messages of a neighbour that are kept although they are too far ahead."""
MAX_ANSWER_SLOTS = 16
"""Evaluations whose answers are kept."""
MAX_SHAPES = 4
"""Shapes of rows of which a neighbour's last one is kept."""
GRACE = 0.1
"""Seconds for which messages may still come from a neighbour whose token is gone."""


class Arrivals:
    """Messages of the neighbours, and who is alive; the engine's threads write, the network reads.

    Every method but `receive`, `appeared`, `vanished` and `differs` is called with `changed` held.

    Parameters
    ----------
    names : sequence of str
        The names of all processes, by number.
    neighbours : iterable of int
        The numbers of the processes whose messages are taken.
    digest : bytes
        The federation's digest.
    max_bytes : int
        Size of the largest message.
    ahead : int
        Rounds by which a message may be ahead.
    wire : {"float32", "float16", "int8"}
        The numbers of messages; those with others are refused, unless they are float32.
    signatures : Signatures or None
        Checks whose answers are whose.
    """

    def __init__(
        self,
        names: Sequence[str],
        neighbours: Iterable[int],
        digest: bytes,
        max_bytes: int,
        ahead: int = AHEAD,
        wire: Wire = "float32",
        signatures: Signatures | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.awaited: Callable[[], bool] | None = None
        """Whether what is waited for is there; whoever waits is woken for nothing less."""
        self._signatures = signatures
        self._numbers = {name: number for number, name in enumerate(names)}
        self.names, self.neighbours = list(names), sorted(neighbours)
        self.alive: set[int] = set()
        self.others: set[int] = set()
        """Neighbours that have another federation."""
        self.heard: dict[int, Slot] = {}
        self.refused: dict[str, Counter[str]] = {}
        self.bytes_received = dict.fromkeys((self.names[one] for one in self.neighbours), 0)
        self.round_bytes_received = dict(self.bytes_received)
        self.now = Slot(0, 0)
        self._digest, self.max_bytes, self.ahead, self._wire = digest, max_bytes, ahead, wire
        self._vanished: dict[int, float] = {}
        self._stored: dict[int, list[Message]] = {one: [] for one in self.neighbours}
        self._far: dict[int, list[Message]] = {one: [] for one in self.neighbours}
        self._last: dict[int, dict[tuple[int, ...], NDArray[np.floating]]] = {
            one: {} for one in self.neighbours
        }
        self._answers: dict[Slot, dict[int, Message]] = {}

    def receive(self, sender: str, raw: bytes | None) -> Message | None:
        """Take in what arrived under a process's name; None for more bytes than were agreed.

        Return an answer that is new, to be handed on.
        """
        with self._lock:
            try:
                return self._take_in(sender, raw)
            except RefusedError as refused:
                self.refuse(sender, str(refused))
                return None
            finally:
                self._wake()

    def _wake(self) -> None:
        """Wake whoever waits, if what is waited for may be there."""
        # A thread that is woken for each message costs more than the message.
        if self.awaited is None or self.awaited():
            self.changed.notify_all()

    def refuse(self, sender: str, reason: str) -> None:
        """Count a message that is not used."""
        known = sender if sender in self.names else "unknown"
        self.refused.setdefault(known, Counter())[reason] += 1

    def appeared(self, sender: int) -> None:
        """Note that a neighbour's token is there."""
        with self.changed:
            self.alive.add(sender)
            self._wake()

    def vanished(self, sender: int) -> None:
        """Note that a neighbour's token is gone."""
        with self.changed:
            self.alive.discard(sender)
            self._vanished[sender] = time.monotonic()
            self._wake()

    def differs(self, sender: int, *, there: bool) -> None:
        """Note that a neighbour with another federation is there, or has left."""
        with self.changed:
            (self.others.add if there else self.others.discard)(sender)
            self._wake()

    def gone(self, sender: int) -> bool:
        """Whether a neighbour is dead, and nothing of it is on its way any more."""
        return (
            sender not in self.alive
            and time.monotonic() > self._vanished.get(sender, -np.inf) + GRACE
        )

    def advance(self, now: Slot) -> None:
        """Begin a round: forget messages of earlier ones."""
        self.now = now
        for sender, messages in self._stored.items():
            messages[:] = [m for m in messages if m.slot >= now]
            far = self._far[sender]
            if not far:
                continue
            self._far[sender] = [m for m in far if self._distance(m.slot) > self.ahead]
            for message in far:
                if 0 <= self._distance(message.slot) <= self.ahead:
                    with suppress(RefusedError):
                        self._store(message)
        if self._answers:
            self._answers = {slot: a for slot, a in self._answers.items() if slot >= now}

    def take(
        self, sender: int, kind: Kind, slot: Slot, shape: tuple[int, int]
    ) -> NDArray[np.floating] | None:
        """Return a neighbour's values of this shape if they are there; refuse those of other shapes."""
        messages = self._stored[sender]
        for message in tuple(messages):
            if message.slot != slot or message.kind != kind:
                continue
            if message.values.shape == shape:
                if kind == Kind.ROWS:
                    self._remember(sender, message)
                return message.values
            messages[:] = [other for other in messages if other is not message]
            self.refuse(self.names[sender], "another shape")
        return None

    def downloaded(self, server: int) -> bool:
        """Whether a message of the server for this round is there."""
        return any(
            m.kind == Kind.DOWNLOAD and self._distance(m.slot) == 0 for m in self._stored[server]
        )

    def last(self, sender: int, shape: tuple[int, int]) -> NDArray[np.floating] | None:
        """Return a neighbour's last row of this shape, if any."""
        return self._last[sender].get(shape)

    def answers(self, slot: Slot) -> dict[int, Message]:
        """Return the answers of an evaluation, by process."""
        return self._answers.get(slot, {})

    def answer(self, message: Message) -> None:
        """Keep this process's own answer, for neighbours that come later."""
        self._answers.setdefault(message.slot, {})[message.sender] = message

    def answers_except(self, sender: int) -> list[Message]:
        """Return all answers that are kept, but not a process's own."""
        return [
            message
            for answers in self._answers.values()
            for message in answers.values()
            if message.sender != sender
        ]

    def latest(self) -> tuple[int, int]:
        """Return the run and the round of the neighbour that is furthest ahead."""
        return max(self.heard.values(), default=Slot(0, 0))[:2]

    def majority(self) -> Slot | None:
        """Return the latest round that more than half of the living neighbours have reached, if any."""
        heard = sorted((self.heard.get(one, Slot(0, 0)) for one in self.alive), reverse=True)
        return heard[len(heard) // 2] if heard else None

    def left_behind(self, by: int = 2) -> bool:
        """Whether most living neighbours went on without this process: they are rounds ahead."""
        most = self.majority()
        return most is not None and self._distance(most) >= by

    def passed(self, sender: int) -> bool:
        """Whether a neighbour, whose messages arrive in order, is in a later round."""
        return self._distance(self.heard.get(sender, self.now)) > 0

    def went_on(self, sender: int, shape: tuple[int, int] | None = None) -> bool:
        """Whether no message of this round will come from a neighbour, whose messages arrive in order.

        Of rows, `shape` is theirs: a later row of the same shape is there, or it and most others are
        further ahead.
        """
        if shape is None:
            return self.passed(sender)
        later = bool(self._stored[sender]) and any(
            m.kind == Kind.ROWS and self._distance(m.slot) > 0 and m.values.shape == shape
            for m in self._stored[sender]
        )
        return later or (self.passed(sender) and self.left_behind())

    def _take_in(self, sender: str, raw: bytes | None) -> Message | None:
        number = self._numbers.get(sender, -1)
        if number not in self._stored:
            raise RefusedError("not a neighbour")
        if raw is None or len(raw) > self.max_bytes:
            raise RefusedError("larger than agreed")
        self.bytes_received[sender] += len(raw)
        inner, signer = raw, None
        if self._signatures is not None and is_answer(raw):
            inner, signer = self._signatures.opened(raw)
        message = decoded(inner, self._digest, self._wire)
        if signer is not None and self._numbers.get(signer) != message.sender:
            raise RefusedError("another's name")
        if message.kind == Kind.ANSWER:
            message = message._replace(signed=raw)
            return message if self._keep_answer(number, message) else None
        if message.kind in ROUND_KINDS:
            self.round_bytes_received[sender] += len(raw)
        if message.sender != number:
            raise RefusedError("another's name")
        self._keep(message)
        return None

    def _remember(self, sender: int, message: Message) -> None:
        last = self._last[sender]
        last.pop(message.values.shape, None)
        last[message.values.shape] = message.values
        if len(last) > MAX_SHAPES:
            del last[next(iter(last))]

    def _is_near(self, distance: int) -> bool:
        """Whether a message of a round so far ahead is still needed; raise if it is far from this one."""
        if distance > self.ahead:
            raise RefusedError("round too far ahead")
        if distance < -AHEAD:
            raise RefusedError("old round")
        return distance >= 0

    def _distance(self, slot: Slot) -> int:
        """Return by how many rounds a message is ahead; the next run follows this round."""
        if slot.run == self.now.run:
            return slot.round - self.now.round
        if slot.run == self.now.run + 1:
            return slot.round + 1
        return 2**32 if slot.run > self.now.run else -(2**32)

    def _keep(self, message: Message) -> None:
        sender, when = message.sender, Slot(message.slot.run, message.slot.round)
        if self._distance(when) > AHEAD_OF_SERVER:
            raise RefusedError("round too far ahead")
        if message.kind == Kind.HELLO:  # of a process that may have gone back
            self.heard[sender] = when
            return
        self.heard[sender] = max(when, self.heard.get(sender, when))
        distance = self._distance(message.slot)
        if distance > self.ahead:
            # The last ones are used if this process skips rounds.
            self._far[sender] = [*self._far[sender][1 - MAX_FAR :], message]
        if self._is_near(distance):
            self._store(message)
        elif message.kind == Kind.ROWS:
            self._remember(sender, message)

    def _store(self, message: Message) -> None:
        messages = self._stored[message.sender]
        if messages:
            if len(messages) >= MAX_STORED or self._size(messages) > (AHEAD + 1) * self.max_bytes:
                raise RefusedError("too many at once")
            if any(m.kind == message.kind and _equal(m, message) for m in messages):
                return
        messages.append(message)

    def _keep_answer(self, relay: int, message: Message) -> bool:
        """Keep an answer that is new, or whose sender misses more neighbours than before."""
        if not 0 <= message.sender < len(self.names):
            raise RefusedError("unknown process")
        when = Slot(message.slot.run, message.slot.round)
        if message.sender == relay and self._distance(when) <= AHEAD_OF_SERVER:
            self.heard[relay] = max(when, self.heard.get(relay, when))
        if not self._is_near(self._distance(message.slot)):
            return False
        if message.slot not in self._answers and len(self._answers) >= MAX_ANSWER_SLOTS:
            latest = max(self._answers)
            if message.slot > latest:
                raise RefusedError("too many at once")
            del self._answers[latest]
        answers = self._answers.setdefault(message.slot, {})
        before = answers.get(message.sender)
        if before is not None and not message.gone > before.gone:
            return False
        kept = sum(self._size([*found.values()]) for found in self._answers.values())
        if kept + message.values.nbytes > (AHEAD + 1) * self.max_bytes:
            raise RefusedError("too many at once")
        answers[message.sender] = message
        return True

    @staticmethod
    def _size(messages: list[Message]) -> int:
        return sum(message.values.nbytes for message in messages)


def _equal(left: Message, right: Message) -> bool:
    """Whether two messages fill one place; the first is used."""
    return left.slot == right.slot and left.values.shape == right.values.shape
