"""FedDyn: its regulariser's gradients and its fixed point."""

import torch
from known_optima import (
    LeastSquares,
    least_squares_optimum,
    least_squares_task,
    normal_equations,
)
from random_data import seeded
from running import begin, run

from fedsurf.algorithms.feddyn import FedDyn
from fedsurf.network import StarNetwork


def test_with_many_local_steps_an_agents_h_is_its_gradient_where_it_ended():
    task = least_squares_task()
    feddyn = FedDyn(LeastSquares(), 400, 0.3, None, alpha=0.5)
    state = run(feddyn, task, StarNetwork(6, None, seeded(0)), 1)
    server = begin(feddyn, task, StarNetwork(6, None, seeded(0))).weights[0]
    hessian, linear = normal_equations(task)
    ridge = hessian + 0.5 * torch.eye(3, dtype=torch.float64)
    ends = torch.linalg.solve(ridge, linear + 0.5 * server)
    expected = (hessian @ ends[:, :, None])[:, :, 0] - linear
    torch.testing.assert_close(state.gradients, expected)


def test_a_single_agent_settles_at_its_optimum():
    task = least_squares_task(agents=1)
    feddyn = FedDyn(LeastSquares(), 6, 0.2, None, alpha=1.0)
    state = run(feddyn, task, StarNetwork(1, None, seeded(0)), 600)
    torch.testing.assert_close(state.weights[0], least_squares_optimum(task), rtol=1e-8, atol=1e-8)
