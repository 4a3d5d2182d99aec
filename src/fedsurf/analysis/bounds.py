"""The bounds of the paper's two theorems, as functions of their constants.

With ε the share by which the gradient norm must fall at each layer, δ the probability that a layer's
constraint fails, ζ its sample error and M the largest gradient norm, the radius of the near-optimal
region is η = (ζ + δM / (1 − δ)) / ε, and

    lim_{l → ∞} E[min_{k ≤ l} ‖∇f(W_k)‖] ≤ η                          (the first theorem)
    E‖∇f(W_l)‖ ≤ (1 − δ)^l (1 − ε)^l E‖∇f(W_0)‖ + η                   (the second theorem)

Both follow from E‖∇f(W_l)‖ ≤ q E‖∇f(W_{l−1})‖ + c with q = (1 − δ)(1 − ε) and c = (1 − δ)ζ + δM.
Unrolled, without the steps that only simplify it, this is the tighter bound

    E‖∇f(W_l)‖ ≤ q^l E‖∇f(W_0)‖ + c (1 − q^l) / (1 − q).
"""

import math
from dataclasses import dataclass
from typing import Literal

Vacuous = Literal["", "start", "largest", "infinite"]


@dataclass(frozen=True)
class Constants:
    """The four numbers on which the theorems' bounds depend."""

    epsilon: float
    """ε: the share by which the gradient norm must fall at each layer."""
    sample_error: float
    """ζ: what a constraint may miss by and still count as satisfied."""
    failure: float
    """δ: the probability that a layer's constraint fails, by more than the sample error."""
    largest_norm: float
    """M: the largest gradient norm."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon: got {self.epsilon}, but it must be between 0 and 1")
        if not 0 <= self.failure <= 1:
            raise ValueError(f"failure: got {self.failure}, but it must be from 0 to 1")
        for name in ("sample_error", "largest_norm"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}: got {value}, but it must be a number from 0 on")

    @property
    def radius(self) -> float:
        """η, the radius of the near-optimal region; infinite where every constraint fails."""
        if self.failure == 1:
            return math.inf
        odds = self.failure / (1 - self.failure)
        return (self.sample_error + odds * self.largest_norm) / self.epsilon

    @property
    def factor(self) -> float:
        """The factor q = (1 − δ)(1 − ε), by which the start counts less with each layer."""
        return (1 - self.failure) * (1 - self.epsilon)

    def rate_bound(self, start: float, layer: int) -> float:
        """Return the second theorem's bound of E‖∇f(W_l)‖ for a gradient norm at the start."""
        return self.factor**layer * start + self.radius

    def recursive_bound(self, start: float, layer: int) -> float:
        """Return the bound that the second theorem's proof reaches before it is simplified."""
        constant = (1 - self.failure) * self.sample_error + self.failure * self.largest_norm
        left = self.factor**layer
        return left * start + constant * (1 - left) / (1 - self.factor)

    def failure_needed(self, start: float) -> float:
        """Return the δ below which the radius is below a gradient norm; 0 where none is small enough."""
        room = self.epsilon * start - self.sample_error
        return room / (self.largest_norm + room) if room > 0 else 0.0


def vacuity(bound: float, start: float, largest: float) -> Vacuous:
    """Tell what a bound of the last layer's gradient norm fails to say, the worst first."""
    if math.isinf(bound):
        return "infinite"
    if bound >= largest:
        return "largest"
    return "start" if bound >= start else ""
