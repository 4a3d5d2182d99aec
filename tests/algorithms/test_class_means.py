"""Nearest class mean against a loop and scikit-learn, and classes that no one has seen."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from sklearn.neighbors import NearestCentroid

from fedsurf.algorithms.class_means import ClassMeans, head_weights
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def rounds(method, task, network, count, seed=0):
    state = method.init(task, network, seeded(seed))
    for _ in range(count):
        state = method.step(state, task, network, seeded(0))
    return state


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


def test_a_rare_class_of_a_large_federation_is_seen_in_single_precision():
    x = torch.zeros(2, 100_000, 2)
    x[:, 1::2] += 1
    y = (torch.arange(100_000) % 2).expand(2, -1).clone()
    x[0, 0], y[0, 0] = torch.tensor([-50.0, 50.0]), 2
    data = Examples(x, y)
    network, head = Network(nx.path_graph(2), "metropolis"), SoftmaxHead(2, 3)
    found = rounds(ClassMeans(head), Task(data, data, 3), network, 1).weights
    assert head.logits(found, x[:1, :1]).argmax(2).flatten().tolist() == [2, 2]
