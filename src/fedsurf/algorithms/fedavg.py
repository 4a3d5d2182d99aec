"""Federated averaging (FedAvg).

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State
from fedsurf.algorithms.local import Correction
from fedsurf.algorithms.server import ServerMethod
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Train at the agents and average at the server; fields as in `ServerMethod`.

    Each called agent k starts at the server's model w_t and takes K steps; the server averages:

        w_k ← w_k − η ∇f_k(w_k; mini-batch),      w_{t+1} = Σ_k (n_k/n) w_k

    With one local step on all examples of all agents it is centralised gradient descent; with more
    steps and heterogeneous agents its limit differs from the optimum.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedAvg
    >>> FedAvg(SoftmaxHead(features=64, classes=10), local_steps=6, step_size=0.3).name
    'FedAvg'
    """

    name = "FedAvg"

    def _correction(self, received: Tensor) -> Correction | None:  # noqa: ARG002
        """Return a term to add to every gradient, given the received models `[called, parameters]`."""
        return None

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the average of the called agents' trained models."""
        called = self._call(task, network)
        received = called.download(state.weights[0])
        correction = self._correction(received)
        local = self._train(received, called.examples, generator, correction=correction)
        return State(called.everywhere(called.average(local)), state.steps + 1)
