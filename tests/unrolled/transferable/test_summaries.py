"""What agents tell of their data and their progress, pair by pair, and what can be heard from it."""

import math

import naive_transfer
import pytest
import random_data
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.transferable.local import LocalExamples
from fedsurf.unrolled.transferable.summaries import (
    DESCRIPTION_SIZE,
    PROGRESS_SIZE,
    SUMS_SIZE,
    FederationEstimate,
    data_sums,
    no_progress,
    own_progress,
)

AGENTS, CLASSES = 3, 4


@given(st.integers(0, 1000), st.sampled_from([1, 3, 9]), st.integers(1, 6), st.booleans())
def test_sums_equal_a_loop_over_pairs(seed, features, size, masked):
    examples = random_data.examples(seed, AGENTS, size, features, CLASSES, masked=masked)
    view = LocalExamples.of(examples, CLASSES)
    for centred in (True, False):
        if not centred:
            view = view.recentred(random_data.weights(seed, AGENTS, features))
        found = data_sums(view, centred=centred)
        assert found.shape == (AGENTS, CLASSES + SUMS_SIZE)
        for agent, own in enumerate(random_data.real_examples(examples)):
            x = torch.tensor([x for x, _ in own], dtype=torch.float64) - view.centre[agent]
            labels = [label for _, label in own]
            expected = naive_transfer.data_sums(x, labels, CLASSES, centred)
            assert found[agent].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.integers(0, 1000), st.integers(1, 5), st.booleans())
def test_progress_equals_a_loop_over_examples(seed, classes, masked):
    examples = random_data.examples(seed, AGENTS, 5, 3, classes, masked=masked)
    view = LocalExamples.of(examples, classes)
    random = seeded(seed)

    def chances(*shape):
        return (3 * torch.randn(*shape, generator=random, dtype=torch.float64)).softmax(-1)

    before, after = ((chances(AGENTS, 5, classes) * view.real).mT for _ in range(2))
    before[0] = view.real[0].T / classes  # all tie, as they do at W = 0
    own, federation = chances(AGENTS, classes), chances(AGENTS, classes)
    found = own_progress(before, after, view, own, federation)
    assert found.shape == (AGENTS, classes + PROGRESS_SIZE)
    for agent in range(AGENTS):
        real = view.real[agent, :, 0] > 0
        expected = naive_transfer.progress_of(
            before[agent].T[real],
            after[agent].T[real],
            view.labels[agent].T[real],
            own[agent].tolist(),
            federation[agent].tolist(),
        )
        assert found[agent].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.integers(0, 1000), st.sampled_from([1, 3, 9]), st.integers(1, 6))
def test_what_is_heard_equals_a_loop(seed, features, size):
    view = LocalExamples.of(
        random_data.examples(seed, AGENTS, size, features, CLASSES, masked=True), CLASSES
    )
    sums = data_sums(view, centred=True)
    progress = random_data.weights(seed, AGENTS, CLASSES + PROGRESS_SIZE)
    vary = torch.tensor([1 + (seed + agent) % features for agent in range(AGENTS)])
    found = FederationEstimate.of(sums, progress, vary.double(), features=features, agents=7)
    assert found.description.shape == (AGENTS, DESCRIPTION_SIZE)
    for agent in range(AGENTS):
        own = sums[agent].tolist(), progress[agent].tolist()
        expected = naive_transfer.hear(*own, features, 7, int(vary[agent]))
        for name in ("classes", "bends", "scale", "varying", "examples", "description"):
            value = getattr(found, name)[agent].tolist()
            assert value == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-6), name


