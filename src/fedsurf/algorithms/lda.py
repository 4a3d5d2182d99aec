"""Linear discriminant analysis, from averaged moments.

R. A. Fisher, "The use of multiple measurements in taxonomic problems", Annals of Eugenics 7(2),
1936; the shrinkage of J. H. Friedman, "Regularized discriminant analysis", JASA 84(405), 1989.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.checks import check_head, check_head_fits, check_precision
from fedsurf.algorithms.class_means import class_means, class_sums, seen_classes, split_class_sums
from fedsurf.algorithms.gossip import AveragingMethod
from fedsurf.common.checks import check_number
from fedsurf.models import SoftmaxHead, head_weights
from fedsurf.tasks.task import Examples, Task

MAX_MATRIX_NUMBERS = 2**22
"""Numbers in the matrices that are solved at a time: agents are taken in groups of this size."""


@dataclass(frozen=True)
class MomentMethod(AveragingMethod):
    """A closed form for heads, solved from averaged class sums, counts and second moments."""

    model: SoftmaxHead

    def __post_init__(self) -> None:
        check_head(self.model, self.name)

    def check(self, task: Task) -> None:
        """Raise if the second moments of a feature would be lost to rounding."""
        check_precision(task, self.name)

    def _statistics(self, task: Task, first: Tensor) -> Tensor:  # noqa: ARG002
        check_head_fits(self.model, task)
        return moments(task.train, task.classes)

    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        size = max(1, MAX_MATRIX_NUMBERS // self.model.features**2)
        groups = zip(torch.split(estimates, size), torch.split(weights, size), strict=True)
        return torch.cat([self._solve_group(*group) for group in groups])

    @abstractmethod
    def _solve_group(self, estimates: Tensor, weights: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LDA(MomentMethod):
    """Average moments and solve for the linear discriminants.

    Every class is Gaussian with its own mean μ_c and share π_c of the examples, and all classes have
    the same covariance Σ:

        Σ = (1/N) (Σ_x x xᵀ − Σ_c N_c μ_c μ_cᵀ),   Σ_s = (1 − s) Σ + s tr(Σ)/p I,
        score_c(x) = (Σ_s⁻¹ μ_c)·x − ½ μ_c·Σ_s⁻¹ μ_c + log π_c

    Class sums, counts and the second moment Σ_x x xᵀ, averaged over the agents, give the solution of
    the pooled examples. A message holds classes · (p + 1) + p (p + 1)/2 floats with p features: of the
    symmetric second moment, the upper triangle is sent. In each round every agent whose estimate still
    moves factorises a p × p matrix; through a server only the server does. An agent whose Σ_s is not
    positive definite keeps its weights for the round, as in the first rounds of accelerated gossip.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import LDA
    >>> LDA(SoftmaxHead(features=64, classes=10), shrinkage=0.3).name
    'LDA'
    """

    shrinkage: float = 0.1
    """The shrinkage s, above 0 and at most 1."""
    name = "LDA"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.shrinkage, "shrinkage")
        if not 0 < self.shrinkage <= 1:
            raise ValueError(
                f"shrinkage: got {self.shrinkage}, but it must be above 0 and at most 1"
            )

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
    x = examples.x if examples.mask is None else examples.x * examples.mask[:, :, None]
    row, column = torch.triu_indices(examples.features, examples.features, device=x.device)
    second = torch.bmm(x.transpose(1, 2), x)[:, row, column]
    return torch.cat([class_sums(examples, classes), second], 1)


def split_moments(statistics: Tensor, classes: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Undo `moments`: class sums, counts and the second moment `[agents, p, p]`."""
    first = classes * (features + 1)
    sums, counts = split_class_sums(statistics[:, :first], classes)
    device = statistics.device
    row, column = torch.triu_indices(features, features, device=device)
    place = torch.empty(features, features, dtype=torch.int64, device=device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=device)
    second = statistics[:, first:].index_select(1, place.flatten())
    return sums, counts, second.reshape(-1, features, features)


def solve_positive(matrices: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Solve `matrices[agents, p, p] · X = right[agents, p, columns]` by Cholesky's factorisation.

    Return X, and a mask of the agents whose matrix is positive definite and whose X is finite.
    """
    factor, failed = torch.linalg.cholesky_ex(matrices)
    found = torch.cholesky_solve(right, factor)
    return found, (failed == 0) & found.flatten(1).isfinite().all(1)
