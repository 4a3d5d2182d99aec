"""Class means, LDA and ridge regression against scikit-learn on the pooled examples, and edge cases."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, run
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge as PooledRidge
from sklearn.neighbors import NearestCentroid
from torch import nn

from fedsurf.algorithms import LDA, ClassMeans, Ridge, lda
from fedsurf.algorithms.lda import moments, split_moments
from fedsurf.models import ModuleModel, SoftmaxHead, head_weights
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Examples, Task

HEAD = SoftmaxHead(3, 3)


def ring(agents):
    return Network(nx.cycle_graph(agents), "metropolis")


def pooled(task, method):
    """Flat weights of scikit-learn's classifier of the pooled examples."""
    x, y = task.train.pooled().x[0].numpy(), task.train.pooled().y[0].numpy()
    if isinstance(method, Ridge):
        known = PooledRidge(alpha=method.strength * len(y)).fit(x, np.eye(task.classes)[y])
    else:
        known = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=method.shrinkage).fit(x, y)
    return torch.from_numpy(np.concatenate([known.coef_.T, known.intercept_[None]])).flatten()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "method",
    [
        *(LDA(HEAD, shrinkage) for shrinkage in (0.01, 0.5, 1.0)),
        *(Ridge(HEAD, strength) for strength in (1e-4, 0.1, 10.0)),
    ],
)
def test_one_round_with_all_agents_gives_the_solution_of_the_pooled_examples(method, masked):
    task = draw_task(0, 6, train=12, masked=masked)
    found = run(method, task, StarNetwork(6, None, seeded(0)), 1).weights
    expected = pooled(task, method)[None]
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("accelerated", [True, False])
@pytest.mark.parametrize("kind", [LDA, Ridge])
def test_over_a_graph_they_converge_to_the_solution_of_the_pooled_examples(kind, accelerated):
    task, method = draw_task(1, 8, train=12, masked=True), kind(HEAD, accelerated=accelerated)
    found = run(method, task, ring(8), 150).weights
    expected = pooled(task, method).expand(8, -1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("star", [True, False])
def test_averaged_class_means_are_those_of_the_pooled_examples(star):
    task = draw_task(1, 8, train=10, test=100, masked=True)
    network = StarNetwork(8, None, seeded(0)) if star else ring(8)
    state = run(ClassMeans(HEAD), task, network, 1 if star else 60)
    weights = state.agent_weights(network)
    pool, test = task.train.pooled(), task.test.pooled()
    known = NearestCentroid().fit(pool.x[0].numpy(), pool.y[0].numpy())
    centroids = torch.from_numpy(known.centroids_).T
    centroids = centroids - centroids.mean(1, keepdim=True)
    torch.testing.assert_close(weights.reshape(8, 4, 3)[:, :3], centroids.expand(8, 3, 3))
    predicted = HEAD.logits(weights, test.x).argmax(2)
    assert np.array_equal(predicted.numpy(), np.tile(known.predict(test.x[0].numpy()), (8, 1)))


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e5])
def test_class_means_tell_features_far_from_zero_apart_in_single_precision(offset):
    task = draw_task(5, 8, train=40, test=100, dtype=torch.float32)
    parts = [Examples(part.x + offset, part.y, part.mask) for part in (task.train, task.test)]
    task, network = Task(*parts, task.classes), Network(nx.complete_graph(8), "metropolis")
    found = run(ClassMeans(HEAD), task, network, 3).weights
    pool, test = task.train.pooled(), task.test.pooled()
    known = NearestCentroid().fit(pool.x[0].double().numpy(), pool.y[0].numpy())
    right = float((known.predict(test.x[0].double().numpy()) == test.y[0].numpy()).mean())
    assert right > 0.4
    assert float(HEAD.accuracy(found[:1], test)) == pytest.approx(right, abs=0.02)


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 8),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_an_unseen_class_never_wins_by_class_means_and_numbers_stay_finite(
    seed, count, scale, dtype
):
    train = draw_examples(seed, 5, 2, classes=2, dtype=dtype)
    train = Examples(scale * train.x, 1 + 2 * train.y)  # classes 1 and 3 of 4
    test = draw_examples(seed + 1, 5, 50, classes=4, dtype=dtype)
    task = Task(train, Examples(10 * scale * test.x, test.y), 4)
    head, network = SoftmaxHead(3, 4), Network(nx.path_graph(5), "metropolis")
    weights = run(ClassMeans(head), task, network, count).weights
    assert weights.isfinite().all()
    assert set(head.logits(weights, task.test.x).argmax(2).unique().tolist()) <= {1, 3}
    assert head.loss(weights, task.test).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [LDA, Ridge])
