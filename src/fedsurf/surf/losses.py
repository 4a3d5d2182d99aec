"""Losses that do not punish an agent for being too sure, or too unsure, of what it knows."""

import torch
from torch import Tensor

from fedsurf.models import Model
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
    behind, labels = _behind(model.logits(weights, pool.x)), pool.y.expand(len(weights), -1)
    every = -(-labels.shape[1] // calibration_examples)
    factor = best_factor(behind.detach().mT[:, ::every], labels[:, ::every])
    calibrated = _mean_cross_entropy(behind * factor[:, None, None], labels)
    if calibrated_share == 1:
        return calibrated
    plain = _mean_cross_entropy(behind, labels)
    return calibrated_share * calibrated + (1 - calibrated_share) * plain


def _behind(logits: Tensor) -> Tensor:
    """Return how far each class is behind the one with the largest logit, `[agents, classes, examples]`.

    No exponential of it overflows. Classes come before examples since they are few: along a long last
    dimension torch is several times as fast.
    """
    scores = logits.mT.contiguous()
    return scores - scores.detach().amax(1, keepdim=True)


def _mean_cross_entropy(behind: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each agent, `[agents]`."""
    right = behind.gather(1, labels[:, None])[:, 0]
    return (behind.exp().sum(1).log() - right).mean(1)


@torch.no_grad()
def best_factor(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the factor of each agent's logits that makes its cross-entropy lowest, `[agents]`.

    Newton's method on its logarithm, in which the loss need not be convex: where the second
    derivative is not positive, it takes the largest step against the first.
    """
    behind = _behind(logits)
    right = behind.gather(1, labels[:, None])[:, 0]
    logarithm = torch.zeros_like(right[:, 0])
    for _ in range(STEPS):
        factor = logarithm.exp()
        powers = (behind * factor[:, None, None]).exp_()
        total = powers.sum(1)
        mean = powers.mul_(behind).sum(1) / total
        spread = powers.mul_(behind).sum(1) / total - mean.square()
        slope = factor * (mean - right).mean(1)
        bend = factor.square() * spread.mean(1) + slope
        step = torch.where(bend > 1e-8, slope / bend, LARGEST_STEP * slope.sign())
        logarithm = (logarithm - step.clamp(-LARGEST_STEP, LARGEST_STEP)).clamp(-4, 4)
    return logarithm.exp()
