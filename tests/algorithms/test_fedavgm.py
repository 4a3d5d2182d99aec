"""FedAvgM: the effect of the server's momentum."""

import torch
from known_optima import (
    ORIGIN,
    LeastSquares,
    averaging_limit,
    least_squares_optimum,
    least_squares_task,
)
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, run

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedavgm import FedAvgM
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def test_without_momentum_and_with_a_step_of_one_it_is_fedavg():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    ends = [
        run(method, task, StarNetwork(6, 3, seeded(0)), 5).weights
        for method in (FedAvgM(head, 4, 0.5, 5, momentum=0.0), FedAvg(head, 4, 0.5, 5))
    ]
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_momentum_ends_where_fedavg_does_but_sooner_with_small_steps():
    task = least_squares_task()
    limit = averaging_limit(task, 0.02, 6)
    distances = []
    for momentum in (0.0, 0.7):
        fedavgm = FedAvgM(LeastSquares(), 6, 0.02, None, start=ORIGIN, momentum=momentum)
        network = StarNetwork(6, None, seeded(0))
        middle = run(fedavgm, task, network, 40).weights[0]
        distances.append(float((middle - limit).norm()))
        end = run(fedavgm, task, network, 500).weights[0]
        torch.testing.assert_close(end, limit, rtol=1e-8, atol=1e-8)
    assert distances[1] < 0.1 * distances[0]
    assert (limit - least_squares_optimum(task)).norm() > 0.02


def test_one_full_step_of_a_single_agent_is_sgd_with_momentum():
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedavgm = FedAvgM(head, 1, 0.3, None, momentum=0.8)
    state = begin(fedavgm, task, network)
    descended = state.weights.clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3, momentum=0.8)
    for _ in range(5):
        state = advance(fedavgm, state, task, network)
        plain.zero_grad()
        head.loss(descended, task.train).sum().backward()
        plain.step()
    torch.testing.assert_close(state.weights, descended.detach())