def test_agents_without_a_definite_matrix_keep_their_weights_and_unseen_classes_never_win(
    kind, dtype
):
    train = draw_examples(4, 12, 3, classes=2, dtype=dtype)
    test = draw_examples(5, 12, 50, classes=4, dtype=dtype)
    task = Task(Examples(train.x, 1 + 2 * train.y), test, 4)
    head, network = SoftmaxHead(3, 4), ring(12)
    method = kind(head, 1e-3)
    state, kept = begin(method, task, network), 0
    for _ in range(8):
        before, state = state, advance(method, state, task, network)
        assert state.weights.isfinite().all()
        kept += int((state.weights == before.weights).all(1).sum())
        winners = head.logits(state.weights, 9 * test.x).argmax(2).unique().tolist()
        assert set(winners) <= {1, 3}
    assert kept > 0


def test_a_rare_class_of_a_large_federation_is_seen_in_single_precision():
    x = torch.zeros(2, 100_000, 2)
    x[:, 1::2] += 1
    y = (torch.arange(100_000) % 2).expand(2, -1).clone()
    x[0, 0], y[0, 0] = torch.tensor([-50.0, 50.0]), 2
    data, head = Examples(x, y), SoftmaxHead(2, 3)
    network = Network(nx.path_graph(2), "metropolis")
    found = run(ClassMeans(head), Task(data, data, 3), network, 1).weights
    assert head.logits(found, x[:1, :1]).argmax(2).flatten().tolist() == [2, 2]


def test_without_any_seen_class_the_weights_are_finite():
    found = head_weights(torch.ones(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool))
    assert found.isfinite().all()


def test_with_equal_examples_of_one_class_the_weights_of_lda_are_finite():
    x = torch.ones(1, 4, 3, dtype=torch.float64)
    task = Task(*[Examples(x, torch.zeros(1, 4, dtype=torch.int64))] * 2, 2)
    network = Network(nx.empty_graph(1), "metropolis")
    assert run(LDA(SoftmaxHead(3, 2)), task, network, 2).weights.isfinite().all()


def test_lda_in_groups_of_agents_gives_the_same(monkeypatch):
    task = draw_task(2, 7, train=12)
    whole = run(LDA(HEAD), task, ring(7), 2).weights
    monkeypatch.setattr(lda, "MAX_MATRIX_NUMBERS", 18)  # two matrices
    torch.testing.assert_close(run(LDA(HEAD), task, ring(7), 2).weights, whole)


def test_moments_hold_sums_counts_and_the_upper_triangle():
    task = draw_task(3, features=5)
    x, statistics = task.train.x, moments(task.train, 3)
    assert statistics.shape == (4, 3 * 6 + 5 * 6 // 2)
    sums, counts, second = split_moments(statistics, 3, 5)
    torch.testing.assert_close(second, x.mT @ x)
    torch.testing.assert_close(sums.sum(1), x.sum(1))
    assert counts.sum(1).tolist() == [6, 6, 6, 6]


def test_ridge_minimises_the_square_loss_of_a_linear_module():
    task = draw_task(3, 4, train=10)
    weights = run(Ridge(HEAD, 0.2), task, StarNetwork(4, None, seeded(0)), 1).weights
    matrix = weights[0].reshape(4, 3)

    def square(scores, labels):
        return (scores - torch.eye(3, dtype=torch.float64)[labels]).square().sum(-1) / 2

    model = ModuleModel(nn.Linear(3, 3), square)
    flat = torch.cat([matrix[:3].T.flatten(), matrix[3]])[None]
    penalty = torch.cat([0.2 * matrix[:3].T.flatten(), torch.zeros(3)])
    assert (model.gradient(flat, task.train.pooled()) + penalty).abs().max() < 1e-12


def test_ridge_in_float32_is_near_the_solution_in_float64():
    task, star = draw_task(10, 6, train=20, features=16), StarNetwork(6, None, seeded(0))
    method = Ridge(SoftmaxHead(16, 3), 1e-2)
    exact = run(method, task, star, 1).weights
    single = run(method, task.to(torch.float32), star, 1).weights
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [LDA, Ridge])
def test_features_whose_covariance_is_lost_to_rounding_are_refused(kind):
    task, method = draw_task(3, 4, train=12, dtype=torch.float32), kind(HEAD)

    def moved(by, dtype=torch.float32):
        parts = (Examples(part.x.to(dtype) + by, part.y) for part in (task.train, task.test))
        return Task(*parts, 3)

    for near in (moved(300.0), moved(1e5, torch.float64)):
        method.check(near)
        start = begin(method, near, ring(4)).weights
        assert not torch.equal(run(method, near, ring(4), 1).weights, start)
    with pytest.raises(ValueError, match=r"^task: got feature 0 with mean .* centre the"):
        method.check(moved(1e5))


@pytest.mark.parametrize("kind", [ClassMeans, LDA, Ridge])
def test_a_head_of_another_size_is_refused(kind):
    with pytest.raises(ValueError, match=r"^task: got 3 features and 3 classes, .* 2 features"):
        begin(kind(SoftmaxHead(2, 3)), draw_task(4), ring(4))
