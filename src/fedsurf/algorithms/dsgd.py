"""Decentralised stochastic gradient descent (DSGD, also D-PSGD).

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang and J. Liu, "Can decentralized algorithms
outperform centralized algorithms? A case study for decentralized parallel stochastic gradient
descent", NeurIPS 2017:

    w_i(l) = Σ_j S_ij w_j(l−1) − β ∇F_i(w_i(l−1); ξ_i(l)),

with one example ξ_i(l) of agent i, drawn anew in each step.
"""

from dataclasses import dataclass

from fedsurf.algorithms.dgd import DGD


@dataclass(frozen=True)
class DSGD(DGD):
    """DGD on one example a step: mix, then step against the gradient of one's example.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The β above; the noise of a single example wants it smaller than DGD's.
    batch_size : int or None
        Examples of a mini-batch: one, the method's definition. With all of them (None) it is DGD.
    start : Start
        Where W_0 is drawn.
    """

    step_size: float = 0.1
    batch_size: int | None = 1

    @property
    def name(self) -> str:
        """The method's name."""
        return "DSGD"
