"""EXTRA, the exact first-order algorithm: DGD with a correction of its bias.

W. Shi, Q. Ling, G. Wu and W. Yin, "EXTRA: an exact first-order algorithm for decentralized
consensus optimization", SIAM Journal on Optimization 25(2), 2015.
"""

from dataclasses import dataclass

from torch import Tensor

from fedsurf.algorithms.algorithm import GradientMethod, State, own_state
from fedsurf.algorithms.checks import check_averages
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class ExtraState(State):
    """Weights, and the terms of the step before."""

    past: Tensor
    """½ (I + S) W(l−1) − β ∇f(W(l−1)) of the step before, `[rows, parameters]`; W(0) before the first
    step, which makes that one a step of DGD."""


@dataclass(frozen=True)
class EXTRA(GradientMethod):
    """Reach the optimum itself with a constant step and DGD's floats; fields as in `GradientMethod`.

        W(1)   = S·W(0) − β ∇f(W(0))
        W(l+2) = (I + S) W(l+1) − ½ (I + S) W(l) − β [∇f(W(l+1)) − ∇f(W(l))]

    With β below 2 λ_min((I + S)/2)/L it converges on convex losses with L-Lipschitz gradients. S must
    be symmetric with rows that sum to 1 (`Network(graph, "metropolis")`). The method is not exact with
    mini-batches, nor in a star in which only some agents report: there S changes, and the errors of
    the corrections add up over a long run.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import EXTRA
    >>> EXTRA(SoftmaxHead(features=64, classes=10), step_size=0.3).name
    'EXTRA'
    """

    name = "EXTRA"

    def init(self, task: Task, network: Network, streams: Streams) -> ExtraState:
        """Draw W_0."""
        check_averages(network, self.name)
        weights = self._first_weights(task, network, streams)
        return ExtraState(weights, past=weights)

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Return (I + S) W − β ∇f(W) less the terms of the step before."""
        state = own_state(state, ExtraState)
        descent = self.step_size * self._gradient(state.weights, task, network, streams)
        both = state.weights + network.mix(state.weights)
        return ExtraState(both - descent - state.past, state.steps + 1, past=both / 2 - descent)
