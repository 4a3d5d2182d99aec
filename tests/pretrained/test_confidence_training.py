"""Training of confidence: observations, the fit, and that nothing else changes."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

import fedsurf
from fedsurf.pretrained.config import ConfidenceConfig, WideConfig
from fedsurf.pretrained.recipes.confidence_training import (
    FACTOR_COUNT,
    MAX_AGENTS,
    OTHER_LAYERS,
    Observations,
    fit,
    interpolated,
    logarithms,
    losses_by_factor,
    observe,
    train_confidence,
)
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable.confidence import (
    INPUTS_SIZE,
    MAX_LOG_FACTOR,
    MEASURED_INPUTS,
    Confidence,
)

SMALL = WideConfig(real_share=0.0, max_agents=20, max_examples=60, test_examples=20)


def whole():
    """Return the shipped optimizer with a confidence that has learned nothing yet."""
    shipped = fedsurf.load()
    learner = Transferable(replace(shipped.config, confidence_width=4), seeded(0))
    learner.graph, learner.server = shipped.graph, shipped.server
    return learner


def test_losses_for_each_factor_are_those_of_a_plain_loop():
    logits = torch.randn(2, 5, 3, generator=seeded(0), dtype=torch.float64)
    labels = torch.randint(3, (1, 5), generator=seeded(1))
    found = losses_by_factor(logits, labels)
    assert found.shape == (2, FACTOR_COUNT)
    for head in range(2):
        for place in range(FACTOR_COUNT):
            factor = math.exp(-MAX_LOG_FACTOR + 2 * MAX_LOG_FACTOR * place / (FACTOR_COUNT - 1))
            total = 0.0
            for example, label in enumerate(labels[0].tolist()):
                scores = [factor * float(one) for one in logits[head, example]]
                total += math.log(sum(math.exp(one) for one in scores)) - scores[label]
            assert float(found[head, place]) == pytest.approx(total / 5, rel=1e-6)


@given(st.floats(-MAX_LOG_FACTOR, MAX_LOG_FACTOR))
def test_between_factors_losses_are_on_a_line(logarithm):
    losses = torch.rand(1, FACTOR_COUNT, generator=seeded(0), dtype=torch.float64)
    at = torch.tensor([logarithm], dtype=torch.float64, requires_grad=True)
    found = interpolated(losses, at)
    step = 2 * MAX_LOG_FACTOR / (FACTOR_COUNT - 1)
    below = min(FACTOR_COUNT - 2, math.floor((logarithm + MAX_LOG_FACTOR) / step))
    left, right = float(losses[0, below]), float(losses[0, below + 1])
    part = (logarithm + MAX_LOG_FACTOR) / step - below
    assert float(found.detach()) == pytest.approx(left + part * (right - left), abs=1e-9)
    found.backward()
    if 1e-6 < part < 1 - 1e-6:  # at a factor of the losses it is one of two
        assert float(at.grad) == pytest.approx((right - left) / step, abs=1e-9)


def test_observations_of_a_problem_are_the_same_each_time():
    learner, problems = whole(), WideProblems(SMALL, 3)
    for number in range(6):
        seen, again = (observe(learner, problems, number) for _ in range(2))
        assert torch.equal(seen.known, again.known)
        assert torch.equal(seen.losses, again.losses)
        assert seen.known.shape == (len(seen.losses), INPUTS_SIZE)
        assert seen.losses.shape[1] == FACTOR_COUNT
        assert 1 <= len(seen.losses) <= MAX_AGENTS * (1 + OTHER_LAYERS)
        assert seen.losses.min() >= 0
        assert not seen.losses.requires_grad
    assert not torch.equal(
        observe(learner, problems, 0).losses, observe(learner, problems, 1).losses
    )


def test_confidence_lowers_the_losses_and_jitter_makes_it_smoother():
    logs, known = logarithms(), torch.randn(400, INPUTS_SIZE, generator=seeded(0))
    known[:, 0], known[:, 1] = 0, 3  # agents tell nothing, and have few examples
    best = known[:, 5].clamp(-1, 1)
    losses = (logs - best[:, None]).square()
    seen = [Observations(known[i : i + 4], losses[i : i + 4]) for i in range(0, 400, 4)]
    config = ConfidenceConfig(steps=300, jitter=0.0)
    found = {}
    for jitter in (0.0, 1.0):
        confidence = Confidence(8, seeded(1))
        fit(confidence, seen, replace(config, jitter=jitter), seeded(2))
        with torch.no_grad():
            found[jitter] = confidence(known)[:, 0]
    exact = interpolated(losses, found[0.0]).mean()
    assert exact < 0.15 * interpolated(losses, torch.zeros(400)).mean()
    assert found[1.0].std() < 0.8 * found[0.0].std()


def test_jitter_is_added_to_all_inputs_that_agents_did_not_measure():
    seen = []

    class Watched(Confidence):
        def forward(self, known):
            seen.append(known)
            return super().forward(known)

    known = torch.randn(50, INPUTS_SIZE, generator=seeded(0))
    losses = logarithms().square().expand(50, -1)
    config = ConfidenceConfig(steps=40, jitter=0.5)
    fit(Watched(4, seeded(1)), [Observations(known, losses)], config, seeded(2))
    added = torch.stack(seen) - known
    assert not added[:, :, :MEASURED_INPUTS].any()
    spread = added[:, :, MEASURED_INPUTS:].std((0, 1)) / known[:, MEASURED_INPUTS:].std(0)
    assert spread.tolist() == pytest.approx([0.5] * (INPUTS_SIZE - MEASURED_INPUTS), rel=0.1)


def test_every_problem_has_the_same_weight_and_infinite_losses_have_none():
    logs, known = logarithms(), torch.zeros(1, INPUTS_SIZE)
    low, high = (logs + 0.5).abs()[None], (logs - 0.5).abs()[None]
    lost = Observations(known, torch.full((1, FACTOR_COUNT), torch.nan))
    seen = [
        Observations(known.expand(9, -1), low.expand(9, -1)),
        Observations(known, 3 * high),
        lost,
    ]
    confidence = Confidence(4, seeded(1))
    fit(confidence, seen, ConfidenceConfig(steps=200, jitter=0.0), seeded(2))
    assert float(confidence(known).detach()) > 0.3  # a head of nine counts a ninth


def test_only_confidence_is_trained():
    learner, problems = whole(), WideProblems(SMALL, 3)
    before = {name: value.clone() for name, value in learner.named_parameters()}
    state = torch.get_rng_state()
    told = []

    @contextmanager
    def open_bar(title, total):
        told.append((title, total))
        yield lambda: told.append(1)

    train_confidence(learner, problems, ConfidenceConfig(problems=5, steps=3), open_bar)
    assert told == [("learning confidence", 5), *[1] * 5]
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in learner.named_parameters():
        assert torch.equal(value, before[name]) != name.startswith("confidence.")


def test_a_single_head_is_enough_to_train():
    learner, problems = whole(), WideProblems(replace(SMALL, server_share=1.0), 3)
    train_confidence(learner, problems, ConfidenceConfig(problems=1, steps=2))
    assert all(value.isfinite().all() for value in learner.confidence.parameters())
    confidence = Confidence(4, seeded(0))
    seen = Observations(torch.zeros(1, INPUTS_SIZE), logarithms().abs()[None])
    fit(confidence, [seen], ConfidenceConfig(steps=2), seeded(1))
    assert all(value.isfinite().all() for value in confidence.parameters())


def test_an_optimizer_without_confidence_is_refused():
    learner = Transferable(TransferableConfig(), seeded(0))
    with pytest.raises(ValueError, match=r"^optimizer: got one without confidence"):
        train_confidence(learner, WideProblems(SMALL, 3), ConfidenceConfig(problems=1))
