"""FedProx against a loop over agents, and what its proximal term does to FedAvg's bias."""

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
from fedsurf.algorithms.fedprox import FedProx
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    weighting=st.sampled_from(["uniform", "examples"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_fedprox_equals_a_loop_over_the_called_agents(agents, seed, weighting, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    fedprox = FedProx(SoftmaxHead(3, 3), 3, 0.7, None, weighting, mu=0.9)
    state = fedprox.init(task, network, seeded(seed))
    server, examples = state.weights[0].tolist(), real_examples(task.train)
    for called in calls(agents, reporting, 7, 3):
        state = fedprox.step(state, task, network, seeded(0))
        local = []
        for agent in called:
            row = server
            for _ in range(3):
                slope = plus(naive.gradient(row, examples[agent], 3), plus(row, server, -1), 0.9)
                row = plus(row, slope, -0.7)
            local.append(row)
        server = weighted(local, shares(examples, called, weighting))
    expected = torch.tensor(server, dtype=torch.float64).expand(agents + 1, -1)
    torch.testing.assert_close(state.weights, expected, rtol=1e-11, atol=1e-11)
    assert state.steps == network.rounds == 3


def test_without_the_proximal_term_it_is_fedavg_bit_for_bit():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    ends = [
        rounds(method, task, StarNetwork(6, 3, seeded(0)), 5).weights
        for method in (FedProx(head, 4, 0.5, 5, mu=0.0), FedAvg(head, 4, 0.5, 5))
    ]
    assert torch.equal(*ends)


def test_a_single_local_step_does_not_feel_the_term():
    task, head = draw_task(1, agents=4), SoftmaxHead(3, 3)
    ends = [
        rounds(method, task, StarNetwork(4, 2, seeded(0)), 5).weights
        for method in (FedProx(head, 1, 0.5, None, mu=5.0), FedAvg(head, 1, 0.5, None))
    ]
    assert torch.equal(*ends)


def test_the_term_changes_the_bias_as_theory_says_and_lessens_it():
    task, optimum = least_squares_task(), least_squares_optimum(least_squares_task())
    distances = []
    for mu in (0.0, 1.0, 5.0):
        fedprox = FedProx(LeastSquares(), 6, 0.1, None, start=ORIGIN, mu=mu)
        state = rounds(fedprox, task, StarNetwork(6, None, seeded(0)), 500)
        torch.testing.assert_close(
            state.weights[0], averaging_limit(task, 0.1, 6, mu), rtol=1e-8, atol=1e-8
        )
        distances.append(float((state.weights[0] - optimum).norm()))
    assert distances[0] > 1.02 * distances[1] > 1.2 * distances[2] > 0.05


def test_a_single_agent_settles_at_its_optimum():
    task = least_squares_task(agents=1)
    fedprox = FedProx(LeastSquares(), 6, 0.2, None, mu=1.0)
    state = rounds(fedprox, task, StarNetwork(1, None, seeded(0)), 600)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_the_term_cannot_be_negative_or_infinite(mu):
    with pytest.raises(
        ValueError, match=r"^mu: got .*, but it must be a finite number, at least 0"
    ):
        FedProx(SoftmaxHead(3, 3), mu=mu)
