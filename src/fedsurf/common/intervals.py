"""Confidence intervals over tasks: of a mean, of a difference of means, of a share."""

from typing import Any

import torch
from torch import Tensor

from fedsurf.common.statistics import standard_error


def check_confidence(confidence: float) -> None:
    """Raise if this is no level of confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}, but it must be between 0 and 1")


def mean_interval(values: Tensor, confidence: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean along the first dimension, and the ends of its two-sided t interval."""
    check_confidence(confidence)
    count = len(values)
    if count < 2:
        raise ValueError(f"values: got {count}, but an interval takes at least 2")
    mean = values.mean(0)
    half = float(_student((1 + confidence) / 2, count - 1)) * standard_error(values)
    return mean, mean - half, mean + half


def upper_limit(values: Tensor, confidence: float) -> Tensor:
    """Return what the mean along the first dimension is below, with this confidence (one-sided t)."""
    check_confidence(confidence)
    if len(values) < 2:
        raise ValueError(f"values: got {len(values)}, but a limit takes at least 2")
    quantile = float(_student(confidence, len(values) - 1))
    return values.mean(0) + quantile * standard_error(values)


def gap_limit(left: Tensor, right: Tensor, confidence: float) -> Tensor:
    """Return what the distance of two means is below, with at least this confidence (Welch's t).

    `left` and `right` are independent samples along the first dimension. It is the distance of the
    sample means plus the half width of the two-sided interval of their difference.
    """
    check_confidence(confidence)
    parts = [standard_error(values).square() for values in (left, right)]
    total = parts[0] + parts[1]
    divisor = parts[0].square() / (len(left) - 1) + parts[1].square() / (len(right) - 1)
    fewest = float(min(len(left), len(right)) - 1)
    freedom = torch.where(divisor > 0, total.square() / divisor, fewest)
    quantile = torch.as_tensor(_student((1 + confidence) / 2, freedom.numpy()))
    return (left.mean(0) - right.mean(0)).abs() + quantile * total.sqrt()


def share_limit(hits: int, count: int, confidence: float) -> float:
    """Return what a probability is below, with this confidence, after so many hits (Clopper-Pearson)."""
    check_confidence(confidence)
    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"hits: got {hits} of {count}, but it must be from 0 to a positive count")
    from scipy.stats import beta  # slow to import

    return 1.0 if hits == count else float(beta.ppf(confidence, hits + 1, count - hits))


def _student(probability: float, freedom: Any) -> Any:
    """Return the quantile of Student's t."""
    from scipy.stats import t  # slow to import

    return t.ppf(probability, freedom)
