"""Decentralised stochastic gradient descent (DSGD, also D-PSGD).

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang and J. Liu, "Can decentralized algorithms
outperform centralized algorithms? A case study for decentralized parallel stochastic gradient
descent", NeurIPS 2017.
"""

from dataclasses import dataclass, field

from fedsurf.algorithms.dgd import DGD


@dataclass(frozen=True)
class DSGD(DGD):
    """DGD on one example a step; fields as in `GradientMethod`.

        w_i(l) = Σ_j S_ij w_j(l−1) − β ∇F_i(w_i(l−1); ξ_i(l)),

    where ξ_i(l) is an example of agent i, drawn anew in each step. Its noise needs a smaller step than
    DGD's.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import DSGD
    >>> DSGD(SoftmaxHead(features=64, classes=10)).batch_size
    1
    """

    name = "DSGD"
    step_size: float = 0.1
    batch_size: int | None = field(default=1, kw_only=True)
