"""Linear discriminant analysis, from averaged moments.

R. A. Fisher, "The use of multiple measurements in taxonomic problems", Annals of Eugenics 7(2),
1936; the shrinkage of J. H. Friedman, "Regularized discriminant analysis", JASA 84(405), 1989. Every
class is Gaussian with a mean μ_c of its own, a share π_c of the examples, and the covariance Σ that
all classes share:

    Σ = (1/N) (Σ_x x xᵀ − Σ_c N_c μ_c μ_cᵀ),   Σ_s = (1 − s) Σ + s tr(Σ)/p I,
    score_c(x) = (Σ_s⁻¹ μ_c)·x − ½ μ_c·Σ_s⁻¹ μ_c + log π_c.

Class sums, counts and the second moment Σ_x x xᵀ are all that it needs. Averaged over the agents
(`gossip`) they give what the pooled examples give.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.algorithms.checks import own_state
from fedsurf.algorithms.class_means import (
    check_head,
    check_head_fits,
    check_offset,
    class_means,
    class_sums,
    head_weights,
    seen_classes,
    split_class_sums,
)
from fedsurf.algorithms.gossip import AveragingState, averaging_step, begin_averaging
from fedsurf.common.checks import check_number
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

CHUNK = 2**22
"""Numbers in the matrices that are solved at a time: agents are taken in groups of this size."""


@dataclass(frozen=True)
class LDA:
    """Average the moments, solve for the discriminants: one round a step.

    A message holds classes · (p + 1) + p (p + 1)/2 floats with p features: the second moment is
    symmetric, its upper triangle is sent. In each round every agent whose estimate still moves
    factorises a p × p matrix in the task's type: p³/6 multiplications, by 100 agents of 64 features
    together 4·10⁶, of 512 features 2·10⁹. Through a server there is one matrix a round.

    An agent whose Σ_s is not positive definite keeps its weights for the round: that happens in the
    first rounds of accelerated gossip, whose estimates are not averages yet.

    Attributes
    ----------
    model : SoftmaxHead
        What the agents train: its weights are a linear classifier.
    shrinkage : float
        The s above, over 0 and at most 1.
    accelerated : bool
        Chebyshev-accelerated gossip, or plain; see `gossip`.
    start : Start
        Where W_0 is drawn, which is replaced in the first round.
    """

    model: SoftmaxHead
    shrinkage: float = 0.1
    accelerated: bool = True
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_head(self.model, self.name)
        check_number(self.shrinkage, "shrinkage")
        if not 0 < self.shrinkage <= 1:
            raise ValueError(
                f"shrinkage: got {self.shrinkage}, but it must be above 0 and at most 1"
            )

    @property
    def name(self) -> str:
        """The method's name."""
        return "LDA"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> AveragingState:
        """Draw W_0, sum up the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        check_offset(task, "LDA")
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
        features = self.model.features
        sums, counts, second = split_moments(estimates, self.model.classes, features)
        seen = seen_classes(counts)
        means = class_means(sums, counts, seen)
        known = torch.where(seen, counts, 0)
        priors = known / known.sum(1, keepdim=True)
        scatter = torch.baddbmm(second, means.mT, known[:, :, None] * means, alpha=-1)
        covariance = scatter / known.sum(1)[:, None, None]
        variance = covariance.diagonal(dim1=1, dim2=2).mean(1)
        shrunk = (1 - self.shrinkage) * covariance
        shrunk.diagonal(dim1=1, dim2=2).add_(self.shrinkage * variance[:, None])
        directions, solved = solve_positive(shrunk, means.mT)
        directions = directions.mT
        bias = torch.where(seen, priors, 1).log() - (means * directions).sum(2) / 2
        found = head_weights(torch.cat([directions, bias[:, :, None]], 2), seen)
        return torch.where(solved[:, None], found, weights)


def moments(examples: Examples, classes: int) -> Tensor:
    """Return each agent's class sums and counts, then Σ x xᵀ's upper triangle, `[agents, size]`."""
    x = examples.x
    if examples.mask is not None:
        x = x * examples.mask[:, :, None]
    row, column = torch.triu_indices(examples.features, examples.features)
    second = torch.bmm(x.transpose(1, 2), x)[:, row, column]
    return torch.cat([class_sums(examples, classes), second], 1)


def split_moments(statistics: Tensor, classes: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Undo `moments`: class sums, counts and the second moment `[agents, p, p]`."""
    first = classes * (features + 1)
    sums, counts = split_class_sums(statistics[:, :first], classes)
    row, column = torch.triu_indices(features, features)
    place = torch.empty(features, features, dtype=torch.int64)
    place[row, column] = place[column, row] = torch.arange(len(row))
    second = statistics[:, first:].index_select(1, place.flatten())
    return sums, counts, second.reshape(-1, features, features)


def in_groups(estimates: Tensor, weights: Tensor, features: int) -> list[tuple[Tensor, Tensor]]:
    """Split agents into groups whose matrices `[group, features, features]` fit into `CHUNK`."""
    size = max(1, CHUNK // features**2)
    return list(zip(torch.split(estimates, size), torch.split(weights, size), strict=True))


def solve_positive(matrices: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Solve `matrices[agents, p, p] · X = right[agents, p, columns]` by Cholesky's factorisation.

    Returns X, and for each agent whether its matrix was positive definite and X is finite.
    """
    factor, failed = torch.linalg.cholesky_ex(matrices)
    found = torch.cholesky_solve(right, factor)
    return found, (failed == 0) & found.flatten(1).isfinite().all(1)
