"""SCAFFOLD against a loop over agents, and its exactness under heterogeneity."""

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
    presence,
    rounds,
    shares,
    weighted,
)

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.scaffold import SCAFFOLD
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_scaffold_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    scaffold = SCAFFOLD(SoftmaxHead(3, 3), 3, 0.7, None, weighting, server_step_size=0.8)
    state = scaffold.init(task, network, seeded(seed))
    examples = real_examples(task.train)
    x, c, own = state.weights[0].tolist(), [0.0] * 12, [[0.0] * 12 for _ in range(agents)]
    for called in calls(agents, reporting, 7, 4):
        state = scaffold.step(state, task, network, seeded(0))
        moves, changes = [], []
        for agent in called:
            y = x
            for _ in range(3):
                slope = naive.gradient(y, examples[agent], 3)
                y = plus(y, plus(plus(slope, own[agent], -1), c), -0.7)
            renewed = plus(plus(own[agent], c, -1), plus(x, y, -1), 1 / (3 * 0.7))
            moves.append(plus(y, x, -1))
            changes.append(plus(renewed, own[agent], -1))
            own[agent] = renewed
        parts = shares(examples, called, weighting)
        x = plus(x, weighted(moves, parts), 0.8)
        c = plus(c, weighted(changes, parts), presence(examples, called, weighting))
    for found, expected in (
        (state.weights[0], x),
        (state.server_variate, c),
        (state.variates, own),
    ):
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert state.steps == network.rounds == 4


def test_the_first_round_is_that_of_fedavg():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    one, two = (
        [rounds(m, task, StarNetwork(6, 3, seeded(0)), count).weights for count in (1, 2)]
        for m in (SCAFFOLD(head, 4, 0.5, 5), FedAvg(head, 4, 0.5, 5))
    )
    torch.testing.assert_close(one[0], two[0], rtol=1e-12, atol=1e-12)
    assert (one[1] - two[1]).abs().max() > 1e-3  # then the variates speak


def test_with_one_full_step_an_agents_variate_is_its_gradient():
    task, head = draw_task(2, agents=3), SoftmaxHead(3, 3)
    network = StarNetwork(3, None, seeded(0))
    scaffold = SCAFFOLD(head, 1, 0.5, None)
    before = rounds(scaffold, task, network, 2)
    after = scaffold.step(before, task, network, seeded(0))
    torch.testing.assert_close(after.variates, head.gradient(before.weights[1:], task.train))


@pytest.mark.parametrize(("reporting", "count"), [(None, 200), (2, 800)])
def test_scaffold_reaches_the_exact_optimum_where_fedavg_does_not(reporting, count):
    task, optimum = least_squares_task(), least_squares_optimum(least_squares_task())
    scaffold = SCAFFOLD(LeastSquares(), 6, 0.05, None, start=ORIGIN)
    state = rounds(scaffold, task, StarNetwork(6, reporting, seeded(0)), count)
    assert (state.weights[0] - optimum).norm() < 1e-5
    assert (averaging_limit(task, 0.05, 6) - optimum).norm() > 0.02
    slopes = LeastSquares().gradient(optimum.expand(6, -1), task.train)
    torch.testing.assert_close(state.variates, slopes, atol=1e-4, rtol=0)
    assert slopes.norm(dim=1).min() > 0.1  # the agents do differ


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_variates_of_silent_agents_stay_and_the_servers_is_their_mean(weighting):
    task, head = draw_task(3, agents=8, train=9, masked=True), SoftmaxHead(3, 3)
    network = StarNetwork(8, 3, seeded(0))
    scaffold = SCAFFOLD(head, 4, 0.5, None, weighting)
    state = scaffold.init(task, network, seeded(1))
    for called in calls(8, 3, 0, 6):
        before, state = state, scaffold.step(state, task, network, seeded(2))
        moved = (state.variates != before.variates).any(1).nonzero().flatten().tolist()
        assert moved == sorted(called)
        mean = task.agent_weights(weighting) @ state.variates
        torch.testing.assert_close(state.server_variate, mean)


def test_a_single_agent_does_plain_gradient_descent():
    task, head = draw_task(3, agents=1, train=20), SoftmaxHead(3, 3)
    ends = [
        rounds(method, task, StarNetwork(1, None, seeded(0)), 5).weights
        for method in (SCAFFOLD(head, 4, 0.3, 5), FedAvg(head, 4, 0.3, 5))
    ]
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan")])
def test_the_servers_step_must_be_positive(size):
    with pytest.raises(
        ValueError, match=r"^server_step_size: got .*, but it must be a finite number above 0"
    ):
        SCAFFOLD(SoftmaxHead(3, 3), server_step_size=size)


def test_another_methods_state_is_refused():
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = FedAvg(head, batch_size=None).init(task, network, seeded(0))
    with pytest.raises(TypeError, match=r"^state: got a State, .* SCAFFOLDState "):
        SCAFFOLD(head, batch_size=None).step(state, task, network, seeded(0))
