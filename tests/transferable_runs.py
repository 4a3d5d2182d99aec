"""Runs of the transferable layer on small problems, and the same runs as plain loops."""

import naive
import random_data
import torch
import transferable_loop
from running import advance, begin, calls, lopsided_graph

from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable.summaries import (
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
    sketch_directions,
)

AGENTS, CLASSES = 6, 3
HEARING = [1 + len(lopsided_graph()[agent]) for agent in range(AGENTS)]


def as_drawn(seed=0):
    """Return an optimizer with its initial parameters, in float32."""
    return Transferable(TransferableConfig(), random_data.seeded(seed)).requires_grad_(False)


def optimizer(seed=1, size=0.4, dtype=torch.float64, config=None):
    """Draw parameters that are larger than the initial ones, so that every control matters."""
    made = Transferable(config or TransferableConfig(), random_data.seeded(seed)).double()
    random = random_data.seeded(seed + 1)
    with torch.no_grad():
        for value in made.parameters():
            noise = torch.randn(value.shape, generator=random, dtype=torch.float64)
            value += size * noise / (value.shape[1] ** 0.5 if value.dim() == 2 else 1)
    return made.to(dtype).requires_grad_(False)


def network(*, star=False, seed=4):
    if star:
        return StarNetwork(AGENTS, 3, random_data.seeded(seed))
    return Network(lopsided_graph(), "metropolis")


def make(task, rounds=5, learned=None, **options):
    learned = optimizer() if learned is None else learned
    return learned.on(SoftmaxHead(task.features, task.classes), rounds, **options)


def states(algorithm, task, over):
    """Return the state before the first layer and after every layer."""
    found = [begin(algorithm, task, over)]
    for _ in range(algorithm.steps):
        found.append(advance(algorithm, found[-1], task, over))
    return found


def heads(task, over, rounds=5, learned=None, **options):
    """Return the agents' heads after a whole run, `[agents, parameters]`."""
    return states(make(task, rounds, learned, **options), task, over)[-1].agent_weights(over)


def loop_heads(task, learned, rounds, *, star=False, batches=None, **options):
    """Return what `heads` returns, by plain loops."""
    width = SERVER_SKETCH_WIDTH if star else SKETCH_WIDTH
    omega = sketch_directions(task.features, torch.float64, width)
    data = random_data.real_examples(task.train)
    federation = transferable_loop.Federation(data, task.classes, omega, **options)
    if star:
        called = calls(AGENTS, 3, 4, rounds)
        rows = [federation.through_server(learned.server, rounds, called, batches)] * AGENTS
    else:

        def mix(values):
            return naive.mix(lopsided_graph(), values, "metropolis")

        rows = federation.over_graph(learned.graph, rounds, mix, HEARING, batches)
    return torch.tensor(rows, dtype=torch.float64)


def assert_same(found, expected):
    """Compare heads up to rounding."""
    size = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8 * size)


def changed(task, change):
    """Return the task with `change(x, y, mask)` applied to its training and its test examples."""
    parts = [Examples(*change(part.x, part.y, part.mask)) for part in (task.train, task.test)]
    return Task(*parts, task.classes)
