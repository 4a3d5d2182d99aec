"""FedDyn: federated learning with a dynamic regulariser.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough and V. Saligrama, "Federated
learning based on dynamic regularization", ICLR 2021, Algorithm 1.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import own_state
from fedsurf.algorithms.server import Own, Replies, RoundState, ServerMethod, Work
from fedsurf.common.checks import check_positive


@dataclass(frozen=True, kw_only=True)
class FedDynState(RoundState):
    """The model and the regularisers' gradients, which are zero at the start."""

    gradients: Tensor
    """The agents' h_k, `[agents, parameters]`."""
    server_gradient: Tensor
    """The server's h, `[servers, parameters]`: the weighted mean of all h_k."""

    agents_own = ("gradients",)


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
    state_kind = FedDynState
    alpha: float = 0.1
    """The regulariser's strength α. With `step_size · alpha` above 2 the steps grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.alpha, "alpha")

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:
        """Return the state before the first round; all h are zero."""
        return FedDynState(
            first.weights,
            total=first.total,
            gradients=drawn.new_zeros(agents, drawn.shape[1]),
            server_gradient=torch.zeros_like(first.weights),
        )

    def server_message(self, state: RoundState) -> Tensor:
        """Send the model."""
        return state.weights

    def agent_reply(self, received: Tensor, own: Own, work: Work) -> tuple[Tensor, Own]:
        """Reply with the trained model, and update h_k."""
        gradients = own["gradients"]
        local = self.train(
            received,
            work,
            correction=lambda weights: self.alpha * (weights - received) - gradients,
        )
        return local, {"gradients": gradients - self.alpha * (local - received)}

    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Take the average, corrected by the server's h."""
        state = own_state(state, FedDynState)
        average = replies.mean
        change = replies.presence * (average - state.weights)
        gradient = state.server_gradient - self.alpha * change
        return replace(state, weights=average - gradient / self.alpha, server_gradient=gradient)
