"""A convex problem on which agents strongly disagree, with one finite optimum that is known."""

import torch
from random_data import seeded
from torch.func import hessian, jacrev

from fedsurf.models import SoftmaxHead
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def heterogeneous_task(agents=6, size=12, features=2, classes=3):
    """Draw a task whose agents hold one class each, around a place of their own."""
    random = seeded(8)
    places = 2 * torch.randn(agents, 1, features, generator=random, dtype=torch.float64)
    noise = torch.randn(agents, size, features, generator=random, dtype=torch.float64)
    x = (places + noise) / 2
    y = (torch.arange(agents) % classes)[:, None].expand(agents, size).clone()
    return Task(Examples(x, y), Examples(x, y), classes)


class Ridge(SoftmaxHead):
    """Softmax regression with a penalty of `strength`/2 ‖w‖² at every agent: strongly convex."""

    strength = 0.3

    def loss(self, weights, examples):
        return super().loss(weights, examples) + self.strength / 2 * weights.square().sum(1)

    def gradient(self, weights, examples):
        return super().gradient(weights, examples) + self.strength * weights


def optimum(model, task):
    """Minimise the average of the agents' losses over weights that they share, by Newton's method."""

    def average(row):
        return model.loss(row.expand(task.agents, -1), task.train).mean()

    row = torch.zeros(model.parameters, dtype=torch.float64)
    for _ in range(50):
        row = row - torch.linalg.solve(hessian(average)(row), jacrev(average)(row))
    assert jacrev(average)(row).norm() < 1e-13
    return row


def disagreement_of_optima(model, task):
    """Return how far the agents' gradients at the shared optimum are from zero."""
    row = optimum(model, task)
    return model.gradient(row.expand(task.agents, -1), task.train).norm(dim=1)


def distances(algorithm, task, network, steps):
    """Run an algorithm; return the largest distance of an agent from the optimum after each step."""
    best = optimum(algorithm.model, task)
    state, found = algorithm.init(task, network, seeded(0)), []
    for _ in range(steps):
        state = algorithm.step(state, task, network, seeded(0))
        rows = network.agent_rows(state.weights)
        found.append(float((rows - best).norm(dim=1).max()))
    return found
