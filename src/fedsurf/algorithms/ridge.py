"""Ridge regression to one-hot labels, exact, from averaged moments.

A. E. Hoerl and R. W. Kennard, "Ridge regression: biased estimation for nonorthogonal problems",
Technometrics 12(1), 1970; as a federated closed form on frozen features, E. Fanì, R. Camoriano,
B. Caputo and M. Ciccone, "Accelerating heterogeneous federated learning with closed-form
classifiers", ICML 2024.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.lda import MomentMethod, solve_positive, split_moments
from fedsurf.common.checks import check_positive


@dataclass(frozen=True)
class Ridge(MomentMethod):
    """Average moments and solve the ridge regression of all N examples to one-hot labels.

        minimise (1/2N) Σ_i ‖Wᵀ x_i + b − y_i‖² + (strength/2) ‖W‖²,
        (Cov(x, x) + strength I) W = Cov(x, y),   b = mean(y) − Wᵀ mean(x)

    Messages, cost and the rule for agents whose matrix is not positive definite yet are those of
    `LDA`. A class without examples scores 0 on everything, and the others sum to 1: it never wins.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import Ridge
    >>> Ridge(SoftmaxHead(features=64, classes=10), strength=0.1).name
    'ridge'
    """

    strength: float = 0.1
    """The penalty's strength, positive; the bias is free."""
    name = "ridge"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.strength, "strength")

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
