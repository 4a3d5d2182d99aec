"""Federated averaging (FedAvg).

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017. Each called agent k starts at the
server's model w_t and takes K steps

    w_k ← w_k − η ∇f_k(w_k; mini-batch),

and the server averages: w_{t+1} = Σ_k (n_k/n) w_k over the agents that report.
"""

from dataclasses import dataclass

import torch

from fedsurf.algorithms.algorithm import State
from fedsurf.algorithms.server import ServerMethod
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Train at the agents, average at the server; hyperparameters as of `ServerMethod`.

    With one local step on all examples and all agents reporting it is centralised gradient
    descent; with more steps and agents that differ, it settles beside the optimum.
    """

    @property
    def name(self) -> str:
        """The method's name."""
        return "FedAvg"

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the average of what the called agents made of the server's model."""
        called = self._call(task, network)
        received = called.download(state.weights[0])
        local = self._train(received, called.examples, generator)
        return State(called.everywhere(called.average(local)), state.steps + 1)
