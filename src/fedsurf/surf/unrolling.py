"""Unrolling an optimizer on a task while watching whether it descends."""

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Algorithm, State
from fedsurf.common.randomness import generator as seeded
from fedsurf.network import Network
from fedsurf.surf.config import DescentConfig
from fedsurf.surf.constraints import gradient_norm, gradient_norms, taken_at_once
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Task


def unroll(
    optimizer: Algorithm,
    layers: int,
    task: Task,
    network: Network,
    descent: DescentConfig,
    *,
    gradient_batch_size: int,
    weighting: AgentWeighting,
    seed: int,
    path: tuple[str | int, ...],
) -> tuple[Tensor, Tensor]:
    """Run `layers` steps of an optimizer on a task.

    Returns the agents' last weights, `[agents, parameters]`, and ‖∇f(W_0)‖ … ‖∇f(W_L)‖,
    `[layers + 1]`. The gradients' mini-batches are drawn independently of those that the layers see,
    so that each is an unbiased estimate of the gradient where it is taken.
    """
    run, gradients, talk = (
        seeded(seed, what, *path) for what in ("layers", "gradients", "network")
    )
    model, share = optimizer.model, task.agent_weights(weighting)
    together = descent.gradient_examples == "all" and taken_at_once(
        model, task.train, share, descent.gradient_of
    )
    found: list[Tensor] = []  # the norms, or the average weights where they are taken

    def look(state: State) -> None:
        rows, examples = network.agent_rows(state.weights), task.train
        if together:
            # At once: backward then comes to them while what they are averages of is in the cache.
            found.append(share @ rows)
            return
        if descent.gradient_examples == "mini-batch":
            examples = examples.draw(gradient_batch_size, gradients, "gradient_batch_size")
        found.append(gradient_norm(model, rows, examples, share, descent.gradient_of, descent.norm))

    network.reset(talk)
    state = optimizer.init(task, network, run)
    look(state)
    for _ in range(layers):
        state = optimizer.step(state, task, network, run)
        look(state)
    norms = gradient_norms(model, found, task.train) if together else torch.stack(found)
    return network.agent_rows(state.weights), norms
