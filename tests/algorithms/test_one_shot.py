"""One-shot averaging: local optima, averaged once."""

import networkx as nx
import pytest
import torch
from random_data import seeded
from random_data import task as draw_task
from torch import nn

from fedsurf.algorithms.algorithm import Start
from fedsurf.algorithms.local import local_optimum
from fedsurf.algorithms.one_shot import OneShot
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def rounds(method, task, network, count):
    state = method.init(task, network, seeded(0))
    for _ in range(count):
        state = method.step(state, task, network, seeded(0))
    return state


def optima(task, strength=1e-2):
    """Each agent's own optimum, found by gradient descent alone."""
    head = SoftmaxHead(3, 3)
    rows = []
    for agent in range(task.agents):
        own = task.train.of(torch.tensor([agent])).pooled()
        row = torch.zeros(1, 12, dtype=torch.float64)
        for _ in range(6000):
            row = row - 0.3 * (head.gradient(row, own) + strength * row)
        rows.append(row)
    return torch.cat(rows)


def test_the_average_of_the_local_optima_over_a_graph_and_through_a_server():
    task = draw_task(0, 4, train=8, masked=True)
    own, counts = optima(task), task.train.counts.double()
    assert len(set(counts.tolist())) > 1
    ring, star = Network(nx.cycle_graph(4), "metropolis"), StarNetwork(4, None, seeded(0))
    for weighting, expected in (
        ("uniform", own.mean(0)),
        ("examples", counts @ own / counts.sum()),
    ):
        method = OneShot(SoftmaxHead(3, 3), weighting=weighting)
        for network, count in ((star, 1), (ring, 40)):
            found = rounds(method, task, network, count).weights
            torch.testing.assert_close(
                found, expected.expand(network.nodes, -1), rtol=1e-3, atol=1e-3
            )


def test_one_round_of_gossip_mixes_neighbours_only():
    task, network = draw_task(1, 5, train=8), Network(nx.path_graph(5), "metropolis")
    found = rounds(OneShot(SoftmaxHead(3, 3)), task, network, 1).weights
    own = optima(task)
    torch.testing.assert_close(found[0], (2 * own[0] + own[1]) / 3, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[2], own[1:4].mean(0), rtol=1e-3, atol=1e-3)


def test_averages_of_alike_agents_are_nearer_to_the_truth_than_the_agents():
    random = seeded(2)
    x = torch.randn(40, 50, 2, generator=random, dtype=torch.float64)
    chance = (x[:, :, 0] - x[:, :, 1] + 0.5).sigmoid()
    y = (torch.rand(40, 50, generator=random, dtype=torch.float64) < chance).long()
    task, head = Task(Examples(x, y), Examples(x, y), 2), SoftmaxHead(2, 2)
    truth = torch.tensor([-0.5, 0.5, 0.5, -0.5, -0.25, 0.25], dtype=torch.float64)
    zero = torch.zeros(40, 6, dtype=torch.float64)
    own = local_optimum(head, zero, task.train, 1e-3)
    averaged = rounds(OneShot(head, 1e-3), task, StarNetwork(40, None, seeded(0)), 1).weights[0]
    alone = (own - truth).norm(dim=1).mean()
    assert (averaged - truth).norm() < alone / 3


def test_the_weights_are_what_is_sent_and_the_count_where_it_matters():
    task = draw_task(3)
    for weighting, size in (("uniform", 12), ("examples", 13)):
        network = Network(nx.cycle_graph(4), "metropolis")
        rounds(OneShot(SoftmaxHead(3, 3), weighting=weighting), task, network, 3)
        assert (network.rounds, network.floats) == (3, 3 * 8 * size)
        star = StarNetwork(4, 2, seeded(0))
        rounds(OneShot(SoftmaxHead(3, 3), weighting=weighting), task, star, 1)
        assert star.floats == 2 * size + 2 * 12


def test_an_agent_alone_has_its_own_optimum():
    task, network = draw_task(4, 1, train=8), Network(nx.empty_graph(1), "metropolis")
    found = rounds(OneShot(SoftmaxHead(3, 3)), task, network, 2).weights
    torch.testing.assert_close(found, optima(task), rtol=1e-4, atol=1e-4)


def test_a_hidden_layer_is_trained_from_a_common_start():
    model = ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))
    task = draw_task(5, 4, train=40, test=100)
    method = OneShot(model, 1e-2, start=Start(0.0, 0.3))
    network = Network(nx.complete_graph(4), "metropolis")
    start = method.init(task, network, seeded(0))
    common = start.weights[:1].expand(4, -1)
    expected = local_optimum(model, common, task.train, 1e-2).mean(0)
    state = method.step(start, task, network, seeded(0))
    torch.testing.assert_close(state.weights, expected.expand(4, -1))
    before, after = (model.pooled_accuracy(s.weights, task.test).mean() for s in (start, state))
    assert after > before + 0.1


def test_the_same_seed_gives_the_same_bits():
    task = draw_task(6, dtype=torch.float32)
    twice = [
        rounds(OneShot(SoftmaxHead(3, 3)), task, StarNetwork(4, 2, seeded(1)), 2).weights
        for _ in range(2)
    ]
    assert torch.equal(*twice)
    assert twice[0].dtype == torch.float32


def test_permuting_the_agents_of_a_star_changes_nothing():
    task, order = draw_task(7, 5, masked=True), torch.randperm(5, generator=seeded(2))
    moved = Task(task.train.of(order), task.test.of(order), 3)
    first, second = (
        rounds(OneShot(SoftmaxHead(3, 3)), one, StarNetwork(5, None, seeded(0)), 1).weights
        for one in (task, moved)
    )
    torch.testing.assert_close(first, second)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"^strength: got 0"):
        OneShot(SoftmaxHead(3, 3), 0.0)
    with pytest.raises(ValueError, match=r"^iterations: got -1"):
        OneShot(SoftmaxHead(3, 3), iterations=-1)
    with pytest.raises(ValueError, match=r"^weighting: got 'size', .*'uniform' or 'examples'"):
        OneShot(SoftmaxHead(3, 3), weighting="size")
    with pytest.raises(ValueError, match=r"^network: got .*use 'metropolis'"):
        OneShot(SoftmaxHead(3, 3)).init(draw_task(0), Network(nx.path_graph(4)), seeded(0))
