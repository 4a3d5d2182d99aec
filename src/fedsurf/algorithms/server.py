"""The frame of methods through a server: two roles, with a message between them.

In a round the server calls some agents and sends them its message; they train on their own examples and
reply; the server updates its model from the replies. A method says what its server sends
(`server_message`), what a called agent does (`agent_reply`) and what the server makes of the replies
(`server_update`); the network carries and counts both messages. An agent's own variables live in its own
rows of the state.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import ClassicalMethod, ServerState, State, own_state
from fedsurf.algorithms.checks import check_batch_size, check_fits, check_server
from fedsurf.algorithms.local import Correction, local_descent
from fedsurf.common.checks import check_count, check_option, check_positive
from fedsurf.common.streams import Streams
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.network.wire import Parts, Sections
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Examples, Task

Own = Mapping[str, Tensor]
"""Called agents' own variables by name, each `[called, …]`."""


@dataclass(frozen=True, kw_only=True)
class RoundState(ServerState):
    """The state of a method through a server; what the server has is `[servers, …]`."""

    total: Tensor
    """The sum of all agents' weights in f: of their numbers of examples, or of ones; a scalar."""

    agents_own: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that belong to agents, `[agents, …]`."""

    def of_agents(self, rows: Tensor) -> dict[str, Tensor]:
        """Return some agents' own variables."""
        return {name: getattr(self, name)[rows] for name in self.agents_own}

    def with_agents(self, rows: Tensor, own: Own) -> "RoundState":
        """Return the state with other variables of some agents."""
        changed = {n: getattr(self, n).index_copy(0, rows, value) for n, value in own.items()}
        return replace(self, **changed)


@dataclass(frozen=True)
class Work:
    """The data and the streams of the called agents of a process."""

    examples: Examples
    """Their training examples."""
    streams: Streams
    """Their streams in this step."""


@dataclass(frozen=True)
class Replies:
    """The replies that the server received in a round."""

    values: Tensor
    """The called agents' replies, `[called, …]`."""
    shares: Tensor
    """Their weights in the average, `[called]`; they sum to 1."""
    presence: Tensor
    """Their share of f, a scalar: |S|/N with uniform weighting."""

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the replies, `[1, …]`."""
        mean: Tensor = torch.tensordot(self.shares, self.values, 1)
        return mean[None]


@dataclass(frozen=True)
class ServerMethod(ClassicalMethod):
    """A method through a server, with one round a step; all agents start at the server's W_0."""

    state_kind: ClassVar[type[RoundState]] = RoundState

    local_steps: int = 6
    """Gradient steps of a called agent in a round, K."""
    step_size: float = 0.1
    """Their length, the agents' learning rate."""
    batch_size: int | None = 10
    """Examples of a mini-batch; all of an agent's examples where None."""
    weighting: AgentWeighting = "uniform"
    """An agent's weight in averages: equal, or by its number of examples (n_k/n over the agents that
    report), which is then a part of its reply: one float more."""

    def __post_init__(self) -> None:
        check_count(self.local_steps, "local_steps")
        check_positive(self.step_size, "step_size")
        check_batch_size(self.batch_size)
        check_option(self.weighting, AgentWeighting, "weighting")

    @abstractmethod
    def server_message(self, state: RoundState) -> Tensor:
        """Return the server's message to every called agent, `[servers, …]`."""

    @abstractmethod
    def agent_reply(self, received: Tensor, own: Own, work: Work) -> tuple[Tensor, Own]:
        """Return called agents' replies to `received[called, …]`, and their own variables afterwards."""

    @abstractmethod
    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Return the state with the server's variables after a round."""

    def init(self, task: Task, network: Network, streams: Streams) -> RoundState:
        """Draw the server's first model, which every process draws alike."""
        check_server(network)
        check_fits(task, network, self.model)
        smallest = min(task.train.sizes, default=self.batch_size or 1)
        if self.batch_size is not None and self.batch_size > smallest:
            raise ValueError(
                f"batch_size: got {self.batch_size}, but it must be between 1 and {smallest}, "
                "the number of examples of the agent with the fewest"
            )
        drawn = self.start.draw(self.model, streams.shared(), task.train.x)
        counts = task.train.counts[:, None].to(drawn)
        total = counts if self.weighting == "examples" else torch.ones_like(counts)
        first = RoundState(drawn[: network.servers], total=network.total(total)[0])
        return self.first_state(first, drawn, task.agents)

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:  # noqa: ARG002
        """Return a method's own state before the first round; `drawn` is W_0, `[1, parameters]`."""
        return first

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Take a round: message, work and replies of the called agents, update."""
        state = own_state(state, self.state_kind)
        called = network.attend(network.call())
        here = called.here.to(task.train.x.device)
        work = Work(task.train.of(called.here), network.agent_rows(streams)[called.here])
        received = network.download(self.server_message(state), called)
        reply, own = self.agent_reply(received, state.of_agents(here), work)
        shape = reply.shape[1:]
        sent = reply.flatten(1)
        layout = Parts([reply]).layout
        if self.weighting == "examples":
            sent = torch.cat([sent, work.examples.counts[:, None].to(sent)], 1)
            layout = (*layout, Sections(1, 1))
        uploaded = network.upload(sent, called, layout=layout)
        state = state.with_agents(here, own)
        if len(uploaded):  # the server's; none if all called agents are gone
            values = uploaded[:, : shape.numel()].reshape(-1, *shape)
            parts = uploaded[:, -1]
            if self.weighting == "uniform":
                parts = torch.ones_like(parts)
            present = parts.sum()
            state = self.server_update(
                state, Replies(values, parts / present, present / state.total)
            )
        return replace(state, steps=state.steps + 1)

    def train(
        self,
        received: Tensor,
        work: Work,
        *,
        model: Model | None = None,
        correction: Correction | None = None,
    ) -> Tensor:
        """Take the local steps of called agents from `received[called, parameters]`."""
        return local_descent(
            self.model if model is None else model,
            received,
            work.examples,
            work.streams,
            steps=self.local_steps,
            step_size=self.step_size,
            batch_size=self.batch_size,
            correction=correction,
        )
