"""SCAFFOLD: federated averaging with control variates.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh, "SCAFFOLD:
stochastic controlled averaging for federated learning", ICML 2020, Algorithm 1 with option II.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State, own_state
from fedsurf.algorithms.server import ServerMethod
from fedsurf.common.checks import check_positive
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class SCAFFOLDState(State):
    """The model and the control variates, which are zero at the start."""

    variates: Tensor
    """The agents' c_i, `[agents, parameters]`."""
    server_variate: Tensor
    """The server's c, `[parameters]`: the weighted mean of all c_i."""


@dataclass(frozen=True)
class SCAFFOLD(ServerMethod):
    """FedAvg whose agents correct their drift by control variates.

    The called agents S of N receive the model x and the server's variate c, and take K steps

        y_i ← y_i − η_l (∇f_i(y_i; mini-batch) − c_i + c)

    from y_i = x. Then

        c_i⁺ = c_i − c + (x − y_i) / (K η_l),
        x ← x + η_g · mean over S of (y_i − x),      c ← c + |S|/N · mean over S of (c_i⁺ − c_i)

    A model and a variate cross every used link in each direction: 2d floats. With
    `weighting="examples"` the means are weighted by examples, and |S|/N is the called agents' share of
    all examples, so that c stays the weighted mean of all c_i.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import SCAFFOLD
    >>> SCAFFOLD(SoftmaxHead(features=64, classes=10), step_size=0.3).name
    'SCAFFOLD'
    """

    name = "SCAFFOLD"
    server_step_size: float = 1.0
    """The server's step η_g; `step_size` is the agents' η_l."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.server_step_size, "server_step_size")

    def init(self, task: Task, network: Network, generator: torch.Generator) -> SCAFFOLDState:
        """Draw the server's first model; all variates are zero."""
        weights = self._first_weights(task, network, generator)
        variates = weights.new_zeros(task.agents, weights.shape[1])
        return SCAFFOLDState(
            weights, variates=variates, server_variate=torch.zeros_like(weights[0])
        )

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Move the model and the server's variate by the mean changes of the called agents."""
        state = own_state(state, SCAFFOLDState)
        called = self._call(task, network)
        sent = torch.stack([state.weights[0], state.server_variate])
        received, server_variate = called.download(sent).unbind(1)
        variates = state.variates[called.agents]
        drift = server_variate - variates
        local = self._train(received, called.examples, generator, correction=lambda _: drift)
        change = local - received
        renewed = -drift - change / (self.local_steps * self.step_size)
        mean_change = called.average(torch.stack([change, renewed - variates], 1))
        return SCAFFOLDState(
            called.everywhere(state.weights[0] + self.server_step_size * mean_change[0]),
            state.steps + 1,
            variates=state.variates.index_copy(0, called.agents, renewed),
            server_variate=state.server_variate + called.presence * mean_change[1],
        )
