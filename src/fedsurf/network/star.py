"""A star: a server without data, and agents of which a sample reports to it in each round."""

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_kind, check_option, check_whole
from fedsurf.network.config import Calling, Shift
from fedsurf.network.network import Network
from fedsurf.network.operators import NOTHING_LOST, LostMessages


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
    >>> models = star.download(torch.zeros(3), called)
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
        super().__init__(nx.star_graph(agents), shift, generator)
        if reporting is not None:
            self.reporting, self.reliable = reporting, reporting == agents

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; `generator` draws the agents that report."""
        super().reset(generator)
        # Agents of the round whose download, or whose upload, is sent and lost, and the rest of a pass.
        self._lost_downloads = self._lost_uploads = self._waiting = torch.empty(
            0, dtype=torch.int64
        )

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Let a sample of agents send to the server, and the server to all agents."""
        reporters = 1 + self._draw()
        self._rounds += 1
        used = (self.links[0] == 0) | torch.isin(self.links[0], reporters)
        self._count_floats(floats, used if lost.unsent is None else used & ~lost.unsent)
        return [
            self._exchange_with(reporters, *part, lost) for part in zip(values, sent, strict=True)
        ]

    def _exchange_with(
        self, reporters: Tensor, values: Tensor, sent: Tensor, lost: LostMessages
    ) -> Tensor:
        # A star's S is one row, one column and a diagonal: no product of matrices is needed.
        own, links = self._own_and_links(values.dtype)
        column, row = links.reshape(2, -1)
        received = row[reporters - 1] * (self.agents / self.reporting)
        if lost is not NOTHING_LOST:
            every = torch.zeros_like(row).index_copy(0, reporters - 1, received)
            own, links = lost.weigh(own, torch.cat([column, every]), self.links[1])
            column, row = links.reshape(2, -1)
            received = row[reporters - 1]
        flat = sent.flatten(1)
        mixed = own[:, None] * values.flatten(1)
        from_server = column[:, None] * flat[:1]
        to_server = (received @ flat[reporters])[None]
        return (mixed + torch.cat([to_server, from_server])).reshape(values.shape)

    def call(self, lost: LostMessages = NOTHING_LOST) -> Tensor:
        """Begin a round of the server: draw its agents, and return those that take part, from 0 on.

        With lost messages, agents that are away, or whose download or upload will not arrive, are
        drawn (their turn is over) but not returned, and the round does not change them. If no agent is
        left, the server waits for the first that it drew.
        """
        self._rounds += 1
        drawn = self._draw()
        none = torch.zeros(self.links.shape[1], dtype=torch.bool)
        lost_down, lost_up = (none if lost.links is None else lost.links).reshape(2, -1)[:, drawn]
        away = (none if lost.unsent is None else lost.unsent).reshape(2, -1)[:, drawn].all(0)
        arrive = ~(lost_down | lost_up)
        if not arrive.any():
            arrive[0] = True
        self._lost_downloads = drawn[~arrive & ~away]
        self._lost_uploads = drawn[~arrive & ~away & ~lost_down]
        return drawn[arrive]

    def download(self, value: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the server's `value[…]` to called agents, and return what they receive, `[agents, …]`.

        Lost downloads count as floats, too. If not all agents need this message, `among` is a mask of
        those that do, bool `[agents]`.
        """
        check_called(agents, self.agents)
        self._count_messages(0, agents, self._lost_downloads, among, value.numel())
        return value.expand(len(agents), *value.shape)

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send called agents' `values[agents, …]` to the server, and return what it receives.

        Lost uploads count as floats, too; `among` as in `download`.
        """
        check_called(agents, self.agents, values)
        self._count_messages(1, agents, self._lost_uploads, among, values.shape[1:].numel())
        return values

    def _count_messages(
        self, end: int, agents: Tensor, lost: Tensor, among: Tensor | None, floats: int
    ) -> None:
        """Count messages between the server, at this end of a link, and agents, lost ones included."""
        every = torch.cat([agents, lost if among is None else lost[among[lost]]])
        used = (self.links[end] == 0) & torch.isin(self.links[1 - end], 1 + every)
        self._count_floats(floats, used)

    def _draw(self) -> Tensor:
        """Draw the agents of a round, int64 `[reporting]`, from 0 on."""
        if self.calling == "random":
            return self._shuffled()[: self.reporting]
        drawn, self._waiting = self._waiting[: self.reporting], self._waiting[self.reporting :]
        if len(drawn) < self.reporting:
            order = self._shuffled()
            first = order[~torch.isin(order, drawn)][: self.reporting - len(drawn)]
            drawn, self._waiting = torch.cat([drawn, first]), order[~torch.isin(order, first)]
        return drawn

    def _shuffled(self) -> Tensor:
        return torch.randperm(self.agents, generator=self._generator)


def check_called(agents: Tensor, count: int, values: Tensor | None = None) -> None:
    """Raise unless these are numbers of `count` agents, with a row of values for each."""
    if agents.dtype != torch.int64 or ((agents < 0) | (agents >= count)).any():
        raise ValueError(
            f"agents: got {agents.tolist()}, but it must be what call returned, int64 from 0 to {count - 1}"
        )
    if values is not None and len(values) != len(agents):
        raise ValueError(
            f"values: got {len(values)} rows, but there must be one for each of {len(agents)} agents"
        )
