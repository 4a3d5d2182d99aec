"""Statistics over tasks: standard errors, and confidence limits as SciPy computes them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fedsurf.common.checks import check_fraction

if TYPE_CHECKING:
    from torch import Tensor


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean along the first dimension; infinite for one value."""
    if len(values) < 2:
        return values[0].new_full(values[0].shape, float("inf"))
    error: Tensor = values.std(0) / len(values) ** 0.5
    return error


def within_error(violation: Tensor, error: Tensor) -> Tensor:
    """Return which violations are at most two standard errors above 0, bool.

    Where the error is unknown, because there was one task only, a violation must not be above 0.
    """
    return violation <= (2 * error).where(error.isfinite(), 0)


def finite(value: Tensor) -> float | None:
    """Return a float, or None for infinity and NaN, which JSON lacks."""
    return float(value) if value.isfinite() else None


def mean_interval(values: Tensor, confidence: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean along the first dimension, and the ends of its two-sided t interval."""
    low, high = _t_interval(values, confidence, "two-sided")
    return values.mean(0), low, high


def upper_limit(values: Tensor, confidence: float) -> Tensor:
    """Return the upper confidence limit of the mean along the first dimension (one-sided t)."""
    return _t_interval(values, confidence, "less")[1]


def _t_interval(values: Tensor, confidence: float, alternative: str) -> tuple[Tensor, Tensor]:
    check_fraction(confidence, "confidence")
    if len(values) < 2:
        raise ValueError(f"values: got {len(values)}, but a confidence limit takes at least 2")
    from scipy.stats import ttest_1samp

    with warnings.catch_warnings(action="ignore"):  # equal values
        test: Any = ttest_1samp(values.numpy(), 0.0, alternative=alternative)
        interval = test.confidence_interval(confidence)
    return values.new_tensor(interval.low), values.new_tensor(interval.high)
