"""FedAvg: special cases of centralised descent, and its known bias."""

import pytest
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
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def test_one_local_step_of_all_agents_is_centralised_gradient_descent():
    task, model = least_squares_task(), LeastSquares()
    network = StarNetwork(6, None, seeded(0))
    fedavg = FedAvg(model, local_steps=1, step_size=0.2, batch_size=None)
    state = begin(fedavg, task, network)
    central = state.weights
    for _ in range(20):
        state = advance(fedavg, state, task, network)
        central = central - 0.2 * model.gradient(central, task.train.pooled())
    torch.testing.assert_close(state.weights, central, rtol=1e-12, atol=1e-12)


def test_one_local_step_weighted_by_examples_descends_on_the_pooled_examples():
    task, head = draw_task(4, agents=5, train=8, masked=True), SoftmaxHead(3, 3)
    assert len(set(task.train.counts.tolist())) > 1
    network = StarNetwork(5, None, seeded(0))
    fedavg = FedAvg(head, 1, 0.5, None, "examples")
    state = begin(fedavg, task, network)
    expected = state.weights - 0.5 * head.gradient(state.weights, task.train.pooled())
    torch.testing.assert_close(advance(fedavg, state, task, network).weights, expected)


def test_a_single_agent_does_plain_gradient_descent():
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedavg = FedAvg(head, local_steps=4, step_size=0.3, batch_size=None)
    state = begin(fedavg, task, network)
    descended = state.weights.clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3)
    for _ in range(2):
        state = advance(fedavg, state, task, network)
        for _ in range(4):
            plain.zero_grad()
            head.loss(descended, task.train).sum().backward()
            plain.step()
    torch.testing.assert_close(state.weights, descended.detach())


@pytest.mark.parametrize("step_size", [0.2, 0.05])
def test_with_several_local_steps_fedavg_has_the_limit_and_bias_of_theory(step_size):
    task = least_squares_task()
    fedavg = FedAvg(LeastSquares(), 6, step_size, None, start=ORIGIN)
    state = run(fedavg, task, StarNetwork(6, None, seeded(0)), int(20 / step_size))
    torch.testing.assert_close(
        state.weights[0], averaging_limit(task, step_size, 6), rtol=1e-8, atol=1e-8
    )
    assert (state.weights[0] - least_squares_optimum(task)).norm() > 0.02


def test_the_bias_shrinks_with_the_step():
    task = least_squares_task()
    optimum = least_squares_optimum(task)
    long, short = (float((averaging_limit(task, s, 6) - optimum).norm()) for s in (0.2, 0.02))
    assert 0 < short < long / 3
