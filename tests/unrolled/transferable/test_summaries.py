"""Summaries against loops over pairs, estimates from them, and the curvature behind sketches."""

import math
from dataclasses import replace

import pytest
import random_data
import torch
import transferable_loop
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded
from transferable_runs import AGENTS, CLASSES, network, states

import fedsurf
from fedsurf.models import SoftmaxHead
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.transferable.local import LocalExamples
from fedsurf.unrolled.transferable.summaries import (
    DESCRIPTION_SIZE,
    MAX_WHOLE_FEATURES,
    PROGRESS_SIZE,
    SKETCH_WIDTH,
    SUMS_SIZE,
    Curvature,
    FederationEstimate,
    data_sums,
    no_progress,
    own_progress,
    pack,
    sketch_directions,
    unpack,
    varying_count,
)

SKETCH = 16
"""The number of directions of the sketches in tests of the curvature."""


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
            expected = transferable_loop.data_sums(x, labels, CLASSES, centred)
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
        expected = transferable_loop.progress_of(
            before[agent].T[real],
            after[agent].T[real],
            view.labels[agent].T[real],
            own[agent].tolist(),
            federation[agent].tolist(),
        )
        assert found[agent].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.integers(0, 1000), st.sampled_from([1, 3, 9]), st.integers(1, 6))
def test_estimates_equal_a_loop(seed, features, size):
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
        expected = transferable_loop.estimate_of(*own, features, 7, int(vary[agent]))
        for name in ("classes", "bends", "scale", "varying", "examples", "description"):
            value = getattr(found, name)[agent].tolist()
            assert value == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-6), name


def estimate_of(x, y, classes, agents=1, centre=None):
    """Return the estimate from all agents' sums; without a centre, each has its own mean."""
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
    found = estimate_of(x, y, 3, agents)
    assert float(found.scale) == pytest.approx(unit**2 * dimension / features, rel=0.02)
    assert float(found.examples) == size
    described = found.description[0].tolist()
    log_dimension = 1.5 * described[3] + 3
    assert log_dimension == pytest.approx(math.log(dimension), abs=0.1)
    assert 2 * described[0] == pytest.approx(
        math.log(agents * size) - log_dimension - math.log(3), abs=1e-6
    )
    assert 2 * described[6] == pytest.approx(math.log(features) - log_dimension, abs=1e-6)


def test_the_first_progress_is_that_of_guessing():
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
def test_estimates_from_hardly_any_data_are_finite(size):
    for x in (torch.zeros(1, size, 3), torch.full((1, size, 3), 1e4)):
        found = estimate_of(x, torch.zeros(1, size, dtype=torch.int64), 2)
        assert float(found.scale) == 1
        assert found.description.isfinite().all()
        assert found.description.abs().max() <= 4


def moment(seed, features, rank, decay=0.0):
    """Draw a positive semi-definite matrix of a rank, its spectrum falling as a power."""
    axes = torch.linalg.qr(
        torch.randn(features, rank, generator=seeded(seed), dtype=torch.float64)
    ).Q
    values = (1 + torch.arange(rank, dtype=torch.float64)) ** -decay
    return axes @ torch.diag(values) @ axes.T


def curvature_of(matrices, dtype=torch.float64):
    matrices = matrices.to(dtype)
    features = matrices.shape[1]
    omega = sketch_directions(features, dtype, SKETCH)
    scale = matrices.diagonal(dim1=1, dim2=2).sum(1) / features
    return Curvature.of(omega.T @ matrices, omega, scale, torch.full_like(scale, features))


def whole(curvature, place=0):
    """Uᵀ diag(values) U + rest (I − Uᵀ U)."""
    axes, values = curvature.axes[place], curvature.values[place]
    identity = torch.eye(axes.shape[1], dtype=axes.dtype)
    return axes.T @ torch.diag(values) @ axes + curvature.rest[place] * (identity - axes.T @ axes)


