"""Every method of the catalogue again, in plain Python: agent by agent, number by number.

`NAIVE` maps a method's name to a generator of the weights after each step, all nodes' rows or the
server's model as a single one; `MESSAGES` to the floats of its message, as a function of the features
and the classes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import naive
import numpy as np
import torch
from torch.func import hessian, jacrev

from fedsurf.models import UNSEEN_MARGIN, SoftmaxHead
from fedsurf.tasks.task import Examples


@dataclass
class World:
    """Everything that a naive method sees.

    `draw(agents)` gives the examples of the next gradient, a list of (features, label) pairs for each
    of the agents; `calls` are the agents that a server calls in each round.
    """

    rows: list[list[float]]
    examples: list[list[tuple[list[float], int]]]
    classes: int
    mix: Callable
    draw: Callable
    calls: Iterator[list[int]] | None = None

    @property
    def agents(self):
        return len(self.examples)

    def slopes(self, rows):
        """Each node's gradient; zeros for a server."""
        server = len(rows) - self.agents
        drawn = self.draw(range(self.agents))
        found = [
            naive.gradient(row, own, self.classes)
            for row, own in zip(rows[server:], drawn, strict=True)
        ]
        return [[0.0] * len(rows[0])] * server + found

    def shares(self):
        """Every agent's share of all agents' statistics after each round of averaging."""
        if self.calls is None:
            shares = np.eye(self.agents).tolist()
            while True:
                shares = self.mix(shares)
                yield shares
        heard = set()
        for called in self.calls:
            heard |= set(called)
            share = [float(agent in heard) / len(heard) for agent in range(self.agents)]
            yield [share]


def plus(left, right, scale=1.0):
    """left + scale · right, number by number."""
    return [a + scale * b for a, b in zip(left, right, strict=True)]


def combination(*terms):
    """Sum up factor · row over (factor, row) pairs."""
    total = [0.0] * len(terms[0][1])
    for factor, row in terms:
        total = plus(total, row, factor)
    return total


# Over a graph


def dgd(method, world):
    rows = world.rows
    while True:
        slopes = world.slopes(rows)
        rows = [
            plus(*pair, -method.step_size) for pair in zip(world.mix(rows), slopes, strict=True)
        ]
        yield rows


def extra(method, world):
    before, rows = None, world.rows
    while True:
        mixed, slopes = world.mix(rows), world.slopes(rows)
        if before is None:
            after = [plus(*pair, -method.step_size) for pair in zip(mixed, slopes, strict=True)]
        else:
            after = [
                combination(
                    (1, row), (1, mix), (-0.5, old), (-0.5, old_mix),
                    (-method.step_size, slope), (method.step_size, old_slope),
                )
                for row, mix, slope, old, old_mix, old_slope in zip(
                    rows, mixed, slopes, *before, strict=True
                )
            ]  # fmt: skip
        before, rows = (rows, mixed, slopes), after
        yield rows


def exact_diffusion(method, world):
    rows = psi = world.rows
    while True:
        before, slopes = psi, world.slopes(rows)
        psi = [plus(*pair, -method.step_size) for pair in zip(rows, slopes, strict=True)]
        phi = [
            combination((1, one), (1, row), (-1, old))
            for one, row, old in zip(psi, rows, before, strict=True)
        ]
        rows = [
            combination((0.5, one), (0.5, mix))
            for one, mix in zip(phi, world.mix(phi), strict=True)
        ]
        yield rows


def gradient_tracking(method, world):
    rows = before = world.rows
    slopes = tracker = world.slopes(rows)
    while True:
        moved = [
            combination(
                (1, mix), (-method.step_size, y), (method.momentum, row), (-method.momentum, old)
            )
            for mix, y, row, old in zip(world.mix(rows), tracker, rows, before, strict=True)
        ]
        before, rows = rows, moved
        yield rows
        fresh = world.slopes(rows)
        tracker = [
            combination((1, mix), (1, new), (-1, old))
            for mix, new, old in zip(world.mix(tracker), fresh, slopes, strict=True)
        ]
        slopes = fresh


def dfedavgm(method, world):
    rows = world.rows
    while True:
        before = now = rows
        for _ in range(method.local_steps):
            slopes, server = world.slopes(now), len(rows) - world.agents
            after = [
                combination(
                    (1 + method.momentum, row),
                    (-method.momentum, old),
                    (-method.step_size, slope),
                )
                for row, old, slope in zip(now, before, slopes, strict=True)
            ]
            before, now = now, now[:server] + after[server:]
        rows = world.mix(now)
        yield rows


# Through a server


def parts(method, world, called):
    """The called agents' shares of an average, and their share of all agents."""
    sizes = [1 if method.weighting == "uniform" else len(own) for own in world.examples]
    heard = sum(sizes[agent] for agent in called)
    return [sizes[agent] / heard for agent in called], heard / sum(sizes)


def average(rows, shares):
    return combination(*zip(shares, rows, strict=True))


