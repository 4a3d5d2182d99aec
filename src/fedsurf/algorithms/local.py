"""Local training without communication: several gradient steps, or to the optimum.

The optimum is found by L-BFGS: D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large
scale optimization", Mathematical Programming 45, 1989.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsurf.common.streams import Streams
from fedsurf.models import Model
from fedsurf.tasks.task import Examples

Correction = Callable[[Tensor], Tensor]
"""A method's correction of the gradient, as a function of the weights `[agents, parameters]`."""

MEMORY = 10
"""Steps that L-BFGS remembers."""
MAX_HALVINGS = 20
"""How often L-BFGS halves a step before it leaves the agent where it is."""


def local_descent(
    model: Model,
    weights: Tensor,
    examples: Examples,
    streams: Streams,
    *,
    steps: int,
    step_size: float,
    batch_size: int | None = None,
    momentum: float = 0.0,
    correction: Correction | None = None,
) -> Tensor:
    """Take `steps` gradient steps at every agent from `weights[agents, parameters]`.

    Every step draws new mini-batches, or takes all examples if `batch_size` is None. The momentum is a
    heavy ball: v ← momentum · v + gradient; w ← w − step_size · v, with v = 0 at the start. The
    correction, e.g. a proximal term or a control variate, is added to every gradient.
    """
    velocity = torch.zeros_like(weights)
    for step in range(steps):
        batch = examples
        if batch_size is not None:
            batch = examples.draw(batch_size, streams.at("local step", step))
        gradient = model.gradient(weights, batch)
        if correction is not None:
            gradient = gradient + correction(weights)
        velocity = momentum * velocity + gradient
        weights = weights - step_size * velocity
    return weights


def local_optimum(
    model: Model,
    weights: Tensor,
    examples: Examples,
    strength: float,
    *,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Minimise each agent's f_i(w) + (strength/2) ‖w‖² from `weights[agents, parameters]` by L-BFGS.

    All agents step together, each with its own curvature and line search. An agent stops when no entry
    of its gradient is above `tolerance` (or 100 times the rounding of a number near 1), when no shorter
    step descends, or after `iterations` steps.
    """

    def objective(at: Tensor) -> Tensor:
        return model.loss(at, examples) + strength / 2 * at.square().sum(1)

    def slope(at: Tensor) -> Tensor:
        return model.gradient(at, examples) + strength * at

    eps = torch.finfo(weights.dtype).eps
    tolerance = max(tolerance, 100 * eps)
    value, gradient = objective(weights), slope(weights)
    curvature = _Curvature(weights)
    busy = gradient.abs().amax(1) > tolerance
    for _ in range(iterations):
        if none_left(busy):
            break
        direction = curvature.direction(gradient)
        descent = (direction * gradient).sum(1)
        step = torch.where(busy, 1.0, 0.0).to(weights.dtype)
        # Near the optimum the loss falls by less than its rounding.
        rounding = 4 * eps * value.abs()
        for _ in range(MAX_HALVINGS):
            moved = weights + step[:, None] * direction
            reached = objective(moved)
            enough = reached <= value + 1e-4 * step * descent + rounding
            if none_left(busy & ~enough):
                break
            step = torch.where(enough, step, step / 2)
        busy = busy & enough & moved.ne(weights).any(1)
        moved = torch.where(busy[:, None], moved, weights)
        after = torch.where(busy[:, None], slope(moved), gradient)
        curvature.learn(moved - weights, after - gradient)
        value = torch.where(busy, reached, value)
        weights, gradient = moved, after
        busy = busy & (gradient.abs().amax(1) > tolerance)
    return weights


def none_left(mask: Tensor) -> bool:
    """Whether a mask is False everywhere, as far as that is known without waiting for a device."""
    return mask.device.type == "cpu" and not mask.any()


class _Curvature:
    """Each agent's inverse Hessian, estimated from its last steps and changes of gradient."""

    def __init__(self, weights: Tensor) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._scale = weights.new_zeros(len(weights))

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Remember a step, except for agents whose gradient did not grow along it."""
        product = (step * change).sum(1)
        square = change.square().sum(1)
        eps = torch.finfo(step.dtype).eps
        convex = product > eps * square.sqrt() * step.norm(dim=1)
        self._pairs.append((step, change, torch.where(convex, 1 / product, 0)))
        self._pairs = self._pairs[-MEMORY:]
        self._scale = torch.where(convex, product / square, self._scale)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return −H·gradient by the two-loop recursion; the first step has a length of at most 1."""
        result = gradient
        amounts = []
        for step, change, inverse in reversed(self._pairs):
            amounts.append(inverse * (step * result).sum(1))
            result = result - amounts[-1][:, None] * change
        first = 1 / gradient.norm(dim=1).clamp(min=1)
        result = result * torch.where(self._scale > 0, self._scale, first)[:, None]
        for (step, change, inverse), amount in zip(self._pairs, reversed(amounts), strict=True):
            back = inverse * (change * result).sum(1)
            result = result + (amount - back)[:, None] * step
        return -result
