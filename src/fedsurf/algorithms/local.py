"""Local training: several gradient steps of every agent on its own examples, without talking."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsurf.models import Model
from fedsurf.tasks.examples import Examples

Correction = Callable[[Tensor], Tensor]
"""What a method adds to the gradient, as a function of the weights `[agents, parameters]`."""


def local_descent(
    model: Model,
    weights: Tensor,
    examples: Examples,
    generator: torch.Generator,
    *,
    steps: int,
    step_size: float,
    batch_size: int | None = None,
    momentum: float = 0.0,
    correction: Correction | None = None,
) -> Tensor:
    """Take `steps` gradient steps at every agent, each with a mini-batch of its own.

    Parameters
    ----------
    model : Model
        What the agents train.
    weights : Tensor
        Where they start, `[agents, parameters]`.
    examples : Examples
        What they learn from.
    generator : torch.Generator
        Draws the mini-batches.
    steps, step_size, batch_size
        How many steps, how long, and on how many examples each (all where None).
    momentum : float
        Heavy ball: v ← momentum · v + gradient; w ← w − step_size · v, with v = 0 at the start.
    correction : callable or None
        Is added to every gradient (a proximal term, a control variate).
    """
    velocity = torch.zeros_like(weights)
    for _ in range(steps):
        batch = examples if batch_size is None else examples.draw(batch_size, generator)
        gradient = model.gradient(weights, batch)
        if correction is not None:
            gradient = gradient + correction(weights)
        velocity = momentum * velocity + gradient
        weights = weights - step_size * velocity
    return weights
