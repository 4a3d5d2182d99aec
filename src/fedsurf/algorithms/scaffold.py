"""SCAFFOLD: federated averaging with control variates.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh, "SCAFFOLD:
stochastic controlled averaging for federated learning", ICML 2020, Algorithm 1 with option II.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import own_state
from fedsurf.algorithms.server import Own, Replies, RoundState, ServerMethod, Work
from fedsurf.common.checks import check_positive


@dataclass(frozen=True, kw_only=True)
class SCAFFOLDState(RoundState):
    """The model and the control variates, which are zero at the start."""

    variates: Tensor
    """The agents' c_i, `[agents, parameters]`."""
    server_variate: Tensor
    """The server's c, `[servers, parameters]`: the weighted mean of all c_i."""

    agents_own = ("variates",)


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
    state_kind = SCAFFOLDState
    server_step_size: float = 1.0
    """The server's step η_g; `step_size` is the agents' η_l."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.server_step_size, "server_step_size")

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:
        """Return the state before the first round; all variates are zero."""
        return SCAFFOLDState(
            first.weights,
            total=first.total,
            variates=drawn.new_zeros(agents, drawn.shape[1]),
            server_variate=torch.zeros_like(first.weights),
        )

    def server_message(self, state: RoundState) -> Tensor:
        """Send the model and the server's variate."""
        state = own_state(state, SCAFFOLDState)
        return torch.stack([state.weights, state.server_variate], 1)

    def agent_reply(self, received: Tensor, own: Own, work: Work) -> tuple[Tensor, Own]:
        """Reply with the changes of the model and of the agent's variate."""
        model, server_variate = received.unbind(1)
        variates = own["variates"]
        drift = server_variate - variates
        change = self.train(model, work, correction=lambda _: drift) - model
        renewed = -drift - change / (self.local_steps * self.step_size)
        return torch.stack([change, renewed - variates], 1), {"variates": renewed}

    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Move the model and the server's variate by the mean changes."""
        state = own_state(state, SCAFFOLDState)
        change, of_variates = replies.mean.unbind(1)
        return replace(
            state,
            weights=state.weights + self.server_step_size * change,
            server_variate=state.server_variate + replies.presence * of_variates,
        )
