"""FedAvgM: federated averaging with momentum at the server.

T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for
federated visual classification", arXiv:1909.06335, 2019. With Δ = Σ_k (n_k/n) (w_t − w_k) over the
agents that report, the server sets

    v ← β v + Δ,      w_{t+1} = w_t − γ v,      v = 0 at the start.

The paper's update has γ = 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State
from fedsurf.algorithms.checks import check_step_size, own_state
from fedsurf.algorithms.server import ServerMethod, check_below_one
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgMState(State):
    """The server's velocity v beside the model, `[parameters]`."""

    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM(ServerMethod):
    """FedAvg whose server follows a heavy ball; the rest as of `ServerMethod`.

    Attributes
    ----------
    momentum : float
        The server's momentum β; with 0, and a server's step of 1, it is FedAvg.
    server_step_size : float
        The server's step γ.
    """

    momentum: float = 0.9
    server_step_size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one("momentum", self.momentum)
        check_step_size(self.server_step_size, "server_step_size")

    @property
    def name(self) -> str:
        """The method's name."""
        return "FedAvgM"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> FedAvgMState:
        """Draw the server's first model; the velocity is zero."""
        weights = self._first_weights(task, network, generator)
        return FedAvgMState(weights, velocity=torch.zeros_like(weights[0]))

    def step(
        self, state: State, task: Task, network: Network, generator: torch.Generator
    ) -> FedAvgMState:
        """Move the server's model along its velocity."""
        state = own_state(state, FedAvgMState)
        called = self._call(task, network)
        server = state.weights[0]
        received = called.download(server)
        local = self._train(received, called.examples, generator)
        velocity = self.momentum * state.velocity + (server - called.average(local))
        weights = called.everywhere(server - self.server_step_size * velocity)
        return FedAvgMState(weights, state.steps + 1, velocity=velocity)
