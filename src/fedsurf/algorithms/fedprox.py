"""FedProx: federated averaging with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated optimization in
heterogeneous networks", MLSys 2020. Each called agent k minimises, inexactly and from w_t,

    f_k(w) + (μ/2) ‖w − w_t‖²,

here by the same K gradient steps as FedAvg, and the server averages as FedAvg does.
"""

from dataclasses import dataclass

import torch

from fedsurf.algorithms.algorithm import State
from fedsurf.algorithms.server import ServerMethod, check_not_negative
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class FedProx(ServerMethod):
    """FedAvg whose agents are drawn back to the server's model; the rest as of `ServerMethod`.

    Attributes
    ----------
    mu : float
        How strongly, the paper's μ; 0 is FedAvg. Keep `step_size · mu` below 2, or the steps grow.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("mu", self.mu)

    @property
    def name(self) -> str:
        """The method's name."""
        return "FedProx"

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the average of what the called agents made of the server's model, near it."""
        called = self._call(task, network)
        received = called.download(state.weights[0])
        local = self._train(
            received,
            called.examples,
            generator,
            correction=lambda weights: self.mu * (weights - received),
        )
        return State(called.everywhere(called.average(local)), state.steps + 1)
