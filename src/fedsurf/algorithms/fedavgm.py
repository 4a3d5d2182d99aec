"""FedAvgM: federated averaging with momentum at the server.

T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for
federated visual classification", arXiv:1909.06335, 2019.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State, own_state
from fedsurf.algorithms.server import ServerMethod
from fedsurf.common.checks import check_below_one, check_positive
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgMState(State):
    """The model and the server's velocity v, `[parameters]`."""

    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM(ServerMethod):
    """FedAvg with a heavy ball at the server.

    With Δ = Σ_k (n_k/n) (w_t − w_k) over the agents that report, the server sets

        v ← β v + Δ,      w_{t+1} = w_t − γ v,      v = 0 at the start

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedAvgM
    >>> FedAvgM(SoftmaxHead(features=64, classes=10), momentum=0.5).name
    'FedAvgM'
    """

    name = "FedAvgM"
    momentum: float = 0.9
    """The server's momentum β; with 0, and a server's step of 1, it is FedAvg."""
    server_step_size: float = 1.0
    """The server's step γ; 1 in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self.momentum, "momentum")
        check_positive(self.server_step_size, "server_step_size")

    def init(self, task: Task, network: Network, generator: torch.Generator) -> FedAvgMState:
        """Draw the server's first model; the velocity is zero."""
        weights = self._first_weights(task, network, generator)
        return FedAvgMState(weights, velocity=torch.zeros_like(weights[0]))

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Move the server's model along its velocity."""
        state = own_state(state, FedAvgMState)
        called = self._call(task, network)
        server = state.weights[0]
        received = called.download(server)
        local = self._train(received, called.examples, generator)
        velocity = self.momentum * state.velocity + (server - called.average(local))
        weights = called.everywhere(server - self.server_step_size * velocity)
        return FedAvgMState(weights, state.steps + 1, velocity=velocity)
