"""Federated ridge regression is the centralised one."""

import naive
import networkx as nx
import numpy as np
import pytest
import torch
from random_data import examples as draw_examples
from random_data import real_examples, seeded
from random_data import task as draw_task
from sklearn.linear_model import Ridge as PooledRidge
from torch import nn

from fedsurf.algorithms.ridge import Ridge
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph
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


def test_a_server_has_the_ridge_of_the_agents_that_it_has_heard():
    task, star = draw_task(1, 6, train=8, masked=True), StarNetwork(6, 2, seeded(3))
    method = Ridge(SoftmaxHead(3, 3))
    state, twin, heard = method.init(task, star, seeded(0)), seeded(3), set()
    for _ in range(4):
        state = method.step(state, task, star, seeded(0))
        heard |= set(torch.randperm(6, generator=twin)[:2].tolist())
        known = task.train.of(torch.tensor(sorted(heard))).pooled()
        torch.testing.assert_close(state.weights, pooled_ridge(known, 0.1).expand(7, -1))
    assert len(heard) > 2


@pytest.mark.parametrize("accelerated", [True, False])
def test_over_a_graph_it_converges_to_the_ridge_of_the_pooled_examples(accelerated):
    task, network = draw_task(2, 8, train=8, masked=True), Network(nx.cycle_graph(8), "metropolis")
    state = rounds(Ridge(SoftmaxHead(3, 3), 0.1, accelerated=accelerated), task, network, 150)
    expected = pooled_ridge(task.train.pooled(), 0.1).expand(8, -1)
    torch.testing.assert_close(state.weights, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_each_agents_solution_is_that_of_its_estimate(seed):
    """After two rounds of plain gossip: weighted least squares of each agent, example by example."""
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), 5, seeded(seed))
    task = draw_task(seed, 5, train=6, masked=True)
    shares = naive.mix(graph, np.eye(5).tolist(), "metropolis")
    shares = naive.mix(graph, shares, "metropolis")
    expected = []
    for row in shares:
        left, right, total = np.zeros((4, 4)), np.zeros((4, 3)), 0.0
        for share, own in zip(row, real_examples(task.train), strict=True):
            for x, y in own:
                left += share * np.outer([*x, 1], [*x, 1])
                right += share * np.outer([*x, 1], np.eye(3)[y])
                total += share
        left += 0.3 * total * np.diag([1, 1, 1, 0])  # the bias is free
        expected.append(np.linalg.solve(left, right).flatten())
    network = Network(graph, "metropolis")
    state = rounds(Ridge(SoftmaxHead(3, 3), 0.3, accelerated=False), task, network, 2)
    torch.testing.assert_close(state.weights, torch.tensor(np.array(expected)))


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


def test_it_sends_the_upper_triangle_only_and_one_agent_sends_nothing():
    task, network = draw_task(4), Network(nx.cycle_graph(4), "metropolis")
    rounds(Ridge(SoftmaxHead(3, 3)), task, network, 3)
    assert (network.rounds, network.floats) == (3, 3 * 8 * (12 + 6))
    alone, single = draw_task(5, 1, train=9), Network(nx.empty_graph(1), "metropolis")
    state = rounds(Ridge(SoftmaxHead(3, 3)), alone, single, 2)
    torch.testing.assert_close(state.weights[0], pooled_ridge(alone.train.pooled(), 0.1))
    assert single.floats == 0


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


def test_permuting_the_agents_of_a_star_changes_nothing():
    task, order = draw_task(8, 5), torch.randperm(5, generator=seeded(9))
    moved = Task(task.train.of(order), task.test.of(order), 3)
    first, second = (
        rounds(Ridge(SoftmaxHead(3, 3)), one, StarNetwork(5, None, seeded(0)), 1).weights
        for one in (task, moved)
    )
    torch.testing.assert_close(first, second)


def test_in_float32_it_is_near_the_solution_in_float64():
    task = draw_task(10, 6, train=20, features=16)
    method, star = Ridge(SoftmaxHead(16, 3), 1e-2), StarNetwork(6, None, seeded(0))
    exact = rounds(method, task, star, 1).weights
    single = rounds(method, task.to(torch.float32), star, 1).weights
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strength", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_arguments_are_refused(strength):
    with pytest.raises(ValueError, match=r"^strength: got .* finite number above 0"):
        Ridge(SoftmaxHead(3, 3), strength)
    with pytest.raises(TypeError, match=r"^model: got ModuleModel"):
        Ridge(ModuleModel(nn.Linear(3, 3)))


def test_deviations_that_drown_beside_the_mean_in_single_precision_are_refused():
    """Single precision keeps seven digits: beside the square of 2048 half of a variance of 1 is lost."""
    network, method = Network(nx.cycle_graph(2), "metropolis"), Ridge(SoftmaxHead(1, 2))

    def begin(mean, dtype):
        x = torch.tensor([-1.0, 1.0], dtype=dtype).reshape(1, 2, 1).expand(2, 2, 1) + mean
        part = Examples(x, torch.tensor([[0, 1], [0, 1]]))
        return method.init(Task(part, part, 2), network, seeded(0))

    assert begin(2000.0, torch.float32).weights.isfinite().all()
    assert begin(3000.0, torch.float64).weights.isfinite().all()
    with pytest.raises(ValueError, match=r"^task: got feature 0 with mean 2100 .* centre"):
        begin(2100.0, torch.float32)
