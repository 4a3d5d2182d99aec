"""LDA from averaged moments against a loop and scikit-learn."""

import networkx as nx
import numpy as np
import pytest
import torch
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedsurf.algorithms import lda
from fedsurf.algorithms.lda import LDA, moments, split_moments
from fedsurf.algorithms.ridge import Ridge
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def rounds(method, task, network, count):
    state = method.init(task, network, seeded(0))
    for _ in range(count):
        state = method.step(state, task, network, seeded(0))
    return state


def pooled_lda(task, shrinkage):
    """Scikit-learn's LDA of the pooled examples, as flat weights."""
    pool = task.train.pooled()
    known = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    known.fit(pool.x[0].numpy(), pool.y[0].numpy())
    return torch.from_numpy(np.concatenate([known.coef_.T, known.intercept_[None]])).flatten()


@pytest.mark.parametrize("shrinkage", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("masked", [True, False])
def test_with_all_reporting_one_round_gives_the_lda_of_the_pooled_examples(shrinkage, masked):
    task = draw_task(0, 6, train=12, masked=masked)
    state = rounds(LDA(SoftmaxHead(3, 3), shrinkage), task, StarNetwork(6, None, seeded(0)), 1)
    torch.testing.assert_close(
        state.weights, pooled_lda(task, shrinkage).expand(7, -1), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("accelerated", [True, False])
def test_over_a_graph_it_converges_to_the_lda_of_the_pooled_examples(accelerated):
    task, network = draw_task(1, 8, train=12, masked=True), Network(nx.cycle_graph(8), "metropolis")
    state = rounds(LDA(SoftmaxHead(3, 3), 0.1, accelerated=accelerated), task, network, 150)
    torch.testing.assert_close(
        state.weights, pooled_lda(task, 0.1).expand(8, -1), rtol=1e-7, atol=1e-7
    )


def test_agents_in_groups_get_the_same(monkeypatch):
    task, network = draw_task(2, 7, train=12), Network(nx.cycle_graph(7), "metropolis")
    whole = rounds(LDA(SoftmaxHead(3, 3)), task, network, 2).weights
    monkeypatch.setattr(lda, "MAX_MATRIX_NUMBERS", 18)  # two matrices
    torch.testing.assert_close(rounds(LDA(SoftmaxHead(3, 3)), task, network, 2).weights, whole)


def test_a_message_holds_sums_counts_and_the_upper_triangle():
    task, network = draw_task(3, features=5), Network(nx.cycle_graph(4), "metropolis")
    rounds(LDA(SoftmaxHead(5, 3)), task, network, 2)
    size = 3 * 6 + 5 * 6 // 2
    assert (network.rounds, network.floats) == (2, 2 * 8 * size)
    star = StarNetwork(4, 2, seeded(0))
    rounds(LDA(SoftmaxHead(5, 3)), task, star, 1)
    assert star.floats == 2 * size + 2 * 18
    x = task.train.x
    sums, counts, second = split_moments(moments(task.train, 3), 3, 5)
    torch.testing.assert_close(second, x.mT @ x)
    torch.testing.assert_close(sums.sum(1), x.sum(1))
    assert counts.sum(1).tolist() == [6, 6, 6, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unseen_classes_never_win_and_agents_without_a_definite_covariance_keep_their_weights(
    dtype,
):
    train = draw_examples(4, 12, 3, classes=2, dtype=dtype)
    test = draw_examples(5, 12, 50, classes=4, dtype=dtype)
    task = Task(Examples(train.x, 1 + 2 * train.y), test, 4)
    head, network = SoftmaxHead(3, 4), Network(nx.cycle_graph(12), "metropolis")
    method = LDA(head, 0.01)
    state, kept = method.init(task, network, seeded(0)), 0
    for _ in range(8):
        before, state = state, method.step(state, task, network, seeded(0))
        assert state.weights.isfinite().all()
        kept += int((state.weights == before.weights).all(1).sum())
        assert set(head.logits(state.weights, 9 * test.x).argmax(2).unique().tolist()) <= {1, 3}
    assert kept > 0
    assert not (state.weights == before.weights).all(1).any()


def test_where_all_examples_of_a_class_are_equal_the_weights_stay_finite():
    x = torch.ones(1, 4, 3, dtype=torch.float64)
    task = Task(*[Examples(x, torch.zeros(1, 4, dtype=torch.int64))] * 2, 2)
    network = Network(nx.empty_graph(1), "metropolis")
    assert rounds(LDA(SoftmaxHead(3, 2)), task, network, 2).weights.isfinite().all()


@pytest.mark.parametrize("method", [LDA, Ridge])
def test_features_whose_deviations_drown_beside_their_mean_are_refused(method):
    task = draw_task(3, 4, train=12, dtype=torch.float32)
    network, made = Network(nx.complete_graph(4), "metropolis"), method(SoftmaxHead(3, 3))

    def moved(by, dtype=torch.float32):
        parts = (Examples(part.x.to(dtype) + by, part.y) for part in (task.train, task.test))
        return Task(*parts, 3)

    for near in (moved(300.0), moved(1e5, torch.float64)):
        start = made.init(near, network, seeded(0)).weights
        assert not torch.equal(rounds(made, near, network, 1).weights, start)
    with pytest.raises(ValueError, match=r"^task: got feature 0 with mean .* centre the"):
        made.init(moved(1e5), network, seeded(0))
