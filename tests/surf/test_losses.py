"""Losses after calibration: the best factor against a search, and the share that counts."""

import math

import pytest
import torch
from random_data import examples, seeded, weights

from fedsurf.models import ModuleModel, SoftmaxHead, cross_entropy
from fedsurf.surf.losses import MAX_STEP, NEWTON_STEPS, best_factor, pooled_losses

AGENTS, EXAMPLES, CLASSES = 5, 40, 3


def confident(seed, size):
    """Draw labels, and logits that lean towards them with confidence `size`."""
    random = seeded(seed)
    labels = torch.randint(CLASSES, (AGENTS, EXAMPLES), generator=random)
    noise = torch.randn(AGENTS, EXAMPLES, CLASSES, generator=random, dtype=torch.float64)
    return size * (noise + torch.eye(CLASSES, dtype=torch.float64)[labels]), labels


def mean_cross_entropy(logits, labels):
    return cross_entropy(logits, labels).mean(1)


def naive_factor(rows, labels):
    """Take Newton's steps of one agent, example by example."""
    logarithm = 0.0
    for _ in range(NEWTON_STEPS):
        factor, slope, spread = math.exp(logarithm), 0.0, 0.0
        for row, label in zip(rows, labels, strict=True):
            powers = [math.exp(factor * (value - max(row))) for value in row]
            shares = [power / sum(powers) for power in powers]
            mean = sum(share * value for share, value in zip(shares, row, strict=True))
            slope += (mean - row[label]) / len(rows)
            for share, value in zip(shares, row, strict=True):
                spread += share * (value - mean) ** 2 / len(rows)
        slope *= factor
        bend = factor**2 * spread + slope
        step = slope / bend if bend > 1e-8 else math.copysign(MAX_STEP, slope)
        logarithm -= max(-MAX_STEP, min(MAX_STEP, step))
        logarithm = max(-4, min(4, logarithm))
    return math.exp(logarithm)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0, 1000.0])
def test_the_best_factor_equals_a_loop(size):
    logits, labels = confident(0, size)
    expected = [naive_factor(*one) for one in zip(logits.tolist(), labels.tolist(), strict=True)]
    assert best_factor(logits, labels).tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_the_best_factor_equals_a_grid_search(size):
    logits, labels = confident(0, size)
    found = best_factor(logits, labels)
    factors = torch.linspace(-4, 4, 2001, dtype=torch.float64).exp()
    losses = torch.stack([mean_cross_entropy(logits * factor, labels) for factor in factors])
    best = factors[losses.argmin(0)]
    torch.testing.assert_close(found, best, rtol=0.005, atol=0)
    reached = mean_cross_entropy(logits * found[:, None, None], labels)
    assert (reached <= losses.amin(0) + 1e-9).all()


def test_the_factor_is_large_if_all_is_right_and_at_its_limit_if_all_is_wrong():
    labels = torch.tensor([[0, 1, 2]])
    right = torch.eye(CLASSES, dtype=torch.float64)[labels]
    sure = best_factor(right, labels)
    assert sure.isfinite().all()
    assert mean_cross_entropy(right * sure, labels) < 1e-4
    assert float(best_factor(-right, labels)) == pytest.approx(math.exp(-4))
    assert float(best_factor(torch.zeros_like(right), labels)) == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_calibrated_share_interpolates_between_both_losses(share):
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


def test_the_calibrated_loss_is_independent_of_confidence():
    logits, labels = confident(3, 1.0)
    one, two = (
        mean_cross_entropy(sure * best_factor(sure, labels)[:, None, None], labels)
        for sure in (0.3 * logits, 3 * logits)
    )
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(mean_cross_entropy(logits, labels), one)


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("agents", [1, 4])
@pytest.mark.parametrize("kind", ["head", "module"])
def test_losses_and_derivatives_use_the_factor_of_a_subset_of_examples(kind, agents, classes):
    model = SoftmaxHead(3, classes)
    if kind == "module":
        model = ModuleModel(torch.nn.Linear(3, classes, dtype=torch.float64))
    data = examples(7, agents, 9, 3, classes, masked=True)
    w = weights(8, agents, model.parameters).requires_grad_()
    pool = data.pooled()
    logits, labels = model.logits(w, pool.x), pool.y.expand(agents, -1)
    every = -(-labels.shape[1] // 4)
    factor = best_factor(logits[:, ::every], labels[:, ::every])
    expected = 0.8 * mean_cross_entropy(logits * factor[:, None, None], labels)
    expected = expected + 0.2 * mean_cross_entropy(logits, labels)
    found = pooled_losses(model, w, data, 0.8, calibration_examples=4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    share = torch.arange(1.0, agents + 1, dtype=torch.float64)
    slopes = [torch.autograd.grad(share @ losses, w)[0] for losses in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_the_loss_is_differentiable_for_a_given_factor(monkeypatch, share):
    factor = torch.tensor([0.5, 2.0], dtype=torch.float64)
    monkeypatch.setattr("fedsurf.surf.losses.best_factor", lambda *_: factor)
    head, data = SoftmaxHead(2, CLASSES), examples(5, 2, 6, 2, CLASSES)
    w = weights(6, 2, head.parameters).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: pooled_losses(head, values, data, share), w)


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_huge_logits_do_not_overflow(size):
    head, data = SoftmaxHead(2, CLASSES), examples(5, 2, 20, 2, CLASSES).to(torch.float32)
    w = (size * weights(6, 2, head.parameters)).float().requires_grad_()
    losses = pooled_losses(head, w, data, 0.8)
    expected = pooled_losses(head, w.detach().double(), data.to(torch.float64), 0.8)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=0)
    (slope,) = torch.autograd.grad(losses.sum(), w)
    assert slope.isfinite().all()


def test_derivatives_equal_those_of_the_calibrated_loss():
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
