"""What the tests of methods through a server share: naive sums, and problems with known optima."""

import torch
from random_data import seeded

from fedsurf.algorithms.algorithm import Start
from fedsurf.models import Model
from fedsurf.network import StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

ORIGIN = Start(0.0, 0.0)


def plus(left, right, scale=1.0):
    """left + scale · right, number by number."""
    return [a + scale * b for a, b in zip(left, right, strict=True)]


def shares(examples, called, weighting):
    """How much each called agent counts among those called."""
    sizes = [1 if weighting == "uniform" else len(examples[agent]) for agent in called]
    return [size / sum(sizes) for size in sizes]


def presence(examples, called, weighting):
    """How much of all agents the called ones are."""
    sizes = [1 if weighting == "uniform" else len(pairs) for pairs in examples]
    return sum(sizes[agent] for agent in called) / sum(sizes)


def weighted(rows, parts):
    """Σ_k parts_k · rows_k."""
    total = [0.0] * len(rows[0])
    for row, part in zip(rows, parts, strict=True):
        total = plus(total, row, part)
    return total


def calls(agents, reporting, seed, rounds):
    """Who a star with this seed calls in each round."""
    network = StarNetwork(agents, reporting, seeded(seed))
    return [network.call().tolist() for _ in range(rounds)]


def rounds(method, task, network, count, *, seed=0):
    """The state after so many rounds."""
    state, random = method.init(task, network, seeded(seed)), seeded(seed + 1)
    for _ in range(count):
        state = method.step(state, task, network, random)
    return state


class LeastSquares(Model):
    """A linear model of three weights with loss (w·x + b − y)²/2: its optima are solved for."""

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
    """Agents who see other features and give other answers: Hessians and own optima differ."""
    random = seeded(0)
    x = torch.randn(agents, size, 2, generator=random, dtype=torch.float64)
    x = x * torch.linspace(0.4, 1.6, agents, dtype=torch.float64)[:, None, None]
    slope = (x[:, :, 0] * torch.linspace(-2, 2, agents, dtype=torch.float64)[:, None]).round()
    y = (slope.long() + 2 + torch.arange(agents)[:, None] % 2).clamp(0, 4)
    return Task(Examples(x, y), Examples(x, y), 5)


def normal_equations(task):
    """Each agent's Hessian H_i `[agents, 3, 3]` and b_i `[agents, 3]`: ∇f_i(w) = H_i w − b_i."""
    x = torch.cat([task.train.x, torch.ones_like(task.train.x[:, :, :1])], 2)
    size = x.shape[1]
    hessian = x.transpose(1, 2) @ x / size
    return hessian, (x.transpose(1, 2) @ task.train.y.double()[:, :, None])[:, :, 0] / size


def least_squares_optimum(task):
    """The one minimum of the average loss."""
    hessian, linear = normal_equations(task)
    return torch.linalg.solve(hessian.mean(0), linear.mean(0))


def averaging_limit(task, step_size, steps, mu=0.0):
    """Where FedAvg (mu = 0) or FedProx settles with all agents and all examples, in closed form.

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
