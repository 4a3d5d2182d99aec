"""Gradient tracking (DIGing): every agent tracks the average gradient of all agents.

A. Nedić, A. Olshevsky and W. Shi, "Achieving geometric convergence for distributed optimization
over time-varying graphs", SIAM Journal on Optimization 27(4), 2017. With momentum: R. Xin and
U. A. Khan, "Distributed heavy-ball: a generalization and acceleration of first-order methods with
gradient tracking", IEEE Transactions on Automatic Control 65(6), 2020. With mini-batches: S. Pu and
A. Nedić, "Distributed stochastic gradient tracking methods", Mathematical Programming 187, 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import GradientMethod, State, own_state
from fedsurf.algorithms.checks import check_averages
from fedsurf.common.checks import check_below_one
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class TrackingState(State):
    """Weights, and estimates of the average gradient."""

    tracker: Tensor
    """Y of the step before, `[rows, parameters]`; zero before the first step."""
    gradient: Tensor
    """The gradient of the step before, `[rows, parameters]`; zero before the first step."""
    previous: Tensor
    """The weights before the last step, for the momentum, `[rows, parameters]`."""


@dataclass(frozen=True)
class GradientTracking(GradientMethod):
    """Mix weights and trackers in one round and step along the tracked average gradient.

        W(l+1) = S·W(l) − β Y(l) + μ (W(l) − W(l−1))
        Y(l+1) = S·Y(l) + ∇f(W(l+1)) − ∇f(W(l)),    Y(0) = ∇f(W(0))

    Mixing keeps the average of Y, so that it is the average gradient in every step: a constant step
    leads to the optimum itself, where DGD stops near it. A round sends weights and trackers, twice the
    floats of DGD. S must be symmetric with rows that sum to 1 (`Network(graph, "metropolis")`). The
    method is not exact with mini-batches, nor in a star in which only some agents report. Too large a
    step diverges, the sooner the sparser the graph.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import GradientTracking
    >>> GradientTracking(SoftmaxHead(features=64, classes=10), 0.1, momentum=0.5).name
    'Gradient tracking'
    """

    name = "Gradient tracking"
    momentum: float = 0.0
    """The heavy ball's μ; 0 is DIGing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self.momentum, "momentum")

    def init(self, task: Task, network: Network, streams: Streams) -> TrackingState:
        """Draw W_0; trackers are zero."""
        check_averages(network, self.name)
        weights = self._first_weights(task, network, streams)
        zero = torch.zeros_like(weights)
        return TrackingState(weights, tracker=zero, gradient=zero, previous=weights)

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Update the tracker, Y(l) = S·Y(l−1) + ∇f(W(l)) − ∇f(W(l−1)); then W(l+1).

        Both products belong to one round, since Y(l−1) and W(l) are known at its beginning.
        """
        state = own_state(state, TrackingState)
        weights = state.weights
        gradient = self._gradient(weights, task, network, streams)
        mixed, tracker = network.mix(torch.stack([weights, state.tracker], 1)).unbind(1)
        tracker = tracker + gradient - state.gradient
        moved = mixed - self.step_size * tracker
        if self.momentum:
            moved = moved + self.momentum * (weights - state.previous)
        return TrackingState(
            moved, state.steps + 1, tracker=tracker, gradient=gradient, previous=weights
        )