@pytest.mark.parametrize("features", [1, 5, MAX_WHOLE_FEATURES, MAX_WHOLE_FEATURES + 1, 100])
def test_sketch_directions_are_orthonormal_and_deterministic(features):
    omega = sketch_directions(features, torch.float64)
    width = SKETCH_WIDTH if features > MAX_WHOLE_FEATURES else features
    assert omega.shape == (features, width)
    torch.testing.assert_close(omega.T @ omega, torch.eye(width, dtype=torch.float64))
    assert torch.equal(omega, sketch_directions(features, torch.float64))
    assert torch.equal(sketch_directions(features, torch.float32), omega.float())


@pytest.mark.parametrize("features", [1, 2, 7, SKETCH_WIDTH, MAX_WHOLE_FEATURES])
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_the_curvature_of_few_features_is_exact(features, decay):
    matrix = moment(0, features, features, decay)
    found = curvature_of(matrix[None])
    torch.testing.assert_close(whole(found), matrix, rtol=0, atol=1e-9)


@pytest.mark.parametrize("features", [33, 40, 200])
@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_the_curvature_equals_a_plain_computation_and_keeps_the_trace(features, decay):
    matrices = torch.stack([moment(seed, features, features, decay) for seed in (2, 3)])
    matrices[1] *= 1e4
    found = curvature_of(matrices)
    omega = sketch_directions(features, torch.float64, SKETCH)
    for place, matrix in enumerate(matrices):
        trace = float(matrix.trace())
        expected = transferable_loop.second_moment(
            matrix @ omega, omega, trace / features, features
        )
        torch.testing.assert_close(whole(found, place), expected, rtol=0, atol=1e-10 * trace)
        assert float(whole(found, place).trace()) == pytest.approx(trace, rel=1e-9)
        axes = found.axes[place]
        torch.testing.assert_close(axes @ axes.T, torch.eye(SKETCH, dtype=torch.float64))


@pytest.mark.parametrize("features", [1, 5, 40])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_sketch_of_zeros_has_no_curvature(features, scale):
    omega = sketch_directions(features, torch.float32)
    vary = torch.full((2,), float(features))
    found = Curvature.of(torch.zeros(2, *omega.T.shape), omega, torch.full((2,), scale), vary)
    for value in (found.axes, found.values, found.rest):
        assert value.isfinite().all()
    assert (found.values >= 0).all()
    assert (found.values <= 1e-9).all()
    assert (found.rest >= 0).all()
    assert (found.rest <= scale).all()


@pytest.mark.parametrize("features", [6, 40])
def test_the_curvature_of_any_sketch_is_positive(features):
    """Averages between rounds need not be those of any examples: not even symmetric or positive."""
    omega = sketch_directions(features, torch.float64)
    heard = torch.randn(20, *omega.T.shape, generator=seeded(8), dtype=torch.float64)
    scale, vary = (torch.full((20,), one, dtype=torch.float64) for one in (0.5, features))
    found = Curvature.of(heard, omega, scale, vary)
    assert (found.values >= 0).all()
    assert (found.rest > 0).all()
    assert found.axes.isfinite().all()
    for place in range(20):
        damped = whole(found, place) + 1e-6 * torch.eye(features, dtype=torch.float64)
        assert torch.linalg.eigvalsh(damped).min() > 0


@pytest.mark.parametrize("features", [1, 7, MAX_WHOLE_FEATURES, MAX_WHOLE_FEATURES + 1])
def test_a_message_is_half_of_a_whole_moment_and_all_of_a_sketch(features):
    matrices = torch.stack([moment(seed, features, features, 1.0) for seed in range(3)])
    omega = sketch_directions(features, torch.float64)
    sketch = omega.T @ matrices
    message = pack(sketch)
    half = features * (features + 1) // 2
    assert message.shape[1] == (half if features <= MAX_WHOLE_FEATURES else features * SKETCH_WIDTH)
    torch.testing.assert_close(unpack(message, *omega.shape), sketch)


def with_constants(task, values):
    """Append features that are the same in all examples."""

    def longer(part):
        more = part.x.new_tensor(values).expand(*part.x.shape[:2], -1)
        more = more if part.mask is None else more * part.mask[:, :, None]
        return replace(part, x=torch.cat([part.x, more], 2))

    return Task(longer(task.train), longer(task.test), task.classes)


