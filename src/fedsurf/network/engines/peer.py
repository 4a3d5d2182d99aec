"""A process among its neighbours: it sends them messages, waits for theirs, and answers evaluations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import zenoh
from numpy.typing import NDArray

from fedsurf.network.engines.arrivals import Arrivals
from fedsurf.network.engines.messages import ROUND_KINDS, Kind, Message, Slot, is_answer, kind_of
from fedsurf.network.wire import Form

if TYPE_CHECKING:
    from fedsurf.network.engines.signatures import Signatures

PAUSE = 0.05
"""Seconds after which a waiting process looks for dead neighbours again."""
SHORT = 0.5
"""Seconds for which an evaluation waits for who was silent in the one before."""
BLOCK = zenoh.CongestionControl.BLOCK
RESENT = 2
"""Messages that a neighbour gets again when it comes back."""

Values = NDArray[np.floating]


class Peer:
    """The messages of one process.

    Parameters
    ----------
    number : int
        The number of this process.
    linked : mapping from int to set of int
        The neighbours of every process.
    arrivals : Arrivals
        Takes what arrives.
    digest : bytes
        The federation's digest.
    root : str
        The first part of all keys.
    signatures : Signatures or None
        Signs answers.
    """

    def __init__(
        self,
        number: int,
        linked: Mapping[int, set[int]],
        arrivals: Arrivals,
        digest: bytes,
        root: str,
        signatures: Signatures | None = None,
    ) -> None:
        self.number, self.arrivals = number, arrivals
        self.bytes_sent = {arrivals.names[one]: 0 for one in arrivals.neighbours}
        self.waits = dict.fromkeys(arrivals.neighbours, 0.0)
        """Seconds for which the last message of each neighbour was waited for."""
        self.round_bytes_sent = dict(self.bytes_sent)
        self._signatures = signatures
        self._silent: set[int] = set()
        """Processes that did not answer the last evaluation in time."""
        self._linked, self._digest, self._root = linked, digest, root
        here = arrivals.names[number]
        self._keys = {one: f"{root}/to/{arrivals.names[one]}/{here}" for one in arrivals.neighbours}
        self._recent: dict[int, tuple[bytes, ...]] = dict.fromkeys(arrivals.neighbours, ())
        self._session: zenoh.Session | None = None
        self._sending = threading.Lock()

    def open(self, session: zenoh.Session) -> None:
        """Begin to listen, and show the neighbours that this process is alive."""
        self._session = session
        here = self.arrivals.names[self.number]
        tokens = session.liveliness()
        self._declared = (  # a token that nobody holds is withdrawn
            session.declare_subscriber(f"{self._root}/to/{here}/*", self._on_message),
            tokens.declare_subscriber(f"{self._root}/alive/*/*", self._on_token, history=True),
            tokens.declare_token(f"{self._root}/alive/{here}/{self._digest.hex()}"),
        )

    def close(self) -> None:
        """Close the session, once what must be handed on was."""
        with self._sending:
            session, self._session = self._session, None
        if session is not None:
            session.close()  # type: ignore[no-untyped-call]

    def send(
        self, receivers: Iterable[int], kind: Kind, slot: Slot, values: Values, form: Form
    ) -> None:
        """Send the same values to some neighbours, in a form to which they are rounded."""
        raw = Message(kind, self.number, slot, values, form=form).encoded(self._digest)
        if len(raw) > self.arrivals.max_bytes:
            raise ValueError(
                f"message: got {len(raw)} bytes, but at most {self.arrivals.max_bytes} travel (max_bytes)"
            )
        for to in receivers:
            with self._sending:  # in the order of the rounds, also when some are sent again
                self._recent[to] = (*self._recent[to][1 - RESENT :], raw)
                self._put(to, raw)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done; return whether it was, or the time was over."""
        end = time.monotonic() + seconds
        arrivals = self.arrivals
        with arrivals.changed:
            arrivals.awaited = done
            try:
                while not done():
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    arrivals.changed.wait(min(left, PAUSE))
                return True
            finally:
                arrivals.awaited = None

    def receive(
        self, kind: Kind, slot: Slot, shapes: Mapping[int, tuple[int, int]], seconds: float
    ) -> tuple[dict[int, Values], dict[int, str]]:
        """Wait for a message of each of some neighbours; return the values, and why others are missing."""
        arrivals, begun = self.arrivals, time.monotonic()
        found: dict[int, Values] = {}
        missing: dict[int, str] = {}

        def done() -> bool:
            missing.clear()
            waited = time.monotonic() - begun
            for one, shape in shapes.items():
                if one in found:
                    continue
                values = arrivals.take(one, kind, slot, shape)
                if values is not None:
                    found[one] = values
                elif arrivals.gone(one):
                    missing[one] = "gone"
                elif arrivals.went_on(one, shape if kind == Kind.ROWS else None):
                    missing[one] = "went on"
                else:
                    missing[one] = "late"
                self.waits[one] = waited
            return "late" not in missing.values()

        self.wait(done, seconds)
        return found, missing

    def follow(self, server: int, seconds: float) -> bool:
        """Wait for a server's message of this round; return whether it came, or it went on without.

        It waits as long as the server is alive, and at most `seconds` longer.
        """
        arrivals, seen = self.arrivals, time.monotonic()

        def done() -> bool:
            nonlocal seen
            if not arrivals.gone(server):
                seen = time.monotonic()
            return (
                arrivals.downloaded(server)
                or arrivals.passed(server)
                or time.monotonic() > seen + seconds
            )

        while not self.wait(done, seconds):
            pass
        with arrivals.changed:
            if arrivals.downloaded(server) or arrivals.passed(server):
                return arrivals.downloaded(server)
        raise ConnectionError(
            f"{arrivals.names[server]}: the server is gone since {seconds:g} seconds, in round "
            f"{arrivals.now.round}"
        )

    def ask(
        self,
        slot: Slot,
        values: Values,
        seconds: float,
        *,
        server: int | None = None,
        patience: float = 0.0,
    ) -> dict[int, Message]:
        """Tell all processes these values, and return what they told, by process; own values included.

        A process that answers says which neighbours it takes for dead. So it is known whose answers may
        still come: those of the neighbours of anybody who answered, but not of those taken for dead. A
        server that is gone is waited for with `patience`.
        """
        arrivals, own = self.arrivals, Message(Kind.ANSWER, self.number, slot, values)
        answers: dict[int, Message] = {}
        said: frozenset[int] | None = None
        begun = time.monotonic()

        def changed() -> bool:
            nonlocal answers
            # A server is waited for, also while it is gone.
            gone = frozenset(n for n in arrivals.neighbours if n != server and arrivals.gone(n))
            answers = arrivals.answers(slot) | {
                self.number: Message(own.kind, own.sender, slot, values, gone)
            }
            return said is None or bool(gone - said) or settled()

        def settled() -> bool:
            reached, new = set[int](), {self.number}
            while new:  # along links whose ends live, as far as answers tell
                one = new.pop()
                reached.add(one)
                if one in answers:
                    new |= self._linked[one] - answers[one].gone - reached
            if time.monotonic() > begun + SHORT:  # who was silent before is not waited for again
                reached -= self._silent
            # Who went on has all answers that it waited for, and has handed them on before.
            return reached <= answers.keys() or arrivals.left_behind(1)

        def left() -> float:
            longest = patience if server is not None and arrivals.gone(server) else seconds
            return max(begun + longest - time.monotonic(), 0)

        while self.wait(changed, left()) or left():
            mine = answers[self.number]
            if said is None or mine.gone - said:
                said = mine.gone | (said or frozenset())
                mine = mine._replace(gone=said)
                raw = mine.encoded(self._digest)
                if self._signatures is not None:
                    raw = self._signatures.signed(raw)
                with arrivals.changed:
                    arrivals.answer(mine._replace(signed=raw))
                for one in arrivals.neighbours:
                    with self._sending:
                        self._put(one, raw)
            elif settled():
                break
        else:
            self._silent |= set(range(len(arrivals.names)))
        self._silent -= answers.keys()
        return answers

    def _put(self, to: int, raw: bytes) -> None:
        session, name = self._session, self.arrivals.names[to]
        if session is None:
            raise RuntimeError("network: not open, so use it in a with statement")
        if to in self.arrivals.alive:
            self.bytes_sent[name] += len(raw)
            if kind_of(raw) in ROUND_KINDS:
                self.round_bytes_sent[name] += len(raw)
        session.put(self._keys[to], raw, congestion_control=BLOCK)

    def _on_message(self, sample: zenoh.Sample) -> None:
        sender = str(sample.key_expr).rsplit("/", 1)[1]
        large = len(sample.payload) > self.arrivals.max_bytes
        raw = None if large else sample.payload.to_bytes()
        if raw is None or not is_answer(raw):
            self.arrivals.receive(sender, raw)
            return
        with self._sending:  # handed on before this process sends anything of a later round
            answer = self.arrivals.receive(sender, raw)
            if answer is None or self._session is None:
                return
            for one in self.arrivals.neighbours:
                if one != answer.sender and self.arrivals.names[one] != sender:
                    self._put(one, raw)

    def _on_token(self, sample: zenoh.Sample) -> None:
        _, name, digest = str(sample.key_expr).rsplit("/", 2)
        if name not in self.bytes_sent:
            return
        number = self.arrivals.names.index(name)
        there = sample.kind != zenoh.SampleKind.DELETE
        if digest != self._digest.hex():
            self.arrivals.differs(number, there=there)
        elif there:
            self.arrivals.appeared(number)
            self._greet(number)
        else:
            self.arrivals.vanished(number)

    def _greet(self, number: int) -> None:
        """Tell a neighbour that appears, perhaps again, which round this is, and what it may have missed."""
        with self._sending:
            with self.arrivals.changed:
                now, known = self.arrivals.now, self.arrivals.answers_except(number)
            hello = Message(Kind.HELLO, self.number, now, np.empty((0, 0), np.float32))
            greeting = hello.encoded(self._digest)
            heard = [message.signed for message in known]
            for raw in (greeting, *self._recent[number], *heard) if self._session else ():
                self._put(number, raw)
