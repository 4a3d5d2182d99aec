"""A star: a server without data, and agents of which a sample reports to it in each round."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import networkx as nx
import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.common.checks import check_count, check_kind, check_option, check_whole
from fedsurf.common.devices import CPU
from fedsurf.common.streams import SHARED, Streams
from fedsurf.network.config import Calling, Shift, Wire
from fedsurf.network.facts import Facts
from fedsurf.network.network import Called, Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.wire import Form, Layout, Parts, form_of


class StarNetwork(Network):
    """A server (node 0, without data) and agents, of which a sample reports in each round.

    A round of `mix`: `reporting` agents send to the server, and the server sends to all agents. The
    weights of the others go, in equal parts, to those who report, so that the server's row of S
    keeps its sum.

    A round of a server's method: `call` draws the agents of the round, `download` sends them the
    server's model, and `upload` sends their results to the server. Only their links count floats.

    Agents are drawn independently in each round (the paper's way), or in turn: every agent once, in
    a random order, before any is drawn again. A round at the end of one pass over the agents is
    filled with the first of the next pass that are not in it already. So no agent reports twice in a
    round, and after r rounds each was drawn r · reporting / agents times, rounded down or up.

    Parameters
    ----------
    agents : int
        Number of agents, without the server.
    reporting : int or None
        Number of agents that report in a round (the paper: 10 of 100); None for all.
    generator : torch.Generator
        Draws the agents that report.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S.
    calling : {"random", "in-turn"}
        The way in which they are drawn. If all report, both give the same bits.
    wire : {"float32", "float16", "int8"}
        The numbers of messages as they travel; see `Network`.

    Attributes
    ----------
    links : Tensor
        The links from the server to agent 1, 2, …, then those from agent 1, 2, … to the server.

    Examples
    --------
    >>> import torch
    >>> import fedsurf
    >>> star = fedsurf.StarNetwork(agents=6, reporting=2, generator=fedsurf.generator(0))
    >>> called = star.call()
    >>> models = star.download(torch.zeros(1, 3), called)
    >>> models.shape, star.upload(models + 1, called).mean(0)
    (torch.Size([2, 3]), tensor([1., 1., 1.]))
    >>> star.rounds, star.floats
    (1, 12)
    """

    server = True

    def __init__(
        self,
        agents: int,
        reporting: int | None,
        generator: torch.Generator,
        shift: Shift = "adjacency",
        *,
        calling: Calling = "random",
        wire: Wire = "float32",
    ) -> None:
        check_count(agents, "agents")
        check_kind(generator, torch.Generator, "generator", "a torch.Generator")
        if reporting is not None:
            check_whole(reporting, "reporting", " or None for all agents")
            if not 1 <= reporting <= agents:
                raise ValueError(
                    f"reporting: got {reporting}, but it must be between 1 and {agents}, the agents"
                )
        check_option(calling, Calling, "calling")
        self.calling = calling
        self.reporting = agents if reporting is None else reporting
        super().__init__(nx.star_graph(agents), shift, generator, wire=wire)

    @cached_property
    def facts(self) -> Facts:
        """The facts of the network that all agents know."""
        every = self.reporting == self.agents
        return replace(super().facts, reporting=self.reporting, reliable=every)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; `generator` seeds the draw of the agents that report."""
        super().reset(generator)
        # Agents of the round whose download, or whose upload, is sent and lost, and the rest of a pass.
        self._lost_downloads = self._lost_uploads = self._waiting = torch.empty(
            0, dtype=torch.int64, device=CPU
        )
        self._passes = 0
        self._messages = Counter[str]()

    def state(self) -> dict[str, Tensor]:
        """Return what the next round depends on, as named tensors; `waiting` is padded by −1."""
        waiting = functional.pad(self._waiting, (0, self.agents - len(self._waiting)), value=-1)
        return super().state() | {
            "waiting": waiting,
            "passes": torch.tensor(self._passes, device=CPU),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        super().restore(state)
        waiting = state["waiting"]
        self._waiting, self._passes = waiting[waiting >= 0], int(state["passes"])
        self._messages.clear()

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Let a sample of agents send to the server, and the server to all agents."""
        reporters = 1 + self._draw()
        self.count_round(floats, self._used(reporters, lost), self.form(values, floats))
        return [
            self._exchange_with(reporters, *part, lost) for part in zip(values, sent, strict=True)
        ]

    def _used(self, reporters: Tensor, lost: LostMessages) -> Tensor:
        used = (self.links[0] == 0) | torch.isin(self.links[0], reporters)
        return used if lost.unsent is None else used & ~lost.unsent

    def round_weights(
        self, like: Tensor, lost: LostMessages
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the weights of the next round, whose reporters it draws; see `Network.round_weights`."""
        reporters = 1 + self._draw()
        own, column, row = self._reporting_weights(reporters, like, lost)
        return own, torch.cat([column, row]), self._used(reporters, lost)

    def _reporting_weights(
        self, reporters: Tensor, like: Tensor, lost: LostMessages
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of own values, and of the messages from and to the server."""
        own, links = self._own_and_links(like.dtype, like.device)
        column, row = links.reshape(2, -1)
        reporters = reporters.to(like.device)
        received = row[reporters - 1] * (self.agents / self.reporting)
        row = torch.zeros_like(row).index_copy(0, reporters - 1, received)
        if lost is not NOTHING_LOST:
            own, links = lost.weigh(own, torch.cat([column, row]), self.links[1])
            column, row = links.reshape(2, -1)
        return own, column, row

    def _exchange_with(
        self, reporters: Tensor, values: Tensor, sent: Tensor, lost: LostMessages
    ) -> Tensor:
        # A star's S is one row, one column and a diagonal: no product of matrices is needed.
        own, column, row = self._reporting_weights(reporters, values, lost)
        flat = sent.flatten(1)
        mixed = own[:, None] * values.flatten(1)
        from_server = column[:, None] * flat[:1]
        reporters = reporters.to(values.device)
        to_server = (row[reporters - 1] @ flat[reporters])[None]
        return (mixed + torch.cat([to_server, from_server])).reshape(values.shape)

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server: draw its agents, and return those that take part.

        With lost messages, agents that are away, or whose download or upload will not arrive, are
        drawn (their turn is over) but not returned, and the round does not change them. If no agent is
        left, the server waits for the first that it drew.
        """
        drawn = self._draw()
        self._rounds += 1
        self._messages.clear()
        none = torch.zeros(self.links.shape[1], dtype=torch.bool, device=CPU)
        lost_down, lost_up = (none if lost.links is None else lost.links).reshape(2, -1)[:, drawn]
        away = (none if lost.unsent is None else lost.unsent).reshape(2, -1)[:, drawn].all(0)
        arrive = ~(lost_down | lost_up)
        if not arrive.any():
            arrive[0] = True
        self._lost_downloads = drawn[~arrive & ~away]
        self._lost_uploads = drawn[~arrive & ~away & ~lost_down]
        return Called.of(drawn[arrive].sort().values, self.agent_rows(self.ids))

    def download(
        self,
        value: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send the server's `value[1, …]` to called agents, and return what they receive, `[called, …]`.

        Lost downloads count as floats, too. If not all agents need this message, `among` is a mask of
        those that do, bool `[agents]`. `layout` as in `mix_parts`.
        """
        check_called(called, self.agents)
        sent, _ = self.send("download", value, self.ids[:1], called, among, layout)
        return sent.expand(len(called), *value.shape[1:])

    def upload(
        self,
        values: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Send called agents' `values[called, …]` to the server, and return what it receives.

        Lost uploads count as floats, too; `among` and `layout` as in `download`.
        """
        check_called(called, self.agents, values)
        return self.send("upload", values, called.agents, called, among, layout)[0]

    def send(
        self,
        kind: Literal["download", "upload"],
        values: Tensor,
        senders: Tensor,
        called: Called,
        among: Tensor | None = None,
        layout: Layout | None = None,
    ) -> tuple[Tensor, Form]:
        """Count messages between the server and all called agents, and those that are lost.

        Return the `values[senders, …]` as they arrive, and the form in which they travel; `senders` are the
        ids of their rows.
        """
        down = kind == "download"
        lost = self._lost_downloads if down else self._lost_uploads
        every = torch.cat([called.agents, lost if among is None else lost[among[lost]]])
        server, agent = self.links if down else self.links.flip(0)
        form = form_of(self.wire, Parts([values], layout).layout)
        self._count(form.numbers, form, (server == 0) & torch.isin(agent, 1 + every))
        number, self._messages[kind] = self._messages[kind], self._messages[kind] + 1
        if form.wire == "float32":
            return values, form
        streams = self.streams(senders).at(kind, self.rounds, number)
        return form.rounded(values.flatten(1), streams).reshape(values.shape), form

    def _draw(self) -> Tensor:
        """Draw the agents of a round, int64 `[reporting]`."""
        if self.calling == "random":
            return self._shuffled(self._rounds)[: self.reporting]
        drawn, self._waiting = self._waiting[: self.reporting], self._waiting[self.reporting :]
        if len(drawn) < self.reporting:
            order = self._shuffled(self._passes)
            self._passes += 1
            first = order[~torch.isin(order, drawn)][: self.reporting - len(drawn)]
            drawn, self._waiting = torch.cat([drawn, first]), order[~torch.isin(order, first)]
        return drawn

    def _shuffled(self, number: int) -> Tensor:
        return Streams(self._seed, [SHARED]).at("call", number).choose(self.agents, self.agents)[0]


def check_called(called: Called, count: int, values: Tensor | None = None) -> None:
    """Raise unless these are agents of `count`, with a row of values for each that lives here."""
    agents = called.agents
    if agents.dtype != torch.int64 or ((agents < 0) | (agents >= count)).any():
        raise ValueError(
            f"called: got {agents.tolist()}, but it must be what call returned, int64 from 0 to {count - 1}"
        )
    if values is not None and len(values) != len(called.here):
        raise ValueError(
            f"values: got {len(values)} rows, but there must be one for each of {len(called.here)} agents"
        )
