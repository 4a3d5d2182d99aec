"""Features that never vary: agents find out which these are, and then they change nothing."""

from dataclasses import replace

import naive
import naive_transfer
import pytest
import random_data
import torch
from decentralised import lopsided_graph
from served import calls

import fedsurf
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.summaries import (
    MAX_WHOLE_FEATURES,
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
    Curvature,
    pack,
    sketch_directions,
    varying_count,
)

AGENTS, CLASSES, ROUNDS = 6, 3, 6


def network(*, star):
    if star:
        return StarNetwork(AGENTS, 3, random_data.seeded(4))
    return Network(lopsided_graph(), "metropolis")


def with_constants(task, values):
    """Append features that are the same in all examples."""

    def longer(part):
        more = part.x.new_tensor(values).expand(*part.x.shape[:2], -1)
        more = more if part.mask is None else more * part.mask[:, :, None]
        return replace(part, x=torch.cat([part.x, more], 2))

    return Task(longer(task.train), longer(task.test), task.classes)


def end(task, *, star, **options):
    """The last state of the pretrained optimizer in double precision."""
    model = SoftmaxHead(task.features, task.classes)
    algorithm = fedsurf.load().on(model, ROUNDS, **options)
    over = network(star=star)
    state = algorithm.init(task, over, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, over, random_data.seeded(1))
    return state


def likely(task, state, *, star):
    rows = state.weights[1:] if star else state.weights
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
    assert (found.varying[0 if star else slice(None)] == 5).all()
    expected = likely(task, alone, star=star)
    assert expected.std() > 0.1
    real = slice(None) if task.test.mask is None else task.test.mask
    torch.testing.assert_close(
        likely(longer, found, star=star)[real], expected[real], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("star", [False, True])
def test_many_constant_features_are_found_in_a_sketch(star, dtype):
    task = random_data.task(5, AGENTS, 9, 5, 50, CLASSES, dtype=dtype)
    for values in ([0.0] * 300, [-4.0, 0.1, 250.0] * 100):
        state = end(with_constants(task, values), star=star)
        assert (state.varying[0 if star else slice(None)] == 50).all()


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("features", [4, 40])
def test_a_whole_run_with_constant_features_equals_a_loop(features, star):
    task = with_constants(
        random_data.task(3, AGENTS, 7, 5, features, CLASSES, masked=True), [0.0, 2.5, -1e3]
    )
    learned = fedsurf.load()
    found = end(task, star=star)
    sketch = SERVER_SKETCH_WIDTH if star else SKETCH_WIDTH
    omega = sketch_directions(task.features, torch.float64, sketch)
    federation = naive_transfer.Federation(random_data.real_examples(task.train), CLASSES, omega)
    if star:
        rows = federation.through_server(learned.server, ROUNDS, calls(AGENTS, 3, 4, ROUNDS))
        expected = torch.tensor(rows, dtype=torch.float64)[None]
    else:
        hearing = [1 + len(lopsided_graph()[node]) for node in range(AGENTS)]

        def mix(values):
            return naive.mix(lopsided_graph(), values, "metropolis")

        rows = federation.over_graph(learned.graph, ROUNDS, mix, hearing)
        expected = torch.tensor(rows, dtype=torch.float64)
    heads = (found.head[:1] if star else found.head).reshape(len(expected), CLASSES, -1).mT
    largest = float(expected.abs().max())
    torch.testing.assert_close(heads.flatten(1), expected, rtol=0, atol=1e-8 * largest)


@pytest.mark.parametrize("features", [3, 40])
def test_those_that_vary_are_counted_as_a_loop_counts_them(features):
    omega = sketch_directions(features, torch.float64)
    width = omega.shape[1]
    x = random_data.weights(7, AGENTS, 6 * features).reshape(AGENTS, 6, features)
    x[0, :, 1] = 0  # constant
    x[1, :, 0] = 0
    x[1, :, 2] *= 1e-14  # but for rounding
    x[2] = 0  # nothing is known
    x[3, :, 1] *= 1e-3  # varies little, but varies
    centre = 5 + random_data.weights(8, AGENTS, features)
    unit = random_data.weights(9, AGENTS, features).exp()
    sums = torch.zeros(AGENTS, CLASSES + 7, dtype=torch.float64)
    sums[:, -7], sums[:, -6] = 6, x.square().sum((1, 2))
    sketch = (x @ omega).mT @ x
    moments = torch.cat([6 * centre, pack(sketch)], 1)
    plain = torch.cat([6 * centre, sketch.mT.flatten(1)], 1)
    for own in (None, unit):
        found = varying_count(moments, sums, omega, own)
        assert found.tolist() == [
            naive_transfer.varying(sums[i].tolist(), plain[i].tolist(), omega, one)
            for i, one in enumerate(torch.ones_like(unit) if own is None else own)
        ]
    assert varying_count(moments, sums, omega, None).tolist() == [
        features - 1, features - 2, features, features, features, features,
    ]  # fmt: skip
    assert plain.shape[1] == features * (1 + width)


def test_what_is_left_of_the_trace_is_shared_by_those_that_vary():
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
def test_features_far_from_zero_are_not_taken_for_constant(star):
    """As temperatures in Kelvin: in single precision, and with many features, rounding is close."""
    task = random_data.task(6, AGENTS, 9, 5, 1000, CLASSES, dtype=torch.float32)

    def far(part):
        return replace(part, x=part.x + 300)

    state = end(Task(far(task.train), far(task.test), CLASSES), star=star)
    assert (state.varying[0 if star else slice(None)] == 1000).all()
