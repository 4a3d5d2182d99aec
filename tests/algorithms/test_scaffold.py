"""SCAFFOLD: its control variates."""

import torch
from random_data import seeded
from random_data import task as draw_task
from running import advance, run

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.scaffold import SCAFFOLD
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def test_the_first_round_is_that_of_fedavg():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    one, two = (
        [run(m, task, StarNetwork(6, 3, seeded(0)), count).weights for count in (1, 2)]
        for m in (SCAFFOLD(head, 4, 0.5, 5), FedAvg(head, 4, 0.5, 5))
    )
    torch.testing.assert_close(one[0], two[0], rtol=1e-12, atol=1e-12)
    assert (one[1] - two[1]).abs().max() > 1e-3  # then the variates have an effect


def test_with_one_full_step_an_agents_variate_is_its_gradient():
    task, head = draw_task(2, agents=3), SoftmaxHead(3, 3)
    network = StarNetwork(3, None, seeded(0))
    scaffold = SCAFFOLD(head, 1, 0.5, None)
    before = run(scaffold, task, network, 2)
    after = advance(scaffold, before, task, network)
    torch.testing.assert_close(
        after.variates, head.gradient(before.weights.expand(3, -1), task.train)
    )


def test_a_single_agent_does_plain_gradient_descent():
    task, head = draw_task(3, agents=1, train=20), SoftmaxHead(3, 3)
    ends = [
        run(method, task, StarNetwork(1, None, seeded(0)), 5).weights
        for method in (SCAFFOLD(head, 4, 0.3, 5), FedAvg(head, 4, 0.3, 5))
    ]
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)
