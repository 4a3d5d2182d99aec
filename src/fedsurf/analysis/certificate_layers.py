"""What a certificate measures at every layer: gradient norms, and how far the constraints hold."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.common.statistics import gap_limit, mean_interval, share_limit, upper_limit
from fedsurf.surf.constraints import MIN_NORM, slack

ROUNDING = 1e-12
"""A slack of less than this, relative to the gradient norm before it, is 0."""


@dataclass(frozen=True)
class Constraint:
    """What was measured of one layer's descending constraint."""

    slack: float
    """The mean of ‖∇f(W_l)‖ − (1 − ε)‖∇f(W_{l−1})‖ over meta-test tasks; above 0 is a violation."""
    slack_low: float
    slack_high: float
    """The ends of its confidence interval."""
    slack_limit: float
    """What it is below with confidence, at all layers at once."""
    training_slack: float
    """The same mean over meta-training tasks."""
    training_slack_limit: float
    """What that is below with confidence, at all layers at once."""
    sample_error: float
    """The distance of the two mean slacks."""
    sample_error_limit: float
    """What it is below with confidence, at all layers at once."""
    violated: float
    """The share of meta-test tasks on which the slack is above 0."""
    failed: float
    """The share of meta-test tasks on which the slack is above ζ: the layer's δ."""
    failed_limit: float
    """What that probability is below with confidence, at all layers at once."""
    before_where_held: float | None
    """The mean ‖∇f(W_{l−1})‖ of the tasks on which the constraint did not fail, divided by that of
    all tasks, which the theorems' proof takes to be at most 1; None where it failed on all of them."""


@dataclass(frozen=True)
class Layer:
    """What was measured at one layer, or at the start, which is layer 0 and has no constraint."""

    layer: int
    norm: float
    """The mean gradient norm E‖∇f(W_l)‖ over meta-test tasks."""
    norm_low: float
    norm_high: float
    """The ends of its confidence interval."""
    norm_spread: float
    """Its standard deviation over tasks."""
    best_norm: float
    """The mean over tasks of the smallest gradient norm so far, which the first theorem is about."""
    largest_norm: float
    """The largest gradient norm over all tasks, of meta-test and meta-training."""
    constraint: Constraint | None = None


@dataclass(frozen=True)
class Fall:
    """An exponential fitted to the gradient norms: ‖∇f(W_l)‖ ≈ a · factor^l, on a log scale."""

    factor: float
    """By which the norm changes at each layer; the geometric mean over tasks."""
    low: float
    high: float
    """The ends of its confidence interval."""
    r_squared: float
    """The share of the variance of log E‖∇f(W_l)‖ over layers that an exponential explains."""


def layers_of(
    norms: Tensor, training_norms: Tensor, epsilon: float, confidence: float
) -> tuple[Layer, ...]:
    """Return the start and every layer, from gradient norms `[tasks, layers + 1]`.

    The slack is that of the theorems, a difference of norms.
    """
    mean, low, high = mean_interval(norms, confidence)
    spread, best = norms.std(0), norms.cummin(1).values.mean(0)
    largest = torch.cat([norms, training_norms]).amax(0)
    constraints = [None, *_constraints(norms, training_norms, epsilon, confidence)]
    return tuple(
        Layer(
            layer=number,
            norm=float(mean[number]),
            norm_low=float(low[number]),
            norm_high=float(high[number]),
            norm_spread=float(spread[number]),
            best_norm=float(best[number]),
            largest_norm=float(largest[number]),
            constraint=constraint,
        )
        for number, constraint in enumerate(constraints)
    )


def _constraints(
    norms: Tensor, training_norms: Tensor, epsilon: float, confidence: float
) -> list[Constraint]:
    slacks, training_slacks = slack(norms.T, epsilon).T, slack(training_norms.T, epsilon).T
    tasks, count = slacks.shape
    # Limits at this level for each layer hold for all of them at once at the level asked for.
    each = 1 - (1 - confidence) / count
    mean, low, high = mean_interval(slacks, confidence)
    trained = training_slacks.mean(0)
    gaps = (mean - trained).abs()
    slack_limits, training_limits = (
        upper_limit(values, each) for values in (slacks, training_slacks)
    )
    gap_limits = gap_limit(slacks, training_slacks, each)
    slightest = ROUNDING * norms[:, :-1]
    violated, failed = slacks > slightest, slacks > gaps.max() + slightest
    rows = []
    for at in range(count):
        before, held = norms[:, at], ~failed[:, at]
        hits = int(failed[:, at].sum())
        known = bool(held.any() and before.any())
        rows.append(
            Constraint(
                slack=float(mean[at]),
                slack_low=float(low[at]),
                slack_high=float(high[at]),
                slack_limit=float(slack_limits[at]),
                training_slack=float(trained[at]),
                training_slack_limit=float(training_limits[at]),
                sample_error=float(gaps[at]),
                sample_error_limit=float(gap_limits[at]),
                violated=float(violated[:, at].double().mean()),
                failed=hits / tasks,
                failed_limit=share_limit(hits, tasks, each),
                before_where_held=float(before[held].mean() / before.mean()) if known else None,
            )
        )
    return rows


def fall_of(norms: Tensor, confidence: float) -> Fall:
    """Fit an exponential to every task's norms, and to their mean."""
    layers = torch.arange(norms.shape[1], dtype=norms.dtype)
    centred = layers - layers.mean()
    weights = centred / centred.square().sum()
    slopes = norms.clamp(min=MIN_NORM).log() @ weights
    slope, low, high = (float(value) for value in mean_interval(slopes, confidence))
    logs = norms.mean(0).clamp(min=MIN_NORM).log()
    residual = logs - logs.mean() - centred * (logs @ weights)
    total = float((logs - logs.mean()).square().sum())
    explained = 1 - float(residual.square().sum()) / total if total else 1.0
    return Fall(math.exp(slope), math.exp(low), math.exp(high), explained)