def heard_of(x, y, classes, agents=1, centre=None):
    """What is heard where everybody's sums are averaged; without a centre, each has its own mean."""
    view = LocalExamples.of(Examples(x, y), classes, centre)
    sums = data_sums(view, centred=centre is None).mean(0, keepdim=True)
    progress = no_progress(1, classes, sums)
    return FederationEstimate.of(
        sums, progress, sums.new_tensor([x.shape[2]]), features=x.shape[2], agents=agents
    )


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_scale_and_effective_dimension_are_recovered(unit):
    """Gaussian features in 12 of 60 directions, far from the origin."""
    agents, size, dimension, features = 20, 200, 12, 60
    random = seeded(0)
    axes = torch.linalg.qr(torch.randn(features, dimension, generator=random)).Q
    latent = torch.randn(agents, size, dimension, generator=random, dtype=torch.float64)
    x = unit * (latent @ axes.double().T + 5)
    y = torch.randint(3, (agents, size), generator=random)
    found = heard_of(x, y, 3, agents)
    assert float(found.scale) == pytest.approx(unit**2 * dimension / features, rel=0.02)
    assert float(found.examples) == size
    signals = found.description[0].tolist()
    log_dimension = 1.5 * signals[3] + 3
    assert log_dimension == pytest.approx(math.log(dimension), abs=0.1)
    assert 2 * signals[0] == pytest.approx(
        math.log(agents * size) - log_dimension - math.log(3), abs=1e-6
    )
    assert 2 * signals[6] == pytest.approx(math.log(features) - log_dimension, abs=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_share_of_the_energy_that_tells_classes_apart_is_recovered(share):
    agents, size, classes, features = 20, 200, 5, 40
    random = seeded(1)
    means = torch.randn(classes, features, generator=random, dtype=torch.float64)
    y = torch.arange(size).remainder(classes).expand(agents, -1)
    means = means - means.mean(0)
    means = means / means.square().mean().sqrt() * share**0.5
    noise = torch.randn(agents, size, features, generator=random, dtype=torch.float64)
    x = means[y] + (1 - share) ** 0.5 * noise
    found = heard_of(x, y, classes, agents, x.mean((0, 1)).expand(agents, -1))
    signals = found.description[0].tolist()
    assert math.exp(2 * (signals[4] - 1)) == pytest.approx(share, rel=0.05)
    noise_ratio = math.exp(3 * signals[5]) - 0.1
    assert noise_ratio == pytest.approx(share * agents * size / classes, rel=0.05)


def test_the_label_distribution_is_recovered():
    y = torch.tensor([[0] * 60 + [1] * 30 + [2] * 10])
    x = torch.randn(1, 100, 3, generator=seeded(2), dtype=torch.float64)
    found = heard_of(x, y, 4)
    expected = torch.tensor([[0.6, 0.3, 0.1, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found.classes, expected, rtol=0, atol=0.005)
    assert (found.classes > 0).all()
    assert float(found.classes.sum()) == pytest.approx(1)


def test_before_the_first_round_every_class_is_as_likely_as_any():
    found = no_progress(2, 4, torch.zeros(1))
    torch.testing.assert_close(found[:, :4], torch.full((2, 4), 0.25 * 0.75))
    assert torch.equal(found[:, 4:], torch.zeros(2, PROGRESS_SIZE))
    view = LocalExamples.of(random_data.examples(3, AGENTS, 5, 3, 4), 4)
    even = torch.full((AGENTS, 4, 5), 0.25, dtype=torch.float64)
    share = torch.full((AGENTS, 4), 0.25, dtype=torch.float64)
    values = own_progress(even, even, view, share, share)
    torch.testing.assert_close(values[:, :4], found[:1, :4].double().expand(AGENTS, -1))
    # Guessing: a loss of 1, an accuracy of 1/4, and nothing unusual.
    expected = torch.tensor([0.5, -0.25, 0.5, 0.0], dtype=torch.float64).expand(AGENTS, -1)
    torch.testing.assert_close(values[:, 4:], expected)


@pytest.mark.parametrize("size", [1, 2])
def test_agents_with_hardly_any_data_tell_nothing_that_is_no_number(size):
    for x in (torch.zeros(1, size, 3), torch.full((1, size, 3), 1e4)):
        found = heard_of(x, torch.zeros(1, size, dtype=torch.int64), 2)
        assert float(found.scale) == 1
        assert found.description.isfinite().all()
        assert found.description.abs().max() <= 4
