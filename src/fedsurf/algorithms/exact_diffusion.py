"""Exact Diffusion: adapt, correct, combine.

K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact diffusion for distributed optimization and
learning, part I: algorithm development", IEEE Transactions on Signal Processing 67(3), 2019.
"""

from dataclasses import dataclass

from torch import Tensor

from fedsurf.algorithms.algorithm import GradientMethod, State, own_state
from fedsurf.algorithms.checks import check_averages
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class DiffusionState(State):
    """Weights, and the adapted weights of the step before."""

    adapted: Tensor
    """Ψ of the step before, `[rows, parameters]`; W(0) before the first step."""


@dataclass(frozen=True)
class ExactDiffusion(GradientMethod):
    """Reach the optimum itself with a constant step and DGD's floats; fields as in `GradientMethod`.

        Ψ(l) = W(l−1) − β ∇f(W(l−1))              adapt
        Φ(l) = Ψ(l) + W(l−1) − Ψ(l−1)             correct
        W(l) = ½ (I + S) Φ(l)                     combine

    with Ψ(0) = W(0), so that the first step is plain diffusion. Mixing after the gradient step allows
    larger steps than EXTRA's. S must be symmetric with rows that sum to 1
    (`Network(graph, "metropolis")`). The method is not exact with mini-batches, nor in a star in which
    only some agents report: there S changes, and the errors of the corrections add up over a long run.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import ExactDiffusion
    >>> ExactDiffusion(SoftmaxHead(features=64, classes=10), step_size=0.3).name
    'Exact Diffusion'
    """

    name = "Exact Diffusion"

    def init(self, task: Task, network: Network, streams: Streams) -> DiffusionState:
        """Draw W_0."""
        check_averages(network, self.name)
        weights = self._first_weights(task, network, streams)
        return DiffusionState(weights, adapted=weights)

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Adapt, correct, and combine with the neighbours."""
        state = own_state(state, DiffusionState)
        gradient = self._gradient(state.weights, task, network, streams)
        adapted = state.weights - self.step_size * gradient
        corrected = adapted + state.weights - state.adapted
        combined = (corrected + network.mix(corrected)) / 2
        return DiffusionState(combined, state.steps + 1, adapted=adapted)
