"""Losses after calibration: the best factor against a search, and the share that counts."""

import math

import pytest
import torch
from drawn import examples, seeded, weights

from fedsurf.models import SoftmaxHead
from fedsurf.surf.calibrated_losses import best_factor, mean_cross_entropy, pooled_losses

AGENTS, EXAMPLES, CLASSES = 5, 40, 3


def confident(seed, size):
    """Draw labels and logits that lean towards them, as sure of it as `size` says."""
    random = seeded(seed)
    labels = torch.randint(CLASSES, (AGENTS, EXAMPLES), generator=random)
    noise = torch.randn(AGENTS, EXAMPLES, CLASSES, generator=random, dtype=torch.float64)
    return size * (noise + torch.eye(CLASSES, dtype=torch.float64)[labels]), labels


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_the_best_factor_is_that_of_a_search(size):
    logits, labels = confident(0, size)
    found = best_factor(logits, labels)
    factors = torch.linspace(-4, 4, 2001, dtype=torch.float64).exp()
    losses = torch.stack([mean_cross_entropy(logits * factor, labels) for factor in factors])
    best = factors[losses.argmin(0)]
    torch.testing.assert_close(found, best, rtol=0.005, atol=0)
    reached = mean_cross_entropy(logits * found[:, None, None], labels)
    assert (reached <= losses.amin(0) + 1e-9).all()


def test_the_factor_is_large_where_all_is_right_and_at_its_limit_where_all_is_wrong():
    labels = torch.tensor([[0, 1, 2]])
    right = torch.eye(CLASSES, dtype=torch.float64)[labels]
    sure = best_factor(right, labels)
    assert sure.isfinite().all()
    assert mean_cross_entropy(right * sure, labels) < 1e-4
    assert float(best_factor(-right, labels)) == pytest.approx(math.exp(-4))
    assert float(best_factor(torch.zeros_like(right), labels)) == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_in_part_that_after_calibration(share):
    head, data = SoftmaxHead(3, CLASSES), examples(1, 3, 8, 3, CLASSES, masked=True)
    w = weights(2, 3, head.parameters)
    pool = data.pooled()
    logits, labels = head.logits(w, pool.x), pool.y.expand(3, -1)
    factor = best_factor(logits, labels)
    calibrated = mean_cross_entropy(logits * factor[:, None, None], labels)
    plain = head.pooled_loss(w, data)
    found = pooled_losses(head, w, data, share)
    torch.testing.assert_close(found, share * calibrated + (1 - share) * plain)
    assert (found <= plain + 1e-12).all()


def test_after_calibration_it_does_not_matter_how_sure_an_agent_is():
    logits, labels = confident(3, 1.0)
    one, two = (
        mean_cross_entropy(sure * best_factor(sure, labels)[:, None, None], labels)
        for sure in (0.3 * logits, 3 * logits)
    )
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(mean_cross_entropy(logits, labels), one)


def test_its_derivatives_are_those_of_the_calibrated_loss():
    head, data = SoftmaxHead(2, CLASSES), examples(5, 2, 20, 2, CLASSES)
    w = weights(6, 2, head.parameters).requires_grad_()
    (slope,) = torch.autograd.grad(pooled_losses(head, w, data, 0.7).sum(), w)
    tiny = 1e-5
    for place in ((0, 0), (1, 4), (1, 8)):
        around = []
        for sign in (1, -1):
            moved = w.detach().clone()
            moved[place] += sign * tiny
            around.append(float(pooled_losses(head, moved, data, 0.7).sum()))
        assert float(slope[place]) == pytest.approx(
            (around[0] - around[1]) / (2 * tiny), rel=1e-3, abs=1e-7
        )
