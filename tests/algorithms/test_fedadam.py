"""FedAdam against torch's Adam, and its fixed point."""

import torch
from known_optima import (
    ORIGIN,
    LeastSquares,
    least_squares_optimum,
    least_squares_task,
)
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, run

from fedsurf.algorithms.fedadam import FedAdam
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def test_one_step_of_a_single_agent_becomes_torchs_adam_when_the_first_rounds_are_forgotten():
    # torch corrects the bias of the first rounds; after many, both move by the same steps.
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedadam = FedAdam(
        head, 1, 1.0, None, server_step_size=0.01, beta1=0.5, beta2=0.6, tau=1e-8, start=ORIGIN
    )
    state = begin(fedadam, task, network)
    for _ in range(100):
        state = advance(fedadam, state, task, network)
    row = state.weights[:1].clone().requires_grad_()
    adam = torch.optim.Adam([row], lr=0.01, betas=(0.5, 0.6), eps=1e-8)
    row.grad = torch.zeros_like(row)
    adam.step()  # creates its state, which is then set to ours
    adam.state[row]["exp_avg"].copy_(-state.first_moment)
    adam.state[row]["exp_avg_sq"].copy_(state.second_moment)
    adam.state[row]["step"].fill_(1000)
    for _ in range(5):
        state = advance(fedadam, state, task, network)
        adam.zero_grad()
        head.loss(row, task.train).sum().backward()
        adam.step()
    torch.testing.assert_close(state.weights[:1], row.detach())


def test_the_first_step_is_as_long_in_small_as_in_large_numbers():
    task, head = draw_task(1, agents=4), SoftmaxHead(3, 3)
    ends = []
    for step_size in (0.1, 0.001):
        fedadam = FedAdam(head, 1, step_size, None, beta1=0.0, beta2=0.0, tau=1e-9)
        network = StarNetwork(4, None, seeded(0))
        begun = begin(fedadam, task, network)
        ends.append(advance(fedadam, begun, task, network).weights[0] - begun.weights[0])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=0)
    torch.testing.assert_close(ends[0].abs(), torch.full((12,), 0.1).double(), rtol=1e-4, atol=0)


def test_with_one_local_step_it_reaches_the_optimum():
    task = least_squares_task()
    fedadam = FedAdam(LeastSquares(), 1, 0.1, None, start=ORIGIN, server_step_size=0.02, tau=0.1)
    state = run(fedadam, task, StarNetwork(6, None, seeded(0)), 1500)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-5, atol=1e-5)
