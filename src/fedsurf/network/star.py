"""A star: a server without data, and agents of whom some report to it in a round."""

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

from fedsurf.common.checks import check_kind, check_option, check_whole
from fedsurf.network.config import Calling, Shift
from fedsurf.network.losses import NO_LOSSES, Losses
from fedsurf.network.network import Network


class StarNetwork(Network):
    """A server (node 0, without data) and agents, of whom a few report in each round.

    In a round the server receives the rows of `reporting` agents, and every agent receives the
    server's. The server's row of S keeps its sum: the weights of the agents who do not report go, in
    equal parts, to those who do. The links are those from the server to agent 1, 2, …, then those
    from agent 1, 2, … to the server.

    Who reports is drawn in each round independently of all others (the paper's), or in turn: every
    agent once, in a random order, before any is called again, in another order. Of 100 agents, 10 of
    whom report at random, a third is never heard in 10 rounds; in turn all are. Where a round ends
    one pass over the agents, it takes the first of the next pass who are not in it already; those
    who are keep their place there. So, with n agents, nobody reports twice in a round, and after r
    rounds everybody was called r · reporting / n times, rounded down or up. That is at most once more
    than anybody else; in rounds from the middle of a run alone it may be twice more.

    With faults, an agent that was called counts as called, also if it was away or its messages were
    lost: its turn comes again in the next pass only.

    Parameters
    ----------
    agents : int
        The number of agents, without the server.
    reporting : int or None
        How many of them report in a round (the paper: 10 of 100); all where None.
    generator : torch.Generator
        Draws who reports.
    shift : {"adjacency", "metropolis", "laplacian"}
        The shift operator S.
    calling : {"random", "in-turn"}
        How who reports is drawn. Where all report, both are the same, to the bit.
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
        check_whole(agents, "agents")
        check_kind(generator, torch.Generator, "generator", "a torch.Generator")
        if reporting is not None:
            check_whole(reporting, "reporting", " or None for all agents")
        if agents < 1:
            raise ValueError(f"agents: got {agents}, but a network has at least one agent")
        if reporting is not None and not 1 <= reporting <= agents:
            raise ValueError(
                f"reporting: got {reporting}, but it must be between 1 and {agents}, the agents"
            )
        check_option(calling, Calling, "calling")
        self._reporting = agents if reporting is None else reporting
        self.calling = calling
        super().__init__(nx.star_graph(agents), shift, generator)

    @property
    def reporting(self) -> int:
        """How many agents are heard in a round."""
        return self._reporting

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run: nothing was sent yet, and who reports is drawn from `generator`."""
        super().reset(generator)
        nobody = torch.empty(0, dtype=torch.int64)
        self._unreached, self._unheard = nobody, nobody
        self._waiting = nobody  # whose turn comes in this pass, in their order

    def carry(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], losses: Losses, floats: int
    ) -> list[Tensor]:
        """Let sampled agents send to the server, and the server to all agents."""
        reporters = 1 + self._draw()
        self._rounds += 1
        down = self.links[0] == 0
        up = torch.isin(self.links[0], reporters)
        used = down | up if losses.unsent is None else (down | up) & ~losses.unsent
        self._count_floats(floats, used)
        return [
            self._carry_between(*part, reporters, losses) for part in zip(values, sent, strict=True)
        ]

    def _carry_between(
        self, values: Tensor, sent: Tensor, reporters: Tensor, losses: Losses
    ) -> Tensor:
        # A star's operator is one row, one column and a diagonal: no product of matrices is needed.
        own, links = self._own_and_links(values.dtype)
        column, row = links.reshape(2, -1)
        heard = row[reporters - 1] * (self.agents / self.reporting)
        if losses is not NO_LOSSES:
            every = torch.zeros_like(row).index_copy(0, reporters - 1, heard)
            own, links = losses.weigh(own, torch.cat([column, every]), self.links[1])
            column, row = links.reshape(2, -1)
            heard = row[reporters - 1]
        flat = sent.flatten(1)
        mixed = own[:, None] * values.flatten(1)
        from_server = column[:, None] * flat[:1]
        to_server = (heard @ flat[reporters])[None]
        return (mixed + torch.cat([to_server, from_server])).reshape(values.shape)

    def summon(self, losses: Losses) -> Tensor:
        """Begin a round between the server and some agents: draw them, int64 `[reporting]`, from 0 on.

        A server's method downloads to them, lets them work, and uploads from them: one round. With
        losses, those are drawn but not returned who are away, or whose download or upload will not
        arrive: they take no part, and are after the round what they were before it. If that leaves
        nobody, the server waits for the first that it has drawn.
        """
        self._rounds += 1
        drawn = self._draw()
        lost = torch.zeros(self.links.shape[1], dtype=torch.bool)
        lost_down, lost_up = (lost if losses.lost is None else losses.lost).reshape(2, -1)[:, drawn]
        away = (lost if losses.unsent is None else losses.unsent).reshape(2, -1)[:, drawn].all(0)
        arrive = ~(lost_down | lost_up)
        if not arrive.any():
            arrive[0] = True
        self._unreached = drawn[~arrive & ~away]
        self._unheard = drawn[~arrive & ~away & ~lost_down]
        return drawn[arrive]

    def download(self, value: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the server's `value[…]` to the given agents: `[agents, …]`.

        What it sent to those of this round's whom it did not reach counts, too: to all of them, or to
        those `among`, bool `[agents]`, to whom it has to send this.
        """
        check_agents(agents, self.agents)
        reached = torch.cat([agents, _some(self._unreached, among)])
        self._count(self.links[0] == 0, self.links[1], reached, value.numel())
        return value.expand(len(agents), *value.shape)

    def upload(self, values: Tensor, agents: Tensor, among: Tensor | None = None) -> Tensor:
        """Send the given agents' `values[agents, …]` to the server.

        What those of this round's sent whom it did not hear counts, too: of all of them, or of those
        `among`, bool `[agents]`, who have to send this.
        """
        check_agents(agents, self.agents)
        check_rows(values, agents)
        sending = torch.cat([agents, _some(self._unheard, among)])
        self._count(self.links[1] == 0, self.links[0], sending, values.shape[1:].numel())
        return values

    def _draw(self) -> Tensor:
        """Draw who reports in this round, int64 `[reporting]`, from 0 on."""
        if self.calling == "random":
            return self._order()[: self.reporting]
        drawn, self._waiting = self._waiting[: self.reporting], self._waiting[self.reporting :]
        if len(drawn) < self.reporting:
            order = self._order()
            first = order[~torch.isin(order, drawn)][: self.reporting - len(drawn)]
            drawn, self._waiting = torch.cat([drawn, first]), order[~torch.isin(order, first)]
        return drawn

    def _order(self) -> Tensor:
        return torch.randperm(self.agents, generator=self._generator)

    def _count(self, direction: Tensor, ends: Tensor, agents: Tensor, size: int) -> None:
        self._count_floats(size, direction & torch.isin(ends, 1 + agents))


def check_agents(agents: Tensor, count: int) -> None:
    """Raise unless these are numbers of `count` agents: others' floats would count on no link."""
    if agents.dtype != torch.int64 or ((agents < 0) | (agents >= count)).any():
        raise ValueError(
            f"agents: got {agents.tolist()}, but it must be numbers of agents, as call returns them, int64 "
            f"from 0 to {count - 1}"
        )


def check_rows(values: Tensor, agents: Tensor) -> None:
    """Raise unless there is a row of values for each of the agents that upload: nobody else is heard."""
    if len(values) != len(agents):
        raise ValueError(
            f"values: got {len(values)} rows of {len(agents)} agents that upload, but there must be one of each"
        )


def _some(agents: Tensor, among: Tensor | None) -> Tensor:
    return agents if among is None else agents[among[agents]]
