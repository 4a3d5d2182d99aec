"""FedProx: the effect of its proximal term on FedAvg's bias."""

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
from running import run

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedprox import FedProx
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork


def test_without_the_proximal_term_it_is_fedavg_bit_for_bit():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    ends = [
        run(method, task, StarNetwork(6, 3, seeded(0)), 5).weights
        for method in (FedProx(head, 4, 0.5, 5, mu=0.0), FedAvg(head, 4, 0.5, 5))
    ]
    assert torch.equal(*ends)


def test_the_term_has_no_effect_on_a_single_local_step():
    task, head = draw_task(1, agents=4), SoftmaxHead(3, 3)
    ends = [
        run(method, task, StarNetwork(4, 2, seeded(0)), 5).weights
        for method in (FedProx(head, 1, 0.5, None, mu=5.0), FedAvg(head, 1, 0.5, None))
    ]
    assert torch.equal(*ends)


def test_the_term_reduces_the_bias_as_in_theory():
    task, optimum = least_squares_task(), least_squares_optimum(least_squares_task())
    distances = []
    for mu in (0.0, 1.0, 5.0):
        fedprox = FedProx(LeastSquares(), 6, 0.1, None, start=ORIGIN, mu=mu)
        state = run(fedprox, task, StarNetwork(6, None, seeded(0)), 500)
        torch.testing.assert_close(
            state.weights[0], averaging_limit(task, 0.1, 6, mu), rtol=1e-8, atol=1e-8
        )
        distances.append(float((state.weights[0] - optimum).norm()))
    assert distances[0] > 1.02 * distances[1] > 1.2 * distances[2] > 0.05


def test_a_single_agent_settles_at_its_optimum():
    task = least_squares_task(agents=1)
    fedprox = FedProx(LeastSquares(), 6, 0.2, None, mu=1.0)
    state = run(fedprox, task, StarNetwork(1, None, seeded(0)), 600)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-8, atol=1e-8)
