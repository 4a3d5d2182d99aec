"""Decentralised gradient descent (DGD).

A. Nedić and A. Ozdaglar, "Distributed subgradient methods for multi-agent optimization", IEEE
Transactions on Automatic Control 54(1), 2009.
"""

from dataclasses import dataclass

from fedsurf.algorithms.algorithm import GradientMethod, State
from fedsurf.algorithms.checks import check_mixes
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class DGD(GradientMethod):
    """Mix with the neighbours and step along the agent's own gradient; fields as in `GradientMethod`.

        w_i(l) = Σ_j S_ij w_j(l−1) − β ∇f_i(w_i(l−1))

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import DGD
    >>> DGD(SoftmaxHead(features=64, classes=10), step_size=0.3, batch_size=10).name
    'DGD'
    """

    name = "DGD"
    step_size: float = 1.0

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Draw W_0."""
        check_mixes(network, self.name)
        return State(self._first_weights(task, network, streams))

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Return S·W − β ∇f(W)."""
        gradient = self._gradient(state.weights, task, network, streams)
        return State(network.mix(state.weights) - self.step_size * gradient, state.steps + 1)
