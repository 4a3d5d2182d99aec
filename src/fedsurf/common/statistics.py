"""Statistics over tasks."""

import torch
from torch import Tensor


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean along the first dimension; infinite for one value."""
    if len(values) < 2:
        return torch.full_like(values[0], float("inf"))
    error: Tensor = values.std(0) / len(values) ** 0.5
    return error


def within_error(violation: Tensor, error: Tensor) -> Tensor:
    """Tell which violations are at most two standard errors above 0, bool.

    Where the error is unknown, because there was one task only, a violation must not be above 0.
    """
    return violation <= torch.where(error.isfinite(), 2 * error, 0)


def finite(value: Tensor) -> float | None:
    """Return a number for JSON, which knows no infinity: None where it is not finite."""
    return float(value) if value.isfinite() else None
