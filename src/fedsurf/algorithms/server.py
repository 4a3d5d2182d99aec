"""The frame of methods through a server: a round's messages, local training and the average.

In a round the server calls some agents, sends them its model, they train it on their own examples,
and the server aggregates their replies. Only the called agents compute, and floats are counted on
their links only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import ClassicalMethod, State
from fedsurf.algorithms.checks import check_batch_size, check_server
from fedsurf.algorithms.local import Correction, local_descent
from fedsurf.common.checks import check_count, check_option, check_positive
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Examples, Task


@dataclass(frozen=True)
class Round:
    """One round between the server and the called agents."""

    network: Network
    """The star, perhaps with faults; it carries and counts the messages."""
    agents: Tensor
    """The called agents, int64 `[called]`."""
    examples: Examples
    """Their training examples."""
    shares: Tensor
    """Their weights in the average, `[called]`; they sum to 1."""
    presence: Tensor
    """Their share of f, a number: |S|/N with uniform weighting."""

    def download(self, value: Tensor) -> Tensor:
        """Send the server's `value[…]` to the called agents: `[called, …]`."""
        return self.network.download(value, self.agents)

    def average(self, values: Tensor) -> Tensor:
        """Send the called agents' `values[called, …]` to the server, which averages them: `[…]`."""
        received = self.network.upload(values, self.agents)
        average: Tensor = torch.tensordot(self.shares, received, 1)
        return average

    def everywhere(self, server: Tensor) -> Tensor:
        """Return the server's model `[parameters]` as every node's row, without copying it.

        It is the method's result, so all agents are judged with it; nothing is sent here.
        """
        return server.expand(self.network.nodes, -1)


@dataclass(frozen=True)
class ServerMethod(ClassicalMethod):
    """A method through a server, with one round a step; all agents start at the server's row of W_0."""

    local_steps: int = 6
    """Gradient steps of a called agent in a round, K."""
    step_size: float = 0.1
    """Their length, the agents' learning rate."""
    batch_size: int | None = 10
    """Examples of a mini-batch; all of an agent's examples where None."""
    weighting: AgentWeighting = "uniform"
    """An agent's weight in averages: equal, or by its number of examples (n_k/n over the agents that
    report)."""

    def __post_init__(self) -> None:
        check_count(self.local_steps, "local_steps")
        check_positive(self.step_size, "step_size")
        check_batch_size(self.batch_size)
        check_option(self.weighting, AgentWeighting, "weighting")

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Draw the server's first model."""
        return State(self._first_weights(task, network, generator))

    def _first_weights(self, task: Task, network: Network, generator: torch.Generator) -> Tensor:
        check_server(network)
        drawn = super()._first_weights(task, network, generator)
        smallest = int(task.train.counts.min())
        if self.batch_size is not None and self.batch_size > smallest:
            raise ValueError(
                f"batch_size: got {self.batch_size}, but it must be between 1 and {smallest}, "
                "the number of examples of the agent with the fewest"
            )
        return drawn[0].clone().expand(network.nodes, -1)

    def _call(self, task: Task, network: Network) -> Round:
        check_server(network)
        agents = network.call()
        parts = task.agent_weights(self.weighting)[agents]
        presence = parts.sum()
        return Round(network, agents, task.train.of(agents), parts / presence, presence)

    def _train(
        self,
        weights: Tensor,
        examples: Examples,
        generator: torch.Generator,
        *,
        model: Model | None = None,
        correction: Correction | None = None,
    ) -> Tensor:
        return local_descent(
            self.model if model is None else model,
            weights,
            examples,
            generator,
            steps=self.local_steps,
            step_size=self.step_size,
            batch_size=self.batch_size,
            correction=correction,
        )
