"""Federated ridge regression is the centralised one."""

import networkx as nx
import numpy as np
import pytest
import torch
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from sklearn.linear_model import Ridge as PooledRidge
from torch import nn

from fedsurf.algorithms.ridge import Ridge
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def rounds(method, task, network, count):
    state = method.init(task, network, seeded(0))
    for _ in range(count):
        state = method.step(state, task, network, seeded(0))
    return state


def pooled_ridge(examples, strength, classes=3):
    """Scikit-learn's ridge regression of the pooled examples, as flat weights."""
    x, y = examples.x[0].numpy(), examples.y[0].numpy()
    known = PooledRidge(alpha=strength * len(y)).fit(x, np.eye(classes)[y])
    return torch.from_numpy(np.concatenate([known.coef_.T, known.intercept_[None]])).flatten()


@pytest.mark.parametrize("strength", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("masked", [True, False])
def test_with_all_reporting_one_round_gives_the_ridge_of_the_pooled_examples(strength, masked):
    task = draw_task(0, 6, train=8, masked=masked)
    state = rounds(Ridge(SoftmaxHead(3, 3), strength), task, StarNetwork(6, None, seeded(0)), 1)
    expected = pooled_ridge(task.train.pooled(), strength).expand(7, -1)
    torch.testing.assert_close(state.weights, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("accelerated", [True, False])
def test_over_a_graph_it_converges_to_the_ridge_of_the_pooled_examples(accelerated):
    task, network = draw_task(2, 8, train=8, masked=True), Network(nx.cycle_graph(8), "metropolis")
    state = rounds(Ridge(SoftmaxHead(3, 3), 0.1, accelerated=accelerated), task, network, 150)
    expected = pooled_ridge(task.train.pooled(), 0.1).expand(8, -1)
    torch.testing.assert_close(state.weights, expected, rtol=1e-8, atol=1e-8)


def test_it_minimises_the_square_loss_of_a_linear_module():
    """The library's own loss and gradient agree that this is the optimum."""
    task = draw_task(3, 4, train=10)
    weights = rounds(
        Ridge(SoftmaxHead(3, 3), 0.2), task, StarNetwork(4, None, seeded(0)), 1
    ).weights
    matrix = weights[0].reshape(4, 3)

    def square(scores, labels):
        return (scores - torch.eye(3, dtype=torch.float64)[labels]).square().sum(-1) / 2

    model = ModuleModel(nn.Linear(3, 3), square)
    flat = torch.cat([matrix[:3].T.flatten(), matrix[3]])[None]
    penalty = torch.cat([0.2 * matrix[:3].T.flatten(), torch.zeros(3)])
    assert (model.gradient(flat, task.train.pooled()) + penalty).abs().max() < 1e-12


def test_unseen_classes_never_win_and_early_accelerated_estimates_stay_finite():
    train = draw_examples(6, 12, 3, classes=2)
    task = Task(Examples(train.x, 1 + 2 * train.y), draw_examples(7, 12, 50, classes=4), 4)
    head, network = SoftmaxHead(3, 4), Network(nx.cycle_graph(12), "metropolis")
    method = Ridge(head, 1e-3)
    state, kept = method.init(task, network, seeded(0)), 0
    for _ in range(8):
        before, state = state, method.step(state, task, network, seeded(0))
        assert state.weights.isfinite().all()
        kept += int((state.weights == before.weights).all(1).sum())
        assert set(head.logits(state.weights, 9 * task.test.x).argmax(2).unique().tolist()) <= {
            1,
            3,
        }
    assert kept > 0


def test_in_float32_it_is_near_the_solution_in_float64():
    task = draw_task(10, 6, train=20, features=16)
    method, star = Ridge(SoftmaxHead(16, 3), 1e-2), StarNetwork(6, None, seeded(0))
    exact = rounds(method, task, star, 1).weights
    single = rounds(method, task.to(torch.float32), star, 1).weights
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4)
