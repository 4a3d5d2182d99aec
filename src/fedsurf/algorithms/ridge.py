"""Ridge regression to one-hot labels, exact: from averaged moments.

A. E. Hoerl and R. W. Kennard, "Ridge regression: biased estimation for nonorthogonal problems",
Technometrics 12(1), 1970; as a federated closed form on frozen features, E. Fanì, R. Camoriano,
B. Caputo and M. Ciccone, "Accelerating heterogeneous federated learning with closed-form
classifiers", ICML 2024. Over all N examples,

    minimise (1/2N) Σ_i ‖Wᵀ x_i + b − y_i‖² + (strength/2) ‖W‖²,
    (Cov(x, x) + strength I) W = Cov(x, y),   b = mean(y) − Wᵀ mean(x).

The covariances follow from class sums, counts and the second moment, the same statistic as of `lda`.
Averaged over the agents (`gossip`) they give the solution of the pooled examples.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.algorithms.checks import own_state
from fedsurf.algorithms.class_means import check_head, check_head_fits, check_offset
from fedsurf.algorithms.gossip import AveragingState, averaging_step, begin_averaging
from fedsurf.algorithms.lda import in_groups, moments, solve_positive, split_moments
from fedsurf.common.checks import check_number
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class Ridge:
    """Average the moments, solve for the weights: one round a step.

    Messages, cost and the rule for agents whose matrix is not positive definite yet are those of
    `LDA`. A class without examples scores 0 on everything, and the others sum to 1: it never wins.

    Attributes
    ----------
    model : SoftmaxHead
        What the agents train: its weights are a linear classifier.
    strength : float
        The penalty beside the mean square, positive; the bias is free.
    accelerated : bool
        Chebyshev-accelerated gossip, or plain; see `gossip`.
    start : Start
        Where W_0 is drawn, which is replaced in the first round.
    """

    model: SoftmaxHead
    strength: float = 0.1
    accelerated: bool = True
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_head(self.model, self.name)
        check_number(self.strength, "strength")
        if not 0 < self.strength < float("inf"):
            raise ValueError(
                f"strength: got {self.strength}, but it must be a finite number above 0"
            )

    @property
    def name(self) -> str:
        """The method's name."""
        return "ridge"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> AveragingState:
        """Draw W_0, sum up the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        check_offset(task, "ridge regression")
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        statistics = moments(task.train, task.classes)
        return begin_averaging(weights, statistics, network, accelerated=self.accelerated)

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - all that matters of it is in the state
        network: Network,
        generator: torch.Generator,  # noqa: ARG002
    ) -> AveragingState:
        """Average for one round, solve."""
        return averaging_step(own_state(state, AveragingState), network, self._solve)

    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        groups = in_groups(estimates, weights, self.model.features)
        return torch.cat([self._solve_group(*group) for group in groups])

    def _solve_group(self, estimates: Tensor, weights: Tensor) -> Tensor:
        sums, counts, second = split_moments(estimates, self.model.classes, self.model.features)
        total = counts.sum(1)[:, None, None]
        mean = sums.sum(1)[:, :, None] / total
        share = counts[:, None, :] / total
        covariance = torch.baddbmm(second / total, mean, mean.mT, alpha=-1)
        covariance.diagonal(dim1=1, dim2=2).add_(self.strength)
        matrix, solved = solve_positive(covariance, sums.mT / total - mean * share)
        bias = share - mean.mT @ matrix
        found = torch.cat([matrix, bias], 1).flatten(1)
        solved = solved & (total.flatten() > 0)
        return torch.where(solved[:, None], found, weights)
