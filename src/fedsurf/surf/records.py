"""What meta-training reports."""

from dataclasses import dataclass

import torch

from fedsurf.common.statistics import within_error


@dataclass(frozen=True)
class StepRecord:
    """What one step of meta-training saw."""

    step: int
    loss: float
    worst_slack: float
    largest_multiplier: float


@dataclass(frozen=True)
class ValidationRecord:
    """What a validation saw, means over its tasks."""

    step: int
    loss: float
    accuracy: float
    pooled_accuracy: float
    slack: list[float]
    """The mean slack of each layer; positive where the gradient norm did not fall enough."""
    slack_error: list[float]
    """Its standard error."""
    multipliers: list[float]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds within two standard errors."""
        return all(self.holding)

    @property
    def holding(self) -> list[bool]:
        """Which constraints hold within two standard errors."""
        held: list[bool] = within_error(
            torch.tensor(self.slack), torch.tensor(self.slack_error)
        ).tolist()
        return held

    @property
    def violation(self) -> float:
        """The largest mean slack, at least 0."""
        return max(0.0, *self.slack)
