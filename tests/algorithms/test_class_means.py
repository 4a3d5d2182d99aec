"""Nearest class mean against a loop and scikit-learn, and classes that no one has seen."""

import naive
import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import real_examples, seeded
from random_data import task as draw_task
from sklearn.neighbors import NearestCentroid
from torch import nn

from fedsurf.algorithms.class_means import UNSEEN_MARGIN, ClassMeans, head_weights
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def rounds(method, task, network, count, seed=0):
    state = method.init(task, network, seeded(seed))
    for _ in range(count):
        state = method.step(state, task, network, seeded(0))
    return state


def naive_weights(sums, counts):
    """Flat weights from one agent's class sums and counts; None for a class without examples."""
    columns = []
    for total, count in zip(sums, counts, strict=True):
        if count <= 1e-9:
            columns.append(None)
            continue
        columns.append([value / count for value in total])
    means = [column for column in columns if column is not None]
    middle = [sum(values) / len(means) for values in zip(*means, strict=True)]
    for place, mean in enumerate(columns):
        if mean is not None:
            difference = [value - other for value, other in zip(mean, middle, strict=True)]
            squares = sum(value**2 for value in mean) - sum(value**2 for value in middle)
            columns[place] = [*difference, -squares / 2]
    seen = [column for column in columns if column is not None]
    low = [sum(values) / len(seen) for values in zip(*seen, strict=True)]
    low[-1] -= UNSEEN_MARGIN
    filled = [low if column is None else column for column in columns]
    return [value for row in zip(*filled, strict=True) for value in row]


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    count=st.integers(1, 3),
    masked=st.booleans(),
)
def test_class_means_equal_a_loop_over_agents(agents, seed, count, masked):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))
    task = draw_task(seed, agents, train=4, masked=masked)
    rows = []
    for own in real_examples(task.train):
        row = [0.0] * 12
        for x, y in own:
            for place, value in enumerate(x):
                row[3 * y + place] += value
            row[9 + y] += 1
        rows.append(row)
    for _ in range(count):
        rows = naive.mix(graph, rows, "metropolis")
    expected = [naive_weights([row[:3], row[3:6], row[6:9]], row[9:]) for row in rows]
    method = ClassMeans(SoftmaxHead(3, 3), accelerated=False)
    state = rounds(method, task, Network(graph, "metropolis"), count)
    torch.testing.assert_close(state.weights, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("star", [True, False])
def test_after_averaging_they_are_the_means_of_the_pooled_examples(star):
    task, head = draw_task(1, 8, train=10, test=100, masked=True), SoftmaxHead(3, 3)
    network = StarNetwork(8, None, seeded(0)) if star else Network(nx.cycle_graph(8), "metropolis")
    state = rounds(ClassMeans(head), task, network, 1 if star else 60)
    pool, test = task.train.pooled(), task.test.pooled()
    known = NearestCentroid().fit(pool.x[0].numpy(), pool.y[0].numpy())
    matrix = network.agent_rows(state.weights).reshape(8, 4, 3)
    centroids = torch.from_numpy(known.centroids_).T
    centroids = centroids - centroids.mean(1, keepdim=True)
    torch.testing.assert_close(matrix[:, :3], centroids.expand(8, 3, 3))
    predicted = head.logits(network.agent_rows(state.weights), test.x).argmax(2)
    assert np.array_equal(predicted.numpy(), np.tile(known.predict(test.x[0].numpy()), (8, 1)))
    assert 0.4 < float(head.accuracy(state.weights[:1], test)) < 1


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 8),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_class_that_no_one_has_seen_never_wins_and_nothing_is_infinite(seed, count, scale, dtype):
    train = draw_examples(seed, 5, 2, classes=2, dtype=dtype)
    train = Examples(scale * train.x, 1 + 2 * train.y)  # classes 1 and 3 of 4
    test = draw_examples(seed + 1, 5, 50, classes=4, dtype=dtype)
    task = Task(train, Examples(10 * scale * test.x, test.y), 4)
    head, network = SoftmaxHead(3, 4), Network(nx.path_graph(5), "metropolis")
    state = rounds(ClassMeans(head), task, network, count)
    assert state.weights.isfinite().all()
    assert state.weights.dtype == dtype
    assert set(head.logits(state.weights, task.test.x).argmax(2).unique().tolist()) <= {1, 3}
    assert head.loss(state.weights, task.test).isfinite().all()


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e5])
def test_features_far_from_zero_are_told_apart_in_single_precision(offset):
    task = draw_task(5, 8, train=40, test=100, dtype=torch.float32)
    parts = [Examples(part.x + offset, part.y, part.mask) for part in (task.train, task.test)]
    task, head = Task(*parts, task.classes), SoftmaxHead(3, 3)
    network = Network(nx.complete_graph(8), "metropolis")
    found = rounds(ClassMeans(head), task, network, 3).weights
    pool, test = task.train.pooled(), task.test.pooled()
    known = NearestCentroid().fit(pool.x[0].double().numpy(), pool.y[0].numpy())
    right = float((known.predict(test.x[0].double().numpy()) == test.y[0].numpy()).mean())
    assert right > 0.4
    assert float(head.accuracy(found[:1], test)) == pytest.approx(right, abs=0.02)


