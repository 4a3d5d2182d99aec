"""FedAvgM against a loop over agents, and what the server's momentum does."""

import naive
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import real_examples, seeded
from random_data import task as draw_task
from served import (
    ORIGIN,
    LeastSquares,
    averaging_limit,
    calls,
    least_squares_optimum,
    least_squares_task,
    plus,
    rounds,
    shares,
    weighted,
)

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedavgm import FedAvgM
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_fedavgm_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    fedavgm = FedAvgM(
        SoftmaxHead(3, 3), 3, 0.7, None, weighting, momentum=0.6, server_step_size=0.8
    )
    state = fedavgm.init(task, network, seeded(seed))
    server, examples, velocity = state.weights[0].tolist(), real_examples(task.train), [0.0] * 12
    for called in calls(agents, reporting, 7, 4):
        state = fedavgm.step(state, task, network, seeded(0))
        gaps = []
        for agent in called:
            row = server
            for _ in range(3):
                row = plus(row, naive.gradient(row, examples[agent], 3), -0.7)
            gaps.append(plus(server, row, -1))
        gap = weighted(gaps, shares(examples, called, weighting))
        velocity = plus(gap, velocity, 0.6)
        server = plus(server, velocity, -0.8)
    for found, expected in ((state.weights[0], server), (state.velocity, velocity)):
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert state.steps == network.rounds == 4


def test_without_momentum_and_with_a_step_of_one_it_is_fedavg():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    ends = [
        rounds(method, task, StarNetwork(6, 3, seeded(0)), 5).weights
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
        middle = rounds(fedavgm, task, network, 40).weights[0]
        distances.append(float((middle - limit).norm()))
        end = rounds(fedavgm, task, network, 500).weights[0]
        torch.testing.assert_close(end, limit, rtol=1e-8, atol=1e-8)
    assert distances[1] < 0.1 * distances[0]
    assert (limit - least_squares_optimum(task)).norm() > 0.02


def test_one_full_step_of_a_single_agent_is_sgd_with_momentum():
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedavgm = FedAvgM(head, 1, 0.3, None, momentum=0.8)
    state = fedavgm.init(task, network, seeded(4))
    descended = state.weights[:1].clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3, momentum=0.8)
    for _ in range(5):
        state = fedavgm.step(state, task, network, seeded(0))
        plain.zero_grad()
        head.loss(descended, task.train).sum().backward()
        plain.step()
    torch.testing.assert_close(state.weights[:1], descended.detach())


@pytest.mark.parametrize(
    ("argument", "value"),
    [("momentum", 1.0), ("momentum", -0.1), ("server_step_size", 0.0)],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value}, but it must be"):
        FedAvgM(SoftmaxHead(3, 3), **{argument: value})


def test_another_methods_state_is_refused():
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = FedAvg(head, batch_size=None).init(task, network, seeded(0))
    with pytest.raises(TypeError, match=r"^state: got a State, .* FedAvgMState "):
        FedAvgM(head, batch_size=None).step(state, task, network, seeded(0))