def trained(method, world, server, called, extra_slope=None):
    """The called agents' rows after their local steps from the server's row."""
    rows = [server] * len(called)
    for _ in range(method.local_steps):
        drawn = world.draw(called)
        slopes = [
            naive.gradient(row, own, world.classes) for row, own in zip(rows, drawn, strict=True)
        ]
        if extra_slope is not None:
            more = [extra_slope(*each) for each in zip(called, rows, drawn, strict=True)]
            slopes = [plus(*pair) for pair in zip(slopes, more, strict=True)]
        rows = [plus(*pair, -method.step_size) for pair in zip(rows, slopes, strict=True)]
    return rows


def fedavg(method, world, extra_slope=None):
    """FedAvg, with a further slope of (server, agent, row, examples) if given."""
    server = world.rows[0]
    for called in world.calls:
        more = None
        if extra_slope is not None:
            more = lambda *each, row=server: extra_slope(row, *each)  # noqa: E731
        local = trained(method, world, server, called, more)
        server = average(local, parts(method, world, called)[0])
        yield [server]


def fedprox(method, world):
    return fedavg(
        method,
        world,
        lambda server, _agent, row, _own: combination((method.mu, row), (-method.mu, server)),
    )


def moon(method, world):
    """MOON with the logits as representation."""
    server, previous = world.rows[0], [world.rows[0]] * world.agents
    for called in world.calls:

        def slope(agent, row, own, server=server):
            total = [0.0] * len(row)
            for x, _ in own:
                z, near, far = (
                    naive.scores(one, x, world.classes) for one in (row, server, previous[agent])
                )
                (cos_near, d_near), (cos_far, d_far) = cosine(z, near), cosine(z, far)
                pull = 1 / (1 + math.exp((cos_near - cos_far) / method.temperature))
                for c in range(world.classes):
                    change = pull * (d_far[c] - d_near[c]) / method.temperature
                    for place, value in enumerate([*x, 1.0]):
                        total[place * world.classes + c] += method.mu * change * value / len(own)
            return total

        local = trained(method, world, server, called, slope)
        for agent, row in zip(called, local, strict=True):
            previous[agent] = row
        server = average(local, parts(method, world, called)[0])
        yield [server]


def cosine(z, other):
    """The cosine of two vectors, and its gradient in the first."""
    size, length = (math.sqrt(sum(value**2 for value in one)) for one in (z, other))
    found = sum(a * b for a, b in zip(z, other, strict=True)) / (size * length)
    return found, combination((1 / (size * length), other), (-found / size**2, z))


def scaffold(method, world):
    x, zero = world.rows[0], [0.0] * len(world.rows[0])
    c, own = zero, [zero] * world.agents
    for called in world.calls:
        variates, server = own, c
        local = trained(
            method, world, x, called,
            lambda agent, _row, _own: plus(server, variates[agent], -1),  # noqa: B023
        )  # fmt: skip
        scale, changes, own = 1 / (method.local_steps * method.step_size), [], list(own)
        for agent, y in zip(called, local, strict=True):
            renewed = combination((1, own[agent]), (-1, c), (scale, x), (-scale, y))
            changes.append(plus(renewed, own[agent], -1))
            own[agent] = renewed
        shares, presence = parts(method, world, called)
        move = plus(average(local, shares), x, -1)
        x, c = plus(x, move, method.server_step_size), plus(c, average(changes, shares), presence)
        yield [x]


def feddyn(method, world):
    server, zero = world.rows[0], [0.0] * len(world.rows[0])
    h, own, alpha = zero, [zero] * world.agents, method.alpha
    for called in world.calls:
        local = trained(
            method, world, server, called,
            lambda agent, row, _own: combination(
                (-1, own[agent]), (alpha, row), (-alpha, server)  # noqa: B023
            ),
        )  # fmt: skip
        own = list(own)
        for agent, row in zip(called, local, strict=True):
            own[agent] = combination((1, own[agent]), (-alpha, row), (alpha, server))
        shares, presence = parts(method, world, called)
        moved = plus(average(local, shares), server, -1)
        h = plus(h, moved, -alpha * presence)
        server = plus(average(local, shares), h, -1 / alpha)
        yield [server]


def fedavgm(method, world):
    server, velocity = world.rows[0], [0.0] * len(world.rows[0])
    for called in world.calls:
        local = trained(method, world, server, called)
        gap = plus(server, average(local, parts(method, world, called)[0]), -1)
        velocity = plus(gap, velocity, method.momentum)
        server = plus(server, velocity, -method.server_step_size)
        yield [server]


def fedadam(method, world):
    server = list(world.rows[0])
    first, second = [0.0] * len(server), [method.tau**2] * len(server)
    for called in world.calls:
        local = trained(method, world, server, called)
        change = plus(average(local, parts(method, world, called)[0]), server, -1)
        server = list(server)
        for place, move in enumerate(change):
            first[place] = method.beta1 * first[place] + (1 - method.beta1) * move
            second[place] = method.beta2 * second[place] + (1 - method.beta2) * move**2
            root = math.sqrt(second[place]) + method.tau
            server[place] += method.server_step_size * first[place] / root
        yield [server]


