"""Parcels as Flower's messages, and the courier that carries them over Flower's grid.

An item is an `Array` of raw little-endian numbers, with `STYPE` in place of NumPy's format: `Array.numpy`
is never called on what arrives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsurf.network.engines.flower.parcels import AWAY, Item, Parcel
from fedsurf.network.engines.messages import RefusedError

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

STYPE = "fedsurf.raw"
ITEMS, WORDS = "items", "fedsurf"
"""Names of the two records of a message."""
POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks for replies: at first, and after many."""
GREETING = 60.0
"""Seconds that a node has to say which agent it is, before it is asked again."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


def to_records(parcel: Parcel, agent: int = -1, name: str = "") -> RecordDict:
    """Return a parcel as the content of a message; agents add who they are."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        place: Array(item.kind, item.shape, STYPE, item.raw) for place, item in parcel.items.items()
    }
    words = {"want": parcel.want, "note": parcel.note, "agent": agent, "name": name}
    return RecordDict({ITEMS: ArrayRecord(arrays), WORDS: ConfigRecord(words)})


def from_records(content: RecordDict) -> tuple[Parcel, int, str]:
    """Return the parcel in a message, and who sent it, or raise `RefusedError`."""
    from flwr.app import ArrayRecord, ConfigRecord

    arrays, words = content.get(ITEMS), content.get(WORDS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(words, ConfigRecord):
        raise RefusedError("no message of this app")
    want, note, agent, name = (words.get(key) for key in ("want", "note", "agent", "name"))
    if not (isinstance(want, str) and isinstance(note, str) and isinstance(name, str)):
        raise RefusedError("no message of this app")
    if not isinstance(agent, int) or (name and not _NAME.fullmatch(name)):
        raise RefusedError("no number or name of an agent")
    items = {}
    for place, array in arrays.items():
        if array.stype != STYPE:
            raise RefusedError("another format of numbers")
        items[place] = Item(array.dtype, tuple(array.shape), array.data)
    parcel = Parcel(items, want, note)
    parcel.check()
    return parcel, agent, name


class GridCourier:
    """Carries parcels over Flower's grid, to the nodes that say which agents they are.

    Parameters
    ----------
    grid : Grid
        Flower's.
    agents : int
        The number of agents.
    """

    def __init__(self, grid: Grid, agents: int) -> None:
        self._grid, self._agents = grid, agents
        self.names: dict[int, str] = {}
        self._nodes: dict[int, int] = {}
        self._greetings: dict[str, tuple[int, float]] = {}
        self._greet_at: dict[int, float] = {}

    def deliver(
        self, parcels: Mapping[int, Parcel], seconds: float, *, patient: bool = False
    ) -> tuple[dict[int, Parcel], dict[int, str]]:
        """Send parcels to agents; return the replies, by agent, and why others are missing.

        It waits `seconds` for replies; with `patient` also for agents that are not connected.
        """
        end = time.monotonic() + seconds
        unsent, sent = dict(parcels), dict[str, int]()
        replies: dict[int, Parcel] = {}
        why: dict[int, str] = {}
        pause = POLL
        while True:
            left = end - time.monotonic()
            online = set(self._grid.get_node_ids())
            self._greet(online)
            for agent in [one for one in unsent if self._nodes.get(one) in online]:
                if left > 0:
                    sent[self._push(self._nodes[agent], unsent.pop(agent), left)] = agent
            for message in self._pull([*sent, *self._greetings]):
                number = message.metadata.reply_to_message_id
                if number in self._greetings:
                    self._meet(self._greetings.pop(number)[0], message, online)
                elif number in sent:
                    self._open(sent.pop(number), message, replies, why)
            found = any(self._nodes.get(one) in online for one in unsent)
            waiting = bool(unsent) and (patient or found or bool(self._greetings))
            if left <= 0 or not (sent or waiting):
                break
            time.sleep(pause)
            pause = min(1.2 * pause, LONGEST_POLL)
        why |= dict.fromkeys(unsent, AWAY) | dict.fromkeys(sent.values(), "late")
        return replies, why

    def _greet(self, online: set[int]) -> None:
        """Ask nodes that are not known yet which agents they are."""
        now = time.monotonic()
        self._greetings = {
            number: (node, end) for number, (node, end) in self._greetings.items() if end > now
        }
        known = {*self._nodes.values(), *[node for node, _ in self._greetings.values()]}
        for node in online - known:
            if self._greet_at.get(node, now) <= now:
                self._greet_at[node] = now + GREETING
                self._greetings[self._push(node, Parcel(), GREETING)] = node, now + GREETING

    def _meet(self, node: int, message: Message, online: set[int]) -> None:
        """Note which agent a node is, unless another one that is connected is the same."""
        if message.has_error():
            return
        try:
            _, agent, name = from_records(message.content)
        except RefusedError:
            return
        if 0 <= agent < self._agents and self._nodes.get(agent) not in online:
            self._nodes[agent] = node
            taken = {known for other, known in self.names.items() if other != agent}
            self.names[agent] = f"agent {agent}" if not name or name in taken else name

    def _push(self, node: int, parcel: Parcel, seconds: float) -> str:
        from flwr.app import Message, MessageType

        # What is not delivered in time shall not be executed later.
        message = Message(to_records(parcel), node, MessageType.TRAIN, ttl=max(seconds, 1.0))
        (number,) = self._grid.push_messages([message])
        return str(number)

    def _pull(self, numbers: list[str]) -> list[Message]:
        return list(self._grid.pull_messages(numbers)) if numbers else []

    def _open(
        self, agent: int, message: Message, replies: dict[int, Parcel], why: dict[int, str]
    ) -> None:
        """Put a reply to the others, or the reason why it is none."""
        if message.has_error():
            why[agent] = f"error {message.error.code}: {message.error.reason}"[:500]
            return
        try:
            replies[agent] = from_records(message.content)[0]
        except RefusedError as error:
            why[agent] = f"refused: {error}"