def test_where_no_class_is_seen_the_weights_are_finite():
    found = head_weights(torch.ones(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool))
    assert found.isfinite().all()


def test_a_message_holds_the_sums_and_counts():
    task, network = draw_task(2), Network(nx.cycle_graph(4), "metropolis")
    rounds(ClassMeans(SoftmaxHead(3, 3)), task, network, 2)
    assert (network.rounds, network.floats) == (2, 2 * 8 * 12)
    star = StarNetwork(4, 2, seeded(0))
    rounds(ClassMeans(SoftmaxHead(3, 3)), task, star, 1)
    assert (star.rounds, star.floats) == (1, 2 * 12 + 2 * 12)


def test_the_start_is_drawn_like_any_methods_and_the_same_seed_gives_the_same_bits():
    task, head = draw_task(3, dtype=torch.float32), SoftmaxHead(3, 3)
    method = ClassMeans(head)
    network = Network(nx.cycle_graph(4), "metropolis")
    first = method.init(task, network, seeded(5)).weights
    assert torch.equal(first, method.start.draw(network, head, seeded(5)))
    stars = [rounds(method, task, StarNetwork(4, 2, seeded(6)), 3).weights for _ in range(2)]
    assert torch.equal(*stars)


def test_other_models_and_tasks_are_refused():
    with pytest.raises(TypeError, match=r"^model: got ModuleModel, .*must be a SoftmaxHead"):
        ClassMeans(ModuleModel(nn.Linear(3, 3)))
    network = Network(nx.cycle_graph(4), "metropolis")
    with pytest.raises(ValueError, match=r"^task: got 3 features and 3 classes, .*5 features"):
        ClassMeans(SoftmaxHead(5, 3)).init(draw_task(4), network, seeded(0))
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 5 agents"):
        ClassMeans(SoftmaxHead(3, 3)).init(
            draw_task(4), Network(nx.cycle_graph(5), "metropolis"), seeded(0)
        )


def test_a_rare_class_of_a_large_federation_is_seen_in_single_precision():
    x = torch.zeros(2, 100_000, 2)
    x[:, 1::2] += 1
    y = (torch.arange(100_000) % 2).expand(2, -1).clone()
    x[0, 0], y[0, 0] = torch.tensor([-50.0, 50.0]), 2
    data = Examples(x, y)
    network, head = Network(nx.path_graph(2), "metropolis"), SoftmaxHead(2, 3)
    found = rounds(ClassMeans(head), Task(data, data, 3), network, 1).weights
    assert head.logits(found, x[:1, :1]).argmax(2).flatten().tolist() == [2, 2]
