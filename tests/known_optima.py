"""Convex problems with heterogeneous agents and known optima."""

import torch
from random_data import seeded
from running import advance, begin
from torch.func import hessian, jacrev

from fedsurf.algorithms import Start
from fedsurf.models import Model, SoftmaxHead
from fedsurf.tasks.task import Examples, Task

ORIGIN = Start(0.0, 0.0)


def heterogeneous_task(agents=6, size=12, features=2, classes=3):
    """Draw a task whose agents hold one class each, around different places."""
    random = seeded(8)
    places = 2 * torch.randn(agents, 1, features, generator=random, dtype=torch.float64)
    noise = torch.randn(agents, size, features, generator=random, dtype=torch.float64)
    x = (places + noise) / 2
    y = (torch.arange(agents) % classes)[:, None].expand(agents, size).clone()
    return Task(Examples(x, y), Examples(x, y), classes)


class PenalisedHead(SoftmaxHead):
    """Softmax regression with a penalty of `strength`/2 ‖w‖² at every agent: strongly known_optima."""

    strength = 0.3

    def loss(self, weights, examples):
        return super().loss(weights, examples) + self.strength / 2 * weights.square().sum(1)

    def gradient(self, weights, examples):
        return super().gradient(weights, examples) + self.strength * weights


def optimum(model, task):
    """Return the shared weights that minimise the average of the agents' losses, by Newton's method."""

    def average(row):
        return model.loss(row.expand(task.agents, -1), task.train).mean()

    row = torch.zeros(model.parameters, dtype=torch.float64)
    for _ in range(50):
        row = row - torch.linalg.solve(hessian(average)(row), jacrev(average)(row))
    assert jacrev(average)(row).norm() < 1e-13
    return row


def disagreement_of_optima(model, task):
    """Return the norms of the agents' gradients at the shared optimum."""
    row = optimum(model, task)
    return model.gradient(row.expand(task.agents, -1), task.train).norm(dim=1)


def distances(algorithm, task, network, steps):
    """Run an algorithm; return the largest distance of an agent from the optimum after each step."""
    best = optimum(algorithm.model, task)
    state, found = begin(algorithm, task, network), []
    for _ in range(steps):
        state = advance(algorithm, state, task, network)
        rows = state.agent_weights(network)
        found.append(float((rows - best).norm(dim=1).max()))
    return found


class LeastSquares(Model):
    """A linear model of three weights with loss (w·x + b − y)²/2, whose optima have a closed form."""

    parameters = 3

    def logits(self, weights, x):
        return (x @ weights[:, :2, None]) + weights[:, None, 2:]

    def loss(self, weights, examples):
        return examples.mean((self.logits(weights, examples.x)[:, :, 0] - examples.y).square() / 2)

    def gradient(self, weights, examples):
        residual = self.logits(weights, examples.x) - examples.y[:, :, None]
        inputs = torch.cat([examples.x, torch.ones_like(examples.x[:, :, :1])], 2)
        return (inputs * residual).mean(1)


def least_squares_task(agents=6, size=20):
    """Draw a task whose agents have different Hessians and optima."""
    random = seeded(0)
    x = torch.randn(agents, size, 2, generator=random, dtype=torch.float64)
    x = x * torch.linspace(0.4, 1.6, agents, dtype=torch.float64)[:, None, None]
    slope = (x[:, :, 0] * torch.linspace(-2, 2, agents, dtype=torch.float64)[:, None]).round()
    y = (slope.long() + 2 + torch.arange(agents)[:, None] % 2).clamp(0, 4)
    return Task(Examples(x, y), Examples(x, y), 5)


def normal_equations(task):
    """Return each agent's Hessian H_i `[agents, 3, 3]` and b_i `[agents, 3]`: ∇f_i(w) = H_i w − b_i."""
    x = torch.cat([task.train.x, torch.ones_like(task.train.x[:, :, :1])], 2)
    size = x.shape[1]
    hessian = x.transpose(1, 2) @ x / size
    return hessian, (x.transpose(1, 2) @ task.train.y.double()[:, :, None])[:, :, 0] / size


def least_squares_optimum(task):
    """Return the minimum of the average loss."""
    hessian, linear = normal_equations(task)
    return torch.linalg.solve(hessian.mean(0), linear.mean(0))


def averaging_limit(task, step_size, steps, mu=0.0):
    """Return the limit of FedAvg (mu = 0) or FedProx with all agents and examples, in closed form.

    An agent's steps from w end at A_i w + d_i; the limit solves w = mean(A_i) w + mean(d_i).
    """
    hessian, linear = normal_equations(task)
    unit = torch.eye(3, dtype=torch.float64)
    slopes, ends = [], []
    for curvature, right in zip(hessian, linear, strict=True):
        slope, end = unit, torch.zeros(3, dtype=torch.float64)
        for _ in range(steps):
            # v ← v − s (H v − b + μ (v − w)) with v = slope · w + end
            slope = slope - step_size * (curvature @ slope + mu * (slope - unit))
            end = end - step_size * (curvature @ end - right + mu * end)
        slopes.append(slope)
        ends.append(end)
    return torch.linalg.solve(unit - torch.stack(slopes).mean(0), torch.stack(ends).mean(0))
