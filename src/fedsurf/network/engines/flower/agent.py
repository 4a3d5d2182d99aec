"""The agent's side of a star: what it takes was received before; where it must wait, it stops."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from fedsurf.network.engines.flower.parcels import (
    Item,
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


class PausedError(Exception):
    """The work stops here, until the next message; its text says what it waits for."""


class AgentSide(Side):
    """The row of one agent.

    The same work, begun again from the same state, takes and gives the same items: all that is random
    is a function of seeds.

    Parameters
    ----------
    star : StarNetwork
        As at the server.
    agent : int
        The agent's number.
    received : mapping from str to Item
        What the server sent, by place.
    want : str
        The place of what the server waits for.
    kind : {"float32", "float64"}
        As at the server.

    Attributes
    ----------
    given : dict from str to Item
        What the work gave to the server so far, by place.
    given_since : set of str
        The places of what it gave since they were last cleared.
    taken : set of str
        The places of what it took so far.

    Examples
    --------
    >>> from fedsurf import generator
    >>> star = StarNetwork(2, None, generator(0))
    >>> agent = AgentSide(star, 1, {"download-0-1-0": packed(torch.ones(1, 2))}, "upload-0-1-0")
    >>> called = agent.call()
    >>> model = agent.download(torch.empty(0, 2), called)
    >>> _ = agent.upload(2 * model, called)
    >>> list(agent.given), model.tolist()
    (['upload-0-1-0'], [[1.0, 1.0]])
    >>> agent.pause()
    Traceback (most recent call last):
    ...
    fedsurf.network.engines.flower.agent.PausedError: done
    """

    def __init__(
        self,
        star: StarNetwork,
        agent: int,
        received: Mapping[str, Item],
        want: str = "",
        kind: Single = "float32",
    ) -> None:
        super().__init__(star, agent + 1, kind)
        self.given: dict[str, Item] = {}
        self.given_since: set[str] = set()
        self.taken: set[str] = set()
        self._received, self._want = received, want

    def pause(self) -> None:
        """Stop if the server has what it waits for: the state is safe, and the rest can wait."""
        if self._want in self.given:
            raise PausedError("done")

    def _swap(self, rows: Tensor, needed: Tensor, form: Form) -> tuple[Tensor, LostMessages]:
        """Give the own row if the agent reports, and take the server's."""
        place, here = self._place(Kind.ROWS), self.links == self.process
        needed = needed.to(self.links.device)
        if bool((needed & here[0]).any()):
            self._give(place, self._packed(rows, form))
        received = self._local_sources(rows)
        if bool((needed & here[1]).any()):
            received[:1] = self._take(place, (1, rows.shape[1]), rows, form)
        return received, NOTHING_LOST

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Return the server's message if this agent is called, `[called, …]`; `value` has no rows."""
        shape = value.shape[1:]
        _, form = self._star.send("download", value, self.ids[:0], called, among, layout)
        place = self._place(Kind.DOWNLOAD)
        if not len(called.here):
            return value[:0]
        return self._take(place, (1, shape.numel()), value, form).reshape(1, *shape)

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Give the agent's `values[called, …]` to the server; nothing is received here."""
        senders = self.ids[called.here]
        values, form = self._star.send("upload", values, senders, called, among, layout)
        place = self._place(Kind.UPLOAD)
        if len(values):
            self._give(place, self._packed(values.flatten(1), form))
        return values[:0]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all that answer, `[…]`."""
        own, place = values.sum(0), self._place(Kind.ANSWER)
        flat = own.reshape(1, -1)
        self._give(place, packed(flat))
        return self._take(place, (1, flat.shape[1]), own).reshape(own.shape)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents in the order of their ids, zero for missing ones."""
        place, flat = self._place(Kind.ANSWER), values.flatten(1)
        self._give(place, packed(flat))
        shape = (self.whole.agents, flat.shape[1])
        return self._take(place, shape, values).reshape(-1, *values.shape[1:])

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's `value[servers, …]`, `[1, …]`; NaN if it is not finite."""
        place, shape = self._place(Kind.ANSWER), value.shape[1:]
        item = self._item(place)
        if item.shape[:1] == (0,):
            return value.new_full((1, *shape), torch.nan)
        return unpacked(item, (1, shape.numel()), value).reshape(1, *shape)

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the texts of the server and of all agents by name."""
        self.tell(text)
        return {str(name): str(said) for name, said in json.loads(self.hear("")).items()}

    def tell(self, text: str) -> list[str | None]:
        """Give a text to the server, which alone has those of all agents."""
        self._give(self._place(Kind.ANSWER), packed_text(text))
        return []

    def hear(self, text: str) -> str:  # noqa: ARG002 - the server's
        """Return the server's text."""
        return unpacked_text(self._item(self._place(Kind.ANSWER)))

    def _take(
        self, place: str, shape: tuple[int, int], like: Tensor, form: Form | None = None
    ) -> Tensor:
        try:
            return unpacked(self._item(place), shape, like, form)
        except RefusedError as error:
            raise RefusedError(f"{place}: got {error} from the server") from error

    def _item(self, place: str) -> Item:
        if place not in self._received:
            raise PausedError(f"waiting for {place}")
        self.taken.add(place)
        return self._received[place]

    def _give(self, place: str, item: Item) -> None:
        self.given[place] = item
        self.given_since.add(place)