# Closed forms


def from_shares(solve):
    """A method that solves for a row from all examples, weighted by an agent's shares of them."""

    def rows(method, world):
        for shares in world.shares():
            yield [
                solve(
                    method,
                    [
                        (share, np.array(x), y)
                        for share, own in zip(row, world.examples, strict=True)
                        for x, y in own
                    ],
                    world.classes,
                )
                for row in shares
            ]

    return rows


def class_statistics(weighted, classes):
    counts = [sum(share for share, _, y in weighted if y == c) for c in range(classes)]
    means = [
        sum(share * x for share, x, y in weighted if y == c) / counts[c] if counts[c] > 0 else None
        for c in range(classes)
    ]
    return counts, means


def class_means(_method, weighted, classes):
    _, means = class_statistics(weighted, classes)
    seen = [mean for mean in means if mean is not None]
    middle = sum(seen) / len(seen)
    columns = [
        None if mean is None else np.array([*(mean - middle), (middle @ middle - mean @ mean) / 2])
        for mean in means
    ]
    known = [column for column in columns if column is not None]
    low = sum(known) / len(known) - np.array([0.0] * len(middle) + [UNSEEN_MARGIN])
    return flat([low if column is None else column for column in columns])


def lda(method, weighted, classes):
    counts, means = class_statistics(weighted, classes)
    total, features = sum(counts), len(means[0])
    spread = sum(s * np.outer(x - means[y], x - means[y]) for s, x, y in weighted) / total
    shrunk = (1 - method.shrinkage) * spread
    shrunk += method.shrinkage * np.trace(spread) / features * np.eye(features)
    columns = []
    for count, mean in zip(counts, means, strict=True):
        direction = np.linalg.solve(shrunk, mean)
        columns.append([*direction, math.log(count / total) - mean @ direction / 2])
    return flat(columns)


def ridge(method, weighted, classes):
    size = len(weighted[0][1]) + 1
    left, right, total = np.zeros((size, size)), np.zeros((size, classes)), 0.0
    for share, x, y in weighted:
        left += share * np.outer([*x, 1], [*x, 1])
        right += share * np.outer([*x, 1], np.eye(classes)[y])
        total += share
    left += method.strength * total * np.diag([1.0] * (size - 1) + [0.0])  # the bias is free
    return np.linalg.solve(left, right).flatten().tolist()


def flat(columns):
    """Flat weights from one column `[features + 1]` for each class."""
    return np.array(columns).T.flatten().tolist()


# Known optima


def optima(method, world):
    """Each agent's penalised optimum, by Newton's method."""
    found = []
    for own in world.examples:
        x = torch.tensor([x for x, _ in own], dtype=torch.float64)[None]
        examples = Examples(x, torch.tensor([y for _, y in own])[None])
        model = SoftmaxHead(x.shape[2], world.classes)

        def objective(row, model=model, examples=examples):
            return model.loss(row[None], examples)[0] + method.strength / 2 * row.square().sum()

        row = torch.zeros(model.parameters, dtype=torch.float64)
        for _ in range(30):
            row = row - torch.linalg.solve(hessian(objective)(row), jacrev(objective)(row))
        assert jacrev(objective)(row).norm() < 1e-12
        found.append(row.tolist())
    return found


def local_only(method, world):
    rows = world.rows[: len(world.rows) - world.agents] + optima(method, world)
    while True:
        yield rows


def one_shot(method, world):
    found = optima(method, world)
    sizes = [1 if method.weighting == "uniform" else len(own) for own in world.examples]
    for shares in world.shares():
        rows = []
        for row in shares:
            factors = [share * size for share, size in zip(row, sizes, strict=True)]
            rows.append(average(found, [factor / sum(factors) for factor in factors]))
        yield rows


NAIVE = {
    "dgd": dgd, "dsgd": dgd, "dfedavgm": dfedavgm, "gradient-tracking": gradient_tracking,
    "extra": extra, "exact-diffusion": exact_diffusion,
    "fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold, "moon": moon, "feddyn": feddyn,
    "fedavgm": fedavgm, "fedadam": fedadam,
    "class-means": from_shares(class_means), "lda": from_shares(lda), "ridge": from_shares(ridge),
    "one-shot": one_shot, "local-only": local_only,
}  # fmt: skip

OPTIMA = ("one-shot", "local-only")
"""Methods whose naive version is the optimum that their L-BFGS approaches."""

MESSAGES = {name: lambda p, c: (p + 1) * c for name in NAIVE} | {
    "gradient-tracking": lambda p, c: 2 * (p + 1) * c,
    "scaffold": lambda p, c: 2 * (p + 1) * c,
    "lda": lambda p, c: (p + 1) * c + p * (p + 1) // 2,
    "ridge": lambda p, c: (p + 1) * c + p * (p + 1) // 2,
}
