"""A process among its neighbours: it sends them messages, waits for theirs, and answers evaluations."""

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import zenoh
from numpy.typing import NDArray

from fedsurf.network.engines.arrivals import Arrivals
from fedsurf.network.engines.messages import Kind, Message, Slot, kind_of
from fedsurf.network.wire import Form

PAUSE = 0.05
"""Seconds after which a waiting process looks for dead neighbours again."""
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
    """

    def __init__(
        self,
        number: int,
        linked: Mapping[int, set[int]],
        arrivals: Arrivals,
        digest: bytes,
        root: str,
    ) -> None:
        self.number, self.arrivals = number, arrivals
        self.bytes_sent = {arrivals.names[one]: 0 for one in arrivals.neighbours}
        self.round_bytes_sent = dict(self.bytes_sent)
        self._linked, self._digest, self._root = linked, digest, root
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
            tokens.declare_subscriber(f"{self._root}/alive/*", self._on_token, history=True),
            tokens.declare_token(f"{self._root}/alive/{here}"),
        )

    def close(self) -> None:
        """Close the session, once what must be handed on was."""
        with self._sending:
            session, self._session = self._session, None
        if session is not None:
            session.close()  # type: ignore[no-untyped-call]

    def send(self, to: int, kind: Kind, slot: Slot, values: Values, form: Form) -> None:
        """Send values to a neighbour, in a form to which they are rounded."""
        raw = Message(kind, self.number, slot, values, form=form).encoded(self._digest)
        with self._sending:  # in the order of the rounds, also when some are sent again
            self._recent[to] = (*self._recent[to][1 - RESENT :], raw)
            self._put(to, raw)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done; return whether it was, or the time was over."""
        end = time.monotonic() + seconds
        with self.arrivals.changed:
            while not done():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self.arrivals.changed.wait(min(left, PAUSE))
            return True

    def receive(
        self, kind: Kind, slot: Slot, shapes: Mapping[int, tuple[int, int]], seconds: float
    ) -> tuple[dict[int, Values], dict[int, str]]:
        """Wait for a message of each of some neighbours; return the values, and why others are missing."""
        arrivals = self.arrivals
        found: dict[int, Values] = {}
        missing: dict[int, str] = {}

        def done() -> bool:
            missing.clear()
            for one in shapes.keys() - found.keys():
                values = arrivals.take(one, kind, slot, shapes[one])
                if values is not None:
                    found[one] = values
                elif arrivals.gone(one):
                    missing[one] = "gone"
                elif kind == Kind.ROWS and arrivals.went_on(one, shapes[one]):
                    missing[one] = "went on"
                else:
                    missing[one] = "late"
            return "late" not in missing.values()

        self.wait(done, seconds)
        return found, missing

    def follow(self, slot: Slot, server: int, shape: tuple[int, int], seconds: float) -> Message:
        """Wait for a server's download of this round, or of a later one that calls this process.

        It waits as long as the server is alive, and at most `seconds` longer.
        """
        arrivals, seen = self.arrivals, time.monotonic()
        found: list[Message] = []

        def done() -> bool:
            nonlocal seen
            if not arrivals.gone(server):
                seen = time.monotonic()
            message = arrivals.next_download(server, slot, shape)
            if message is not None:
                found.append(message)
            return bool(found) or time.monotonic() > seen + seconds

        while not self.wait(done, seconds):
            pass
        if not found:
            raise ConnectionError(
                f"{arrivals.names[server]}: the server is gone since {seconds:g} seconds, in round {slot.round}"
            )
        return found[0]

    def ask(self, slot: Slot, values: Values, seconds: float) -> dict[int, Message]:
        """Tell all processes these values, and return what they told, by process; own values included.

        A process that answers says which neighbours it takes for dead. So it is known whose answers may
        still come: those of the neighbours of anybody who answered, but not of those taken for dead.
        """
        arrivals, own = self.arrivals, Message(Kind.ANSWER, self.number, slot, values)
        answers: dict[int, Message] = {}
        said: frozenset[int] | None = None

        def changed() -> bool:
            nonlocal answers
            gone = frozenset(one for one in arrivals.neighbours if arrivals.gone(one))
            answers = arrivals.answers(slot) | {
                self.number: Message(own.kind, own.sender, slot, values, gone)
            }
            return said is None or bool(gone - said) or settled()

        def settled() -> bool:
            awaited = {q for a in answers.values() for q in self._linked[a.sender] - a.gone}
            return awaited <= answers.keys() or arrivals.left_behind()

        end = time.monotonic() + seconds
        while self.wait(changed, max(end - time.monotonic(), 0)):
            mine = answers[self.number]
            if said is None or mine.gone - said:
                said = mine.gone | (said or frozenset())
                raw = mine.encoded(self._digest)
                with arrivals.changed:
                    arrivals.answer(mine)
                for one in arrivals.neighbours:
                    with self._sending:
                        self._put(one, raw)
            elif settled():
                break
        return answers

    def _put(self, to: int, raw: bytes) -> None:
        session, name = self._session, self.arrivals.names[to]
        if session is None:
            raise RuntimeError("network: not open, so use it in a with statement")
        if to in self.arrivals.alive:
            self.bytes_sent[name] += len(raw)
            if kind_of(raw) != Kind.ANSWER:
                self.round_bytes_sent[name] += len(raw)
        session.put(
            f"{self._root}/to/{name}/{self.arrivals.names[self.number]}",
            raw,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    def _on_message(self, sample: zenoh.Sample) -> None:
        sender = str(sample.key_expr).rsplit("/", 1)[1]
        large = len(sample.payload) > self.arrivals.max_bytes
        raw = None if large else sample.payload.to_bytes()
        with self._sending:
            answer = self.arrivals.receive(sender, raw)
            if answer is None or raw is None or self._session is None:
                return
            for one in self.arrivals.neighbours:
                if one != answer.sender and self.arrivals.names[one] != sender:
                    self._put(one, raw)

    def _on_token(self, sample: zenoh.Sample) -> None:
        name = str(sample.key_expr).rsplit("/", 1)[1]
        if name not in self.bytes_sent:
            return
        number = self.arrivals.names.index(name)
        if sample.kind == zenoh.SampleKind.DELETE:
            self.arrivals.vanished(number)
            return
        self.arrivals.appeared(number)
        with self._sending:
            with self.arrivals.changed:
                known = self.arrivals.answers_except(number)
            heard = [message.encoded(self._digest) for message in known]
            for raw in (*self._recent[number], *heard) if self._session else ():
                self._put(number, raw)
