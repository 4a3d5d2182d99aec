"""FedProx: federated averaging with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated optimization in
heterogeneous networks", MLSys 2020.
"""

from dataclasses import dataclass

from torch import Tensor

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.local import Correction
from fedsurf.common.checks import check_not_negative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose agents are drawn to the server's model w_t.

    Each called agent k minimises, inexactly by the same K steps from w_t as FedAvg,

        f_k(w) + (μ/2) ‖w − w_t‖²

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedProx
    >>> FedProx(SoftmaxHead(features=64, classes=10), mu=0.01).name
    'FedProx'
    """

    name = "FedProx"
    mu: float = 0.1
    """The proximal term's strength μ; 0 is FedAvg. With `step_size · mu` above 2 the steps grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.mu, "mu")

    def _correction(self, received: Tensor) -> Correction:
        return lambda weights: self.mu * (weights - received)
