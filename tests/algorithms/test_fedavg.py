"""FedAvg against a loop over agents, and its known bias."""

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
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def naive_round(server, examples, called, weighting, *, steps, step_size, classes):
    """Every called agent takes its steps from the server's row; their average is the next one."""
    local = []
    for agent in called:
        row = server
        for _ in range(steps):
            row = plus(row, naive.gradient(row, examples[agent], classes), -step_size)
        local.append(row)
    return weighted(local, shares(examples, called, weighting))


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_fedavg_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    fedavg = FedAvg(SoftmaxHead(3, 3), 3, 0.7, None, weighting)
    state = fedavg.init(task, network, seeded(seed))
    row, examples = state.weights[0].tolist(), real_examples(task.train)
    for called in calls(agents, reporting, 7, 3):
        state = fedavg.step(state, task, network, seeded(0))
        row = naive_round(row, examples, called, weighting, steps=3, step_size=0.7, classes=3)
    expected = torch.tensor(row, dtype=torch.float64).expand(agents + 1, -1)
    torch.testing.assert_close(state.weights, expected, rtol=1e-11, atol=1e-11)
    assert state.steps == network.rounds == 3


def test_called_agents_draw_their_own_mini_batches_anew_in_each_local_step():
    task, head = draw_task(5, agents=6, train=20), SoftmaxHead(3, 3)
    network = StarNetwork(6, 2, seeded(1))
    fedavg = FedAvg(head, local_steps=3, step_size=0.5, batch_size=4)
    state = fedavg.init(task, network, seeded(2))
    random, twin = seeded(3), seeded(3)
    for called in calls(6, 2, 1, 2):
        own = task.train.of(torch.tensor(called))
        rows = state.weights[:2]
        for _ in range(3):
            rows = rows - 0.5 * head.gradient(rows, own.draw(4, twin))
        state = fedavg.step(state, task, network, random)
        torch.testing.assert_close(state.weights[0], rows.mean(0))


def test_one_local_step_of_all_agents_is_centralised_gradient_descent():
    task, model = least_squares_task(), LeastSquares()
    network = StarNetwork(6, None, seeded(0))
    fedavg = FedAvg(model, local_steps=1, step_size=0.2, batch_size=None)
    state = fedavg.init(task, network, seeded(1))
    central = state.weights[:1]
    for _ in range(20):
        state = fedavg.step(state, task, network, seeded(2))
        central = central - 0.2 * model.gradient(central, task.train.pooled())
    torch.testing.assert_close(state.weights[:1], central, rtol=1e-12, atol=1e-12)


def test_one_local_step_weighted_by_examples_descends_on_the_pooled_examples():
    task, head = draw_task(4, agents=5, train=8, masked=True), SoftmaxHead(3, 3)
    assert len(set(task.train.counts.tolist())) > 1
    network = StarNetwork(5, None, seeded(0))
    fedavg = FedAvg(head, 1, 0.5, None, "examples")
    state = fedavg.init(task, network, seeded(1))
    expected = state.weights[:1] - 0.5 * head.gradient(state.weights[:1], task.train.pooled())
    torch.testing.assert_close(fedavg.step(state, task, network, seeded(2)).weights[:1], expected)


def test_with_equal_sizes_both_weightings_agree():
    task, head = draw_task(6, agents=4), SoftmaxHead(3, 3)
    ends = [
        rounds(FedAvg(head, 3, 0.5, None, weighting), task, StarNetwork(4, 2, seeded(0)), 5).weights
        for weighting in ("uniform", "examples")
    ]
    torch.testing.assert_close(*ends)


def test_a_single_agent_does_plain_gradient_descent():
    task, head = draw_task(3, agents=1), SoftmaxHead(3, 3)
    network = StarNetwork(1, None, seeded(0))
    fedavg = FedAvg(head, local_steps=4, step_size=0.3, batch_size=None)
    state = fedavg.init(task, network, seeded(4))
    descended = state.weights[:1].clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3)
    for _ in range(2):
        state = fedavg.step(state, task, network, seeded(0))
        for _ in range(4):
            plain.zero_grad()
            head.loss(descended, task.train).sum().backward()
            plain.step()
    torch.testing.assert_close(state.weights[:1], descended.detach())


@pytest.mark.parametrize("step_size", [0.2, 0.05])
def test_with_several_local_steps_fedavg_settles_beside_the_optimum_where_theory_says(step_size):
    task = least_squares_task()
    fedavg = FedAvg(LeastSquares(), 6, step_size, None, start=ORIGIN)
    state = rounds(fedavg, task, StarNetwork(6, None, seeded(0)), int(20 / step_size))
    torch.testing.assert_close(
        state.weights[0], averaging_limit(task, step_size, 6), rtol=1e-8, atol=1e-8
    )
    assert (state.weights[0] - least_squares_optimum(task)).norm() > 0.02


def test_the_bias_shrinks_with_the_step():
    task = least_squares_task()
    optimum = least_squares_optimum(task)
    long, short = (float((averaging_limit(task, s, 6) - optimum).norm()) for s in (0.2, 0.02))
    assert 0 < short < long / 3
