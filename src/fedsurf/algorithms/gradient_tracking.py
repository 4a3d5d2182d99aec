"""Gradient tracking (DIGing): every agent tracks the average gradient of all agents.

A. Nedić, A. Olshevsky and W. Shi, "Achieving geometric convergence for distributed optimization
over time-varying graphs", SIAM Journal on Optimization 27(4), 2017:

    W(l+1) = S·W(l) − β Y(l)
    Y(l+1) = S·Y(l) + ∇f(W(l+1)) − ∇f(W(l)),    Y(0) = ∇f(W(0)).

Mixing keeps the average of Y, so that it is the average gradient in every step: a constant step
leads to the optimum itself, where DGD stops beside it. With momentum μ the first line gains
μ (W(l) − W(l−1)), the distributed heavy ball of R. Xin and U. A. Khan, "Distributed heavy-ball: a
generalization and acceleration of first-order methods with gradient tracking", IEEE Transactions
on Automatic Control 65(6), 2020. With mini-batches it is the DSGT of S. Pu and A. Nedić,
"Distributed stochastic gradient tracking methods", Mathematical Programming 187, 2021.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits, node_gradient
from fedsurf.algorithms.checks import (
    check_averages,
    check_batch_size,
    check_momentum,
    check_step_size,
    own_state,
)
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class TrackingState(State):
    """Weights, and what tracks the average gradient.

    Attributes
    ----------
    tracker : Tensor
        Y of the step before, `[nodes, parameters]`; zero before the first step.
    gradient : Tensor
        The gradient of the step before, `[nodes, parameters]`; zero before the first step.
    previous : Tensor
        The weights before the last step, for the momentum, `[nodes, parameters]`.
    """

    tracker: Tensor
    gradient: Tensor
    previous: Tensor


@dataclass(frozen=True)
class GradientTracking:
    """Mix weights and trackers in one round, step against the tracked average gradient.

    A round sends both, twice the floats of DGD. It needs a symmetric S whose rows sum to 1
    (`Network(graph, "metropolis")`); in a star of whom only some agents report, mixing does not
    keep the average, and it is exact no longer.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The β above; too large a step diverges, the sooner the sparser the graph.
    momentum : float
        Heavy ball on the weights: 0 is DIGing.
    batch_size : int or None
        Examples of a mini-batch; all of an agent's examples where None, and only then exact.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    step_size: float = 0.1
    momentum: float = 0.0
    batch_size: int | None = None
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_step_size(self.step_size)
        check_momentum(self.momentum)
        check_batch_size(self.batch_size)

    @property
    def name(self) -> str:
        """The method's name."""
        return "Gradient tracking"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> TrackingState:
        """Draw W_0; nothing is tracked yet."""
        check_fits(task, network, self.model)
        check_averages(network, self.name)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        nothing = torch.zeros_like(weights)
        return TrackingState(weights, tracker=nothing, gradient=nothing, previous=weights)

    def step(
        self, state: State, task: Task, network: Network, generator: torch.Generator
    ) -> TrackingState:
        """Bring the tracker up to date, Y(l) = S·Y(l−1) + ∇f(W(l)) − ∇f(W(l−1)); then W(l+1).

        Both products belong to one round, since Y(l−1) and W(l) are known at its beginning.
        """
        state = own_state(state, TrackingState)
        weights = state.weights
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, generator)
        gradient = node_gradient(self.model, network, weights, batch)
        mixed, tracker = network.mix(torch.stack([weights, state.tracker], 1)).unbind(1)
        tracker = tracker + gradient - state.gradient
        moved = mixed - self.step_size * tracker
        if self.momentum:
            moved = moved + self.momentum * (weights - state.previous)
        return TrackingState(
            moved, state.steps + 1, tracker=tracker, gradient=gradient, previous=weights
        )
