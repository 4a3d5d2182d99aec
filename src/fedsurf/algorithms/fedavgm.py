"""FedAvgM: federated averaging with momentum at the server.

T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for
federated visual classification", arXiv:1909.06335, 2019.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import own_state
from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.server import Replies, RoundState
from fedsurf.common.checks import check_below_one, check_positive


@dataclass(frozen=True, kw_only=True)
class FedAvgMState(RoundState):
    """The model and the server's velocity v, `[servers, parameters]`."""

    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM(FedAvg):
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
    state_kind = FedAvgMState
    momentum: float = 0.9
    """The server's momentum β; with 0, and a server's step of 1, it is FedAvg."""
    server_step_size: float = 1.0
    """The server's step γ; 1 in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self.momentum, "momentum")
        check_positive(self.server_step_size, "server_step_size")

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:  # noqa: ARG002
        """Return the state before the first round; the velocity is zero."""
        return FedAvgMState(
            first.weights, total=first.total, velocity=torch.zeros_like(first.weights)
        )

    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Move the model along the velocity."""
        state = own_state(state, FedAvgMState)
        velocity = self.momentum * state.velocity + (state.weights - replies.mean)
        weights = state.weights - self.server_step_size * velocity
        return replace(state, weights=weights, velocity=velocity)
