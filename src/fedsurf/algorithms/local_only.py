"""Local-only training: every agent alone, on its own examples, to optimality. The floor.

    w_i = argmin_w f_i(w) + (strength/2) ‖w‖²,

by L-BFGS (D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization",
Mathematical Programming 45, 1989), all agents at once, each with its own curvature and line search.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.common.checks import check_number, check_whole
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

MEMORY = 10
"""How many steps L-BFGS remembers."""
HALVINGS = 20
"""How often a step is halved at most before an agent is left where it is."""


@dataclass(frozen=True)
class LocalOnly:
    """Train alone to optimality in the first step, then rest; nothing is ever sent.

    Attributes
    ----------
    model : Model
        What the agents train.
    strength : float
        The penalty beside an agent's mean loss, positive; on all weights, since the bias of a class
        that an agent has no examples of would fall for ever.
    iterations : int
        Steps of L-BFGS at most.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    strength: float = 1e-2
    iterations: int = 200
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_local_training(self.strength, self.iterations)

    @property
    def name(self) -> str:
        """The method's name."""
        return "local only"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Draw W_0."""
        check_fits(task, network, self.model)
        return State(self.start.draw(network, self.model, generator, task.train.x.dtype))

    def step(
        self,
        state: State,
        task: Task,
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - nothing is random here
    ) -> State:
        """Train to optimality if that has not been done; a server's row stays as it is."""
        if state.steps > 0:
            return State(state.weights, state.steps + 1)
        trained = local_optimum(
            self.model,
            network.agent_rows(state.weights),
            task.train,
            self.strength,
            iterations=self.iterations,
        )
        return State(torch.cat([state.weights[: int(network.server)], trained]), 1)


def check_local_training(strength: float, iterations: int) -> None:
    """Raise unless the penalty is positive and there is at least one iteration."""
    check_number(strength, "strength")
    check_whole(iterations, "iterations")
    if not 0 < strength < math.inf:
        raise ValueError(f"strength: got {strength}, but it must be a finite number above 0")
    if iterations < 1:
        raise ValueError(f"iterations: got {iterations}, but it must be at least 1")


def local_optimum(
    model: Model,
    weights: Tensor,
    examples: Examples,
    strength: float,
    *,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Minimise each agent's f_i(w) + (strength/2) ‖w‖² by L-BFGS, all agents at once.

    Parameters
    ----------
    model : Model
        What is trained.
    weights : Tensor
        Where the agents start, `[agents, parameters]`.
    examples : Examples
        What they learn from.
    strength : float
        The penalty.
    iterations : int
        Steps at most.
    tolerance : float
        An agent is done when no entry of its gradient is larger (in float32, than 100 times the
        rounding of a number near 1), or when no shorter step descends.
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
        if not busy.any():
            break
        direction = curvature.direction(gradient)
        descent = (direction * gradient).sum(1)
        step = torch.where(busy, 1.0, 0.0).to(weights.dtype)
        # Near the optimum the loss falls by less than it is rounded.
        rounding = 4 * eps * value.abs()
        for _ in range(HALVINGS):
            moved = weights + step[:, None] * direction
            reached = objective(moved)
            enough = reached <= value + 1e-4 * step * descent + rounding
            if (enough | ~busy).all():
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


class _Curvature:
    """What L-BFGS knows of each agent's inverse Hessian: its last steps and changes of gradient."""

    def __init__(self, weights: Tensor) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._scale = weights.new_zeros(len(weights))

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Remember a step; of agents along whose step the gradient did not grow, nothing."""
        product = (step * change).sum(1)
        square = change.square().sum(1)
        eps = torch.finfo(step.dtype).eps
        convex = product > eps * square.sqrt() * step.norm(dim=1)
        self._pairs.append((step, change, torch.where(convex, 1 / product, 0)))
        self._pairs = self._pairs[-MEMORY:]
        self._scale = torch.where(convex, product / square, self._scale)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return −H·gradient by the two-loop recursion, and a step of length ≤ 1 before any is known."""
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
