"""Losses that do not punish an agent for being too sure, or too unsure, of what it knows."""

import torch
from torch import Tensor

from fedsurf.models import Model, cross_entropy
from fedsurf.tasks.examples import Examples

STEPS = 8
"""Newton steps towards the best factor."""
LARGEST_STEP = 1.0
"""How far the factor's logarithm moves in a step, at most."""


def pooled_losses(
    model: Model,
    weights: Tensor,
    examples: Examples,
    calibrated_share: float,
    calibration_examples: int = 512,
) -> Tensor:
    """Return each agent's loss over all agents' examples, in part after calibration, `[agents]`.

    The factor of each agent's logits is found from so many of the examples, about.
    """
    if calibrated_share == 0:
        return model.pooled_loss(weights, examples)
    pool = examples.pooled()
    logits, labels = model.logits(weights, pool.x), pool.y.expand(len(weights), -1)
    every = -(-labels.shape[1] // calibration_examples)
    factor = best_factor(logits.detach()[:, ::every], labels[:, ::every])
    calibrated = mean_cross_entropy(logits * factor[:, None, None], labels)
    if calibrated_share == 1:
        return calibrated
    plain = mean_cross_entropy(logits, labels)
    return calibrated_share * calibrated + (1 - calibrated_share) * plain


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each agent, `[agents]`."""
    return cross_entropy(logits, labels).mean(1)


@torch.no_grad()
def best_factor(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the factor of each agent's logits that makes its cross-entropy lowest, `[agents]`.

    Newton's method on its logarithm, in which the loss need not be convex: where the second
    derivative is not positive, it takes the largest step against the first.
    """
    logits = logits.contiguous()
    squares, logarithm = logits.square(), torch.zeros_like(logits[:, 0, 0])
    right = logits.gather(2, labels[:, :, None])[:, :, 0]
    for _ in range(STEPS):
        factor = logarithm.exp()
        shares = (logits * factor[:, None, None]).softmax(2)
        mean = (shares * logits).sum(2)
        spread = shares.mul_(squares).sum(2) - mean.square()
        slope = factor * (mean - right).mean(1)
        bend = factor.square() * spread.mean(1) + slope
        step = torch.where(bend > 1e-8, slope / bend, LARGEST_STEP * slope.sign())
        logarithm = (logarithm - step.clamp(-LARGEST_STEP, LARGEST_STEP)).clamp(-4, 4)
    return logarithm.exp()
