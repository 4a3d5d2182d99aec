"""FedDyn: federated learning with a dynamic regulariser.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough and V. Saligrama, "Federated
learning based on dynamic regularization", ICLR 2021, Algorithm 1.
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
class FedDynState(State):
    """The model and the regularisers' gradients, which are zero at the start."""

    gradients: Tensor
    """The agents' h_k, `[agents, parameters]`."""
    server_gradient: Tensor
    """The server's h, `[parameters]`: the weighted mean of all h_k."""


@dataclass(frozen=True)
class FedDyn(ServerMethod):
    """FedAvg with a regulariser that aligns the agents' optima.

    Each called agent k of the set P minimises, inexactly by K gradient steps from the server's model θ',

        f_k(θ) − ⟨h_k, θ⟩ + (α/2) ‖θ − θ'‖²,

    and updates h_k ← h_k − α (θ_k − θ'), which is ∇f_k(θ_k) at the minimum. With m agents in all, the
    server sets

        h ← h − α (1/m) Σ_{k in P} (θ_k − θ'),      θ = mean over P of θ_k − h/α

    With `weighting="examples"` the means are weighted by examples, and |P|/m is the called agents'
    share of all examples, so that h stays the weighted mean of all h_k.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedDyn
    >>> FedDyn(SoftmaxHead(features=64, classes=10), alpha=0.1).name
    'FedDyn'
    """

    name = "FedDyn"
    alpha: float = 0.1
    """The regulariser's strength α. With `step_size · alpha` above 2 the steps grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.alpha, "alpha")

    def init(self, task: Task, network: Network, generator: torch.Generator) -> FedDynState:
        """Draw the server's first model; all h are zero."""
        weights = self._first_weights(task, network, generator)
        gradients = weights.new_zeros(task.agents, weights.shape[1])
        return FedDynState(
            weights, gradients=gradients, server_gradient=torch.zeros_like(weights[0])
        )

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the called agents' average, corrected by the server's h."""
        state = own_state(state, FedDynState)
        called = self._call(task, network)
        received = called.download(state.weights[0])
        gradients = state.gradients[called.agents]
        local = self._train(
            received,
            called.examples,
            generator,
            correction=lambda weights: self.alpha * (weights - received) - gradients,
        )
        renewed = gradients - self.alpha * (local - received)
        average = called.average(local)
        change = called.presence * (average - state.weights[0])
        server_gradient = state.server_gradient - self.alpha * change
        return FedDynState(
            called.everywhere(average - server_gradient / self.alpha),
            state.steps + 1,
            gradients=state.gradients.index_copy(0, called.agents, renewed),
            server_gradient=server_gradient,
        )
