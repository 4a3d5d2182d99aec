"""One-shot averaging: every agent trains alone to optimality, then the optima are averaged once.

Y. Zhang, J. C. Duchi and M. J. Wainwright, "Communication-efficient algorithms for statistical
optimization", JMLR 14, 2013.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.gossip import AveragingMethod
from fedsurf.algorithms.local import local_optimum
from fedsurf.common.checks import check_count, check_option, check_positive
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class OneShot(AveragingMethod):
    """Train alone before the first round, then average: one round a step.

        w_i = argmin_w f_i(w) + (strength/2) ‖w‖²,   w = (1/n) Σ_i w_i

    All agents train from the same W_0, since averages of a model that is not convex need a common start;
    a common seed gives it without a message. A message holds the weights, and
    one float more if agents are weighted by their examples.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import OneShot
    >>> OneShot(SoftmaxHead(features=64, classes=10), strength=1e-3).name
    'one-shot averaging'
    """

    strength: float = 1e-2
    """The penalty's strength, positive; it applies to all weights."""
    weighting: AgentWeighting = "uniform"
    """An agent's weight in the average: equal (the paper's), or by its number of examples."""
    iterations: int = 200
    """Maximum number of L-BFGS steps."""
    name = "one-shot averaging"

    def __post_init__(self) -> None:
        check_positive(self.strength, "strength")
        check_count(self.iterations, "iterations")
        check_option(self.weighting, AgentWeighting, "weighting")

    def _statistics(self, task: Task, first: Tensor) -> Tensor:
        every = first.expand(task.agents, -1)
        trained = local_optimum(
            self.model, every, task.train, self.strength, iterations=self.iterations
        )
        if self.weighting == "uniform":
            return trained
        counts = task.train.counts.to(trained.dtype)[:, None]
        return torch.cat([counts * trained, counts], 1)

    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        if self.weighting == "uniform":
            return estimates
        total = estimates[:, -1:]
        # Early accelerated estimates may have negative counts: such an agent keeps its weights.
        return torch.where(total > 0, estimates[:, :-1] / total, weights)