def end(task, *, star, **options):
    """Return the last state of the pretrained optimizer."""
    model = SoftmaxHead(task.features, task.classes)
    algorithm = fedsurf.load().on(model, 6, **options)
    return states(algorithm, task, network(star=star))[-1]


def probabilities(task, state, *, star):
    rows = state.agent_weights(network(star=star))
    model = SoftmaxHead(task.features, task.classes)
    return model.logits(rows, task.test.x).softmax(2)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaling", ["whole", "features", "auto"])
@pytest.mark.parametrize("values", [[0.0], [0.0, -0.3, 7.0, 0.1, 1e3], [0.0] * 20])
def test_constant_features_change_nothing(values, scaling, masked, star):
    task = random_data.task(3, AGENTS, 9, 5, 5, CLASSES, masked=masked)
    longer = with_constants(task, values)
    assert (
        longer.features <= MAX_WHOLE_FEATURES
    )  # with more, the random directions of the sketch differ
    alone, found = (end(one, star=star, scaling=scaling) for one in (task, longer))
    assert (found.varying == 5).all()
    expected = probabilities(task, alone, star=star)
    assert expected.std() > 0.1
    real = slice(None) if task.test.mask is None else task.test.mask
    torch.testing.assert_close(
        probabilities(longer, found, star=star)[real], expected[real], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("features", [3, 40])
def test_varying_features_are_counted_as_by_a_loop(features):
    omega = sketch_directions(features, torch.float64)
    width = omega.shape[1]
    x = random_data.weights(7, AGENTS, 6 * features).reshape(AGENTS, 6, features)
    x[0, :, 1] = 0  # constant
    x[1, :, 0] = 0
    x[1, :, 2] *= 1e-14  # but for rounding
    x[2] = 0  # nothing varies
    x[3, :, 1] *= 1e-3  # varies little, but varies
    centre = 5 + random_data.weights(8, AGENTS, features)
    unit = random_data.weights(9, AGENTS, features).exp()
    sums = torch.zeros(AGENTS, CLASSES + 7, dtype=torch.float64)
    sums[:, -7], sums[:, -6] = 6, x.square().sum((1, 2))
    sketch = (x @ omega).mT @ x
    moments = torch.cat([6 * centre, pack(sketch)], 1)
    plain = torch.cat([6 * centre, sketch.mT.flatten(1)], 1)
    for own in (unit[:, :0], unit):
        found = varying_count(sums, moments, omega, own)
        assert found.tolist() == [
            transferable_loop.varying(sums[i].tolist(), plain[i].tolist(), omega, one)
            for i, one in enumerate(own if own.shape[1] else torch.ones_like(unit))
        ]
    assert varying_count(sums, moments, omega, unit[:, :0]).tolist() == [
        features - 1, features - 2, features, features, features, features,
    ]  # fmt: skip
    assert plain.shape[1] == features * (1 + width)


def test_the_rest_of_the_trace_is_shared_by_varying_features():
    omega = sketch_directions(60, torch.float64)
    matrix = torch.diag((torch.arange(60) < 20).double())  # 20 vary, all as much
    scale = torch.full((1,), 20 / 60, dtype=torch.float64)
    sketch = (omega.T @ matrix)[None]
    found = Curvature.of(sketch, omega, scale, scale.new_tensor([20]))
    left = (20 - float(found.values.sum())) / (20 - SKETCH_WIDTH)
    assert float(found.rest) == pytest.approx(min(1.0, left), rel=1e-3)
    assert float(found.rest) > 0.9
    unaware = Curvature.of(sketch, omega, scale, scale.new_tensor([60]))
    assert float(unaware.rest) < 0.4


@pytest.mark.parametrize("star", [False, True])
def test_features_far_from_zero_vary(star):
    """For temperatures in Kelvin, in float32 and with many features, rounding errors are almost as large."""
    task = random_data.task(6, AGENTS, 9, 5, 1000, CLASSES, dtype=torch.float32)

    def far(part):
        return replace(part, x=part.x + 300)

    state = end(Task(far(task.train), far(task.test), CLASSES), star=star)
    assert (state.varying == 1000).all()
