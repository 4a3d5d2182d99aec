"""One-shot averaging: local optima, averaged once."""

import networkx as nx
import torch
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, run, streams
from torch import nn

from fedsurf.algorithms.algorithm import Start
from fedsurf.algorithms.local import local_optimum
from fedsurf.algorithms.one_shot import OneShot
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Examples, Task


def test_averages_of_similar_agents_are_nearer_to_the_truth_than_the_agents():
    random = seeded(2)
    x = torch.randn(40, 50, 2, generator=random, dtype=torch.float64)
    chance = (x[:, :, 0] - x[:, :, 1] + 0.5).sigmoid()
    y = (torch.rand(40, 50, generator=random, dtype=torch.float64) < chance).long()
    task, head = Task(Examples(x, y), Examples(x, y), 2), SoftmaxHead(2, 2)
    truth = torch.tensor([-0.5, 0.5, 0.5, -0.5, -0.25, 0.25], dtype=torch.float64)
    zero = torch.zeros(40, 6, dtype=torch.float64)
    own = local_optimum(head, zero, task.train, 1e-3)
    averaged = run(OneShot(head, 1e-3), task, StarNetwork(40, None, seeded(0)), 1).weights[0]
    alone = (own - truth).norm(dim=1).mean()
    assert (averaged - truth).norm() < alone / 3


def test_a_message_holds_the_weights_and_the_count_if_agents_are_weighted_by_it():
    task = draw_task(3)
    for weighting, size in (("uniform", 12), ("examples", 13)):
        network = Network(nx.cycle_graph(4), "metropolis")
        run(OneShot(SoftmaxHead(3, 3), weighting=weighting), task, network, 3)
        assert (network.rounds, network.floats) == (3, 3 * 8 * size)
        star = StarNetwork(4, 2, seeded(0))
        run(OneShot(SoftmaxHead(3, 3), weighting=weighting), task, star, 1)
        assert star.floats == 2 * size + 2 * 12


def test_a_hidden_layer_is_trained_from_a_shared_start():
    model = ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))
    task = draw_task(5, 4, train=40, test=100)
    method = OneShot(model, 1e-2, start=Start(0.0, 0.3))
    network = Network(nx.complete_graph(4), "metropolis")
    start = begin(method, task, network)
    common = Start(0.0, 0.3).draw(model, streams(network).shared(), task.train.x).expand(4, -1)
    expected = local_optimum(model, common, task.train, 1e-2).mean(0)
    state = advance(method, start, task, network)
    torch.testing.assert_close(state.weights, expected.expand(4, -1))
    before, after = (model.pooled_accuracy(s.weights, task.test).mean() for s in (start, state))
    assert after > before + 0.1
