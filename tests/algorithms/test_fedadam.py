"""FedAdam against a loop over agents and numbers, and against torch's Adam."""

import math

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
    calls,
    least_squares_optimum,
    least_squares_task,
    plus,
    rounds,
    shares,
    weighted,
)

from fedsurf.algorithms.fedadam import FedAdam
from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_fedadam_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    settings = {"server_step_size": 0.3, "beta1": 0.8, "beta2": 0.9, "tau": 0.05}
    fedadam = FedAdam(SoftmaxHead(3, 3), 3, 0.7, None, weighting, **settings)
    state = fedadam.init(task, network, seeded(seed))
    server, examples = state.weights[0].tolist(), real_examples(task.train)
    first, second = [0.0] * 12, [0.05**2] * 12
    for called in calls(agents, reporting, 7, 4):
        state = fedadam.step(state, task, network, seeded(0))
        changes = []
        for agent in called:
            row = server
            for _ in range(3):
                row = plus(row, naive.gradient(row, examples[agent], 3), -0.7)
            changes.append(plus(row, server, -1))
        change = weighted(changes, shares(examples, called, weighting))
        for place, move in enumerate(change):
            first[place] = 0.8 * first[place] + (1 - 0.8) * move
            second[place] = 0.9 * second[place] + (1 - 0.9) * move**2
            server[place] += 0.3 * first[place] / (math.sqrt(second[place]) + 0.05)
    checked = ((state.weights[0], server), (state.first_moment, first))
    for found, expected in (*checked, (state.second_moment, second)):
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert state.steps == network.rounds == 4


def test_one_step_of_a_single_agent_becomes_torchs_adam_when_the_first_rounds_are_forgotten():
    # torch corrects the bias of the first rounds; after many, both move by the same steps.
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedadam = FedAdam(
        head, 1, 1.0, None, server_step_size=0.01, beta1=0.5, beta2=0.6, tau=1e-8, start=ORIGIN
    )
    state = fedadam.init(task, network, seeded(4))
    for _ in range(100):
        state = fedadam.step(state, task, network, seeded(0))
    row = state.weights[:1].clone().requires_grad_()
    adam = torch.optim.Adam([row], lr=0.01, betas=(0.5, 0.6), eps=1e-8)
    row.grad = torch.zeros_like(row)
    adam.step()  # makes its state, which is then set to ours
    adam.state[row]["exp_avg"].copy_(-state.first_moment[None])
    adam.state[row]["exp_avg_sq"].copy_(state.second_moment[None])
    adam.state[row]["step"].fill_(1000)
    for _ in range(5):
        state = fedadam.step(state, task, network, seeded(0))
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
        begun = fedadam.init(task, network, seeded(1))
        ends.append(fedadam.step(begun, task, network, seeded(2)).weights[0] - begun.weights[0])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=0)
    torch.testing.assert_close(ends[0].abs(), torch.full((12,), 0.1).double(), rtol=1e-4, atol=0)


def test_with_one_local_step_it_reaches_the_optimum():
    task = least_squares_task()
    fedadam = FedAdam(LeastSquares(), 1, 0.1, None, start=ORIGIN, server_step_size=0.02, tau=0.1)
    state = rounds(fedadam, task, StarNetwork(6, None, seeded(0)), 1500)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("server_step_size", 0.0), ("beta1", 1.0), ("beta2", -0.1), ("beta2", 1.0), ("tau", 0.0)],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value}, but it must be"):
        FedAdam(SoftmaxHead(3, 3), **{argument: value})


def test_another_methods_state_is_refused():
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = FedAvg(head, batch_size=None).init(task, network, seeded(0))
    with pytest.raises(TypeError, match=r"^state: got a State, .* FedAdamState "):
        FedAdam(head, batch_size=None).step(state, task, network, seeded(0))
