"""FedAdam: federated averaging with Adam at the server.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar and H. B. McMahan,
"Adaptive federated optimization", ICLR 2021, Algorithm 2.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import own_state
from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.server import Replies, RoundState
from fedsurf.common.checks import check_below_one, check_positive


@dataclass(frozen=True, kw_only=True)
class FedAdamState(RoundState):
    """The model and the server's moments."""

    first_moment: Tensor
    second_moment: Tensor
    """The paper's m and v, `[servers, parameters]`."""


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg with Adam's steps at the server.

    With Δ the mean of w_k − w_t over the agents that report, the server sets, number by number,

        m ← β₁ m + (1 − β₁) Δ,      v ← β₂ v + (1 − β₂) Δ²,      w_{t+1} = w_t + η m / (√v + τ)

    from m = 0 and v = τ², without Adam's bias correction, as in the paper.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedAdam
    >>> FedAdam(SoftmaxHead(features=64, classes=10), server_step_size=0.1, tau=0.01).name
    'FedAdam'
    """

    name = "FedAdam"
    state_kind = FedAdamState
    server_step_size: float = 0.1
    """The server's step η."""
    beta1: float = 0.9
    beta2: float = 0.99
    """Decay of the moments, β₁ and β₂."""
    tau: float = 1e-3
    """The paper's τ; the smaller, the more adaptive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.server_step_size, "server_step_size")
        check_below_one(self.beta1, "beta1")
        check_below_one(self.beta2, "beta2")
        check_positive(self.tau, "tau")

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:  # noqa: ARG002
        """Return the state before the first round; m = 0 and v = τ²."""
        zero = torch.zeros_like(first.weights)
        return FedAdamState(
            first.weights,
            total=first.total,
            first_moment=zero,
            second_moment=zero + self.tau**2,
        )

    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Move the model by the first moment over the root of the second."""
        state = own_state(state, FedAdamState)
        change = replies.mean - state.weights
        first = self.beta1 * state.first_moment + (1 - self.beta1) * change
        second = self.beta2 * state.second_moment + (1 - self.beta2) * change.square()
        moved = state.weights + self.server_step_size * first / (second.sqrt() + self.tau)
        return replace(state, weights=moved, first_moment=first, second_moment=second)
