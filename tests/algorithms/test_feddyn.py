"""FedDyn against a loop over agents, and its exactness under heterogeneity."""

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
    normal_equations,
    plus,
    presence,
    rounds,
    shares,
    weighted,
)

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.feddyn import FedDyn
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_feddyn_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    feddyn = FedDyn(SoftmaxHead(3, 3), 3, 0.7, None, weighting, alpha=0.4)
    state = feddyn.init(task, network, seeded(seed))
    examples = real_examples(task.train)
    server, h, own = state.weights[0].tolist(), [0.0] * 12, [[0.0] * 12 for _ in range(agents)]
    for called in calls(agents, reporting, 7, 4):
        state = feddyn.step(state, task, network, seeded(0))
        local = []
        for agent in called:
            row = server
            for _ in range(3):
                slope = plus(naive.gradient(row, examples[agent], 3), own[agent], -1)
                row = plus(row, plus(slope, plus(row, server, -1), 0.4), -0.7)
            own[agent] = plus(own[agent], plus(row, server, -1), -0.4)
            local.append(row)
        parts = shares(examples, called, weighting)
        moved = weighted([plus(row, server, -1) for row in local], parts)
        h = plus(h, moved, -0.4 * presence(examples, called, weighting))
        server = plus(weighted(local, parts), h, -1 / 0.4)
    checked = ((state.weights[0], server), (state.server_gradient, h), (state.gradients, own))
    for found, expected in checked:
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert state.steps == network.rounds == 4


def test_with_many_local_steps_an_agents_h_is_its_gradient_where_it_ended():
    task = least_squares_task()
    feddyn = FedDyn(LeastSquares(), 400, 0.3, None, alpha=0.5)
    state = rounds(feddyn, task, StarNetwork(6, None, seeded(0)), 1)
    server = feddyn.init(task, StarNetwork(6, None, seeded(0)), seeded(0)).weights[0]
    hessian, linear = normal_equations(task)
    ridge = hessian + 0.5 * torch.eye(3, dtype=torch.float64)
    ends = torch.linalg.solve(ridge, linear + 0.5 * server)
    expected = (hessian @ ends[:, :, None])[:, :, 0] - linear
    torch.testing.assert_close(state.gradients, expected)


@pytest.mark.parametrize(("reporting", "count"), [(None, 200), (2, 800)])
def test_feddyn_reaches_the_exact_optimum_where_fedavg_does_not(reporting, count):
    task, optimum = least_squares_task(), least_squares_optimum(least_squares_task())
    feddyn = FedDyn(LeastSquares(), 6, 0.1, None, start=ORIGIN, alpha=0.5)
    state = rounds(feddyn, task, StarNetwork(6, reporting, seeded(0)), count)
    assert (state.weights[0] - optimum).norm() < 1e-5
    assert (averaging_limit(task, 0.1, 6) - optimum).norm() > 0.02
    slopes = LeastSquares().gradient(optimum.expand(6, -1), task.train)
    torch.testing.assert_close(state.gradients, slopes, atol=1e-4, rtol=0)
    assert slopes.norm(dim=1).min() > 0.1  # the agents do differ


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_h_of_silent_agents_stays_and_the_servers_is_their_mean(weighting):
    task, head = draw_task(3, agents=8, train=9, masked=True), SoftmaxHead(3, 3)
    network = StarNetwork(8, 3, seeded(0))
    feddyn = FedDyn(head, 4, 0.5, None, weighting)
    state = feddyn.init(task, network, seeded(1))
    for called in calls(8, 3, 0, 6):
        before, state = state, feddyn.step(state, task, network, seeded(2))
        moved = (state.gradients != before.gradients).any(1).nonzero().flatten().tolist()
        assert moved == sorted(called)
        mean = task.agent_weights(weighting) @ state.gradients
        torch.testing.assert_close(state.server_gradient, mean)


def test_a_single_agent_settles_at_its_optimum():
    task = least_squares_task(agents=1)
    feddyn = FedDyn(LeastSquares(), 6, 0.2, None, alpha=1.0)
    state = rounds(feddyn, task, StarNetwork(1, None, seeded(0)), 600)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf")])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(ValueError, match=r"^alpha: got .*, but it must be a finite number above 0"):
        FedDyn(SoftmaxHead(3, 3), alpha=alpha)


def test_another_methods_state_is_refused():
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = FedAvg(head, batch_size=None).init(task, network, seeded(0))
    with pytest.raises(TypeError, match=r"^state: got a State, .* FedDynState "):
        FedDyn(head, batch_size=None).step(state, task, network, seeded(0))
