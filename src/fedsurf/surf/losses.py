"""Calibrated losses, which do not punish an agent for being over- or underconfident."""

import torch
from torch import Tensor

from fedsurf.models import Model
from fedsurf.tasks.task import Examples

NEWTON_STEPS = 8
"""Newton steps towards the best factor."""
MAX_STEP = 1.0
"""Largest step of the factor's logarithm."""


def pooled_losses(
    model: Model,
    weights: Tensor,
    examples: Examples,
    calibrated_share: float,
    calibration_examples: int = 512,
) -> Tensor:
    """Return each agent's loss over all agents' examples, in part after calibration, `[agents]`.

    The factor of each agent's logits is fitted to about `calibration_examples` of the examples.
    """
    if calibrated_share == 0:
        return model.pooled_loss(weights, examples)
    pool = examples.pooled()
    shifted, labels = _shifted(model.logits(weights, pool.x)), pool.y.expand(len(weights), -1)
    every = -(-labels.shape[1] // calibration_examples)
    factor = best_factor(shifted.detach().mT[:, ::every], labels[:, ::every])
    calibrated = _mean_cross_entropy(shifted * factor[:, None, None], labels)
    if calibrated_share == 1:
        return calibrated
    plain = _mean_cross_entropy(shifted, labels)
    return calibrated_share * calibrated + (1 - calibrated_share) * plain


def _shifted(logits: Tensor) -> Tensor:
    """Return the logits minus the largest one, `[agents, classes, examples]`.

    Their exponentials do not overflow. Classes come before examples because torch is several times as
    fast along a long last dimension.
    """
    scores = logits.mT.contiguous()
    return scores - scores.detach().amax(1, keepdim=True)


def _mean_cross_entropy(shifted: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each agent, `[agents]`."""
    right = shifted.gather(1, labels[:, None])[:, 0]
    return (shifted.exp().sum(1).log() - right).mean(1)


@torch.no_grad()
def best_factor(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the factor of each agent's logits that minimises its cross-entropy, `[agents]`.

    Newton's method on the factor's logarithm. The loss need not be convex in it: where the second
    derivative is not positive, the largest step against the first is taken.
    """
    shifted = _shifted(logits)
    right = shifted.gather(1, labels[:, None])[:, 0]
    logarithm = torch.zeros_like(right[:, 0])
    for _ in range(NEWTON_STEPS):
        factor = logarithm.exp()
        powers = (shifted * factor[:, None, None]).exp_()
        total = powers.sum(1)
        mean = powers.mul_(shifted).sum(1) / total
        spread = powers.mul_(shifted).sum(1) / total - mean.square()
        slope = factor * (mean - right).mean(1)
        curvature = factor.square() * spread.mean(1) + slope
        step = torch.where(curvature > 1e-8, slope / curvature, MAX_STEP * slope.sign())
        logarithm = (logarithm - step.clamp(-MAX_STEP, MAX_STEP)).clamp(-4, 4)
    return logarithm.exp()
