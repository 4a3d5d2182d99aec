"""Local-only training: every agent at its own optimum, and nothing sent."""

import naive
import networkx as nx
import numpy as np
import pytest
import torch
from random_data import real_examples, seeded
from random_data import task as draw_task
from random_data import weights as draw_weights
from running import advance, begin
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedsurf.algorithms.local import local_optimum
from fedsurf.algorithms.local_only import LocalOnly
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Examples, Task


def hidden_layer():
    return ModuleModel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)))


@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("masked", [True, False])
def test_every_agents_gradient_vanishes_at_its_own_examples(strength, masked):
    task, network = draw_task(0, 6, train=8, masked=masked), Network(nx.cycle_graph(6))
    method = LocalOnly(SoftmaxHead(3, 3), strength)
    state = advance(method, begin(method, task, network), task, network)
    for row, own in zip(state.weights.tolist(), real_examples(task.train), strict=True):
        slope = naive.gradient(row, own, 3)
        assert max(abs(s + strength * w) for s, w in zip(slope, row, strict=True)) < 2e-6
    spread = state.weights.std(0).max()
    assert spread > 0.1 * min(1, 1 / strength)  # the optima differ


def test_it_is_the_optimum_that_scikit_learn_finds_agent_by_agent():
    task = draw_task(1, 4, train=30)
    found = local_optimum(
        SoftmaxHead(3, 3), draw_weights(2, 4, 12), task.train, 1e-2, tolerance=1e-10
    )
    for agent in range(4):
        x, y = task.train.x[agent].numpy(), task.train.y[agent].numpy()
        assert len(np.unique(y)) == 3
        with_one = np.concatenate([x, np.ones((30, 1))], 1)  # so that the bias is penalised, too
        known = LogisticRegression(
            C=1 / (30 * 1e-2), fit_intercept=False, tol=1e-10, max_iter=1000
        ).fit(with_one, y)
        expected = torch.from_numpy(known.coef_.T.copy()).flatten()
        torch.testing.assert_close(found[agent], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [SoftmaxHead(3, 3), hidden_layer()])
def test_agents_train_together_as_each_would_alone(model):
    task = draw_task(3, 4, train=12, masked=True)
    start = 0.3 * draw_weights(4, 4, model.parameters)
    together = local_optimum(model, start, task.train, 1e-2, iterations=15)
    for agent in range(4):
        one = task.train.of(torch.tensor([agent])).pooled()
        alone = local_optimum(model, start[agent : agent + 1], one, 1e-2, iterations=15)
        torch.testing.assert_close(together[agent], alone[0], rtol=1e-6, atol=1e-8)


def test_the_objective_never_rises():
    model, task = hidden_layer(), draw_task(7, 4, train=12)
    start = 3 * draw_weights(8, 4, model.parameters)
    values = []
    for iterations in range(12):
        w = start
        if iterations:
            w = local_optimum(model, start, task.train, 1e-3, iterations=iterations)
        values.append(model.loss(w, task.train) + 5e-4 * w.square().sum(1))
    differences = torch.stack(values).diff(dim=0)
    assert differences.max() < 1e-12
    assert differences.sum(0).max() < -0.1


def test_only_the_first_step_trains_and_none_takes_a_round():
    task, network = draw_task(9), StarNetwork(4, 2, seeded(0))
    method = LocalOnly(SoftmaxHead(3, 3))
    start = begin(method, task, network)
    first = advance(method, start, task, network)
    second = advance(method, first, task, network)
    assert (network.rounds, network.floats, second.steps) == (0, 0, 2)
    assert torch.equal(second.weights, first.weights)
    assert torch.equal(first.weights[0], start.weights[0])  # a server has no examples
    assert not torch.equal(first.weights[1], start.weights[1])


def test_a_single_class_in_float32_works():
    one = torch.zeros(3, 6, dtype=torch.int64)
    x = draw_task(10, 3, dtype=torch.float32).train.x
    task = Task(Examples(x, one), Examples(x, one), 3)
    network = Network(nx.cycle_graph(3))
    method = LocalOnly(SoftmaxHead(3, 3), 1e-4)
    state = advance(method, begin(method, task, network), task, network)
    assert state.weights.dtype == torch.float32
    gradient = SoftmaxHead(3, 3).gradient(state.weights, task.train) + 1e-4 * state.weights
    assert gradient.abs().max() < 2e-5
    assert SoftmaxHead(3, 3).accuracy(state.weights, task.test).tolist() == [1, 1, 1]


def test_a_step_with_too_little_descent_is_halved():
    """The first step is as long as the slope, 1: nearly as far beyond the optimum as it began."""
    optimum = 0.5 - 1e-5
    steepness = 1 / (2 * (1 - optimum))

    class Parabola:
        def loss(self, weights, _):
            return steepness * (weights[:, 0] - optimum).square()

        def gradient(self, weights, _):
            return 2 * steepness * (weights - optimum)

    start = torch.ones(1, 1, dtype=torch.float64)
    found = local_optimum(Parabola(), start, None, 0.0, iterations=1)
    assert float(found) == pytest.approx(0.5)
