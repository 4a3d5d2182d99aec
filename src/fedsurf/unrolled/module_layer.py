"""A transferable layer for any module: an unrolled optimizer that sees gradients, tensor by tensor.

The layer for softmax heads (`transferable`) knows their curvature. This one knows nothing of what it
trains but its gradients, and learns how to use them. In a round, every agent

1. looks at each tensor of its module: how large its weights W, their gradient and their last move are,
   whether that move was against the gradient, and how far what it sent was from what it received;
   with the progress of the run and the losses that it heard of, a small perceptron sets the knobs of
   that tensor in that round;
2. takes some gradient steps on all its examples, from W to V, with the momentum m and the mean square s
   of the gradient's entries: V ← V − η m − ν u m / √s − ρ V, where u is the tensor's unit, 1 / √fan-in,
   and no step moves a tensor by more than a share of its own size;
3. sends φ = V + κ (W − V_prev) and four numbers about its data and its losses;
4. mixes with memory: W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev.

S is a little lazier than the network's where that would swing (`laziness`).

With κ = 1, ν = ρ = 0 and no memory that is Exact Diffusion with several local steps. The perceptron is
shared by agents, tensors and rounds: permuting agents, or the hidden units of a layer, changes nothing
but the names.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import SharedStart, Start, State, fan_ins, own_state
from fedsurf.algorithms.checks import check_fits
from fedsurf.common.checks import check_whole
from fedsurf.models import Model, ModuleModel
from fedsurf.network import Network
from fedsurf.tasks.task import Task
from fedsurf.unrolled.config import (
    CONSTRAINT_COUNT,
    ROUNDS_PER_LAYER,
    GradientTransferConfig,
    check_rounds,
    layer_count,
)
from fedsurf.unrolled.transferable.controller import (
    NOBODY,
    SCHEDULE,
    drawn_linear,
    schedule,
    two_layers,
)
from fedsurf.unrolled.transferable.laziness import lazily
from fedsurf.unrolled.transferable.summaries import FORGETTING, loss_of_guessing

LENGTHS = {"gradient": -2.0, "normalised": -3.0, "decay": -9.0}
"""η, ν and ρ as logarithms, and where they start."""
MIXING = {"correction": 0.0, "keep": 0.0, "stay": 0.0, "memory": 0.0}
"""κ, a, b and e, before the hyperbolic tangent that bounds them, and where they start."""
KNOBS = {**LENGTHS, "momentum": 0.5, **MIXING}
"""What is set for each tensor in each round; the momentum before the sigmoid that bounds it."""

SHAPE = 5
"""Numbers that describe a tensor."""
MOTION = 5
"""Numbers that describe what happens to it."""
SHARED = 4
"""Numbers that an agent tells beside its weights."""
FACTS = 4
"""Numbers that describe the problem."""
SQUARES = 0.1
"""The weight of the newest gradient in the mean square of its entries."""
FLOOR = 0.03
"""The share of a tensor's mean square below which no entry's counts."""
REACH = 0.3
"""How far a step moves a tensor, at most, in units of its weights' root mean square."""
SMALLEST = 1e-10
"""What is added to mean squares in a tensor's units before their logarithm."""


class Tensors:
    """Where the tensors of a module are in its flat weights, their units and their description.

    Parameters
    ----------
    model : ModuleModel
        What the agents train.
    dtype : torch.dtype
        The floating type of everything.
    """

    def __init__(self, model: ModuleModel, dtype: torch.dtype) -> None:
        shapes, inputs = list(model.shapes.values()), fan_ins(model.shapes)
        self.count = len(shapes)
        self.sizes = [shape.numel() for shape in shapes]
        fan_in = torch.tensor(inputs, dtype=dtype)
        self.unit = self.spread(fan_in.rsqrt()[None])[0]
        matrices = [number for number, shape in enumerate(shapes) if len(shape) > 1]
        output = matrices[-1] if matrices else self.count - 1
        about = [
            [
                float(len(shape) < 2),
                2 * number / max(1, self.count - 1) - 1,
                float(number >= output),
                math.log(fan) - 3.5,
                math.log(shape[0] if shape else 1) - 3,
            ]
            for number, (shape, fan) in enumerate(zip(shapes, inputs, strict=True))
        ]
        self.about = torch.tensor(about, dtype=dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Average `values[agents, parameters]` over each tensor, `[agents, tensors]`."""
        return torch.stack([part.mean(1) for part in torch.split(values, self.sizes, 1)], 1)

    def spread(self, values: Tensor) -> Tensor:
        """Give every weight what its tensor has: `[agents, tensors]` to `[agents, parameters]`."""
        columns = zip(torch.split(values, 1, 1), self.sizes, strict=True)
        return torch.cat([column.expand(-1, size) for column, size in columns], 1)

    def size(self, values: Tensor) -> Tensor:
        """Return the logarithm of each tensor's root mean square in its units, `[agents, tensors]`."""
        return (self.mean((values / self.unit).square()) + SMALLEST).log() / 2

    def shortened(self, move: Tensor, weights: Tensor) -> Tensor:
        """Return the move, shortened where it exceeds `REACH` times a tensor's weights or its unit.

        Over problems of all kinds some steps are too long, and one of them must not undo a run.
        """
        with torch.no_grad():
            excess = self.size(move) - self.size(weights).clamp(min=0) - math.log(REACH)
            factor = self.spread(excess.clamp(min=0).neg().exp())
        return factor * move


@dataclass(frozen=True, kw_only=True)
class GradientTransferState(State):
    """What the optimizer carries.

    Attributes
    ----------
    previous : Tensor
        W one round ago, `[nodes, parameters]`.
    fitted : Tensor
        V of the round before, `[nodes, parameters]`.
    squares : Tensor
        The mean square of the gradient's entries, `[nodes, parameters]`.
    gap : Tensor
        The size of what was received less what was sent, by tensor, `[nodes, tensors]`.
    heard : Tensor
        What each node heard of data and losses, `[nodes, SHARED]`.
    rounds : int
        Rounds so far.
    """

    previous: Tensor
    fitted: Tensor
    squares: Tensor
    gap: Tensor
    heard: Tensor
    rounds: int


class GradientTransfer(nn.Module):
    """The learned parameters: those of a perceptron that sets the knobs of a tensor in a round.

    Parameters
    ----------
    config : GradientTransferConfig
        Its shape.
    generator : torch.Generator
        Draws the initial parameters.
    """

    def __init__(self, config: GradientTransferConfig, generator: torch.Generator) -> None:
        super().__init__()
        for name in ("width", "local_steps"):
            check_whole(getattr(config, name), name)
        if config.width < 1:
            raise ValueError(f"width: got {config.width}, but it must be at least 1")
        if config.local_steps < 2:
            raise ValueError(
                f"local_steps: got {config.local_steps}, but it must be at least 2: agents tell each "
                "other the losses before and after the first"
            )
        self.config = config
        inputs = SCHEDULE + SHARED + FACTS + SHAPE + MOTION
        self.first = drawn_linear(inputs, config.width, 0.5, generator)
        self.second = drawn_linear(config.width, len(KNOBS), 0.05, generator)
        with torch.no_grad():
            self.second.bias.copy_(torch.tensor(list(KNOBS.values())))

    @property
    def constraints(self) -> int:
        """The number of descending constraints: tenths of the depth, whatever the depth."""
        return CONSTRAINT_COUNT

    def on(
        self, model: Model, rounds: int | None = None, start: Start | None = None
    ) -> "GradientTransferAlgorithm":
        """Return the algorithm that trains `model` in so many rounds, 20 by default.

        All agents start at the same random weights, or where `start` says.
        """
        if not isinstance(model, ModuleModel):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this optimizer trains a ModuleModel"
            )
        if start is not None and not isinstance(start, Start):
            raise TypeError(f"start: got a {type(start).__name__}, but it must be a Start, or None")
        return GradientTransferAlgorithm(
            self, model, 20 if rounds is None else rounds, start or SharedStart()
        )


@dataclass(frozen=True)
class GradientTransferAlgorithm:
    """An optimizer for modules that trains a certain one in a certain number of rounds.

    Attributes
    ----------
    optimizer : GradientTransfer
        The learned parameters.
    model : ModuleModel
        What the agents train.
    rounds : int
        The communication rounds of a whole run. The optimizer knows from the start how many.
    start : Start
        Where W_0 is drawn.
    """

    optimizer: GradientTransfer
    model: ModuleModel
    rounds: int = 20
    start: Start = field(default_factory=SharedStart)

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return "SURF-G"

    @property
    def steps(self) -> int:
        """The number of layers: of two rounds each, the last of one if the rounds are odd."""
        return layer_count(self.rounds)

    @cached_property
    def _tensors(self) -> dict[torch.dtype, Tensors]:
        return {}

    def init(
        self, task: Task, network: Network, generator: torch.Generator
    ) -> GradientTransferState:
        """Draw W_0; nothing has been heard yet."""
        check_fits(task, network, self.model)
        if network.server:
            raise ValueError(
                "network: got a star with a server, but this optimizer runs over graphs only"
            )
        if network.shift == "laplacian":
            raise ValueError(
                "network: got the shift operator 'laplacian', which does not average, but this "
                "optimizer mixes averages: use 'metropolis'"
            )
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        nothing = torch.zeros_like(weights)
        return GradientTransferState(
            weights,
            previous=weights,
            fitted=weights,
            squares=nothing,
            gap=self._of(weights).size(nothing),
            heard=weights.new_zeros(network.nodes, SHARED),
            rounds=0,
        )

    def step(
        self,
        state: State,
        task: Task,
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - nothing is random
    ) -> GradientTransferState:
        """Apply the next layer."""
        own = own_state(state, GradientTransferState)
        if own.rounds >= self.rounds:
            raise ValueError(
                f"state: got one after {own.rounds} rounds, but this run has {self.rounds} rounds, "
                f"in {self.steps} steps"
            )
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            own = self._round(own, task, network)
        return replace(own, steps=own.steps + 1)

    def _of(self, weights: Tensor) -> Tensors:
        if weights.dtype not in self._tensors:
            self._tensors[weights.dtype] = Tensors(self.model, weights.dtype)
        return self._tensors[weights.dtype]

    def _round(
        self, state: GradientTransferState, task: Task, network: Network
    ) -> GradientTransferState:
        tensors, weights, model = self._of(state.weights), state.weights, self.model
        gradient = model.gradient(weights, task.train)
        knobs = self._knobs(state, gradient, task, network)
        eta, normalised, decay = (knobs[name].clamp(-14, 3).exp() for name in LENGTHS)
        beta = knobs["momentum"].sigmoid()
        fitted, momentum, squares = weights, torch.zeros_like(weights), state.squares
        losses = [self._loss(weights, task)]
        for step in range(self.optimizer.config.local_steps):
            if step:
                gradient = model.gradient(fitted, task.train)
            # Nothing is learned through what divides: its derivatives are wild where units die.
            square = gradient.detach().square()
            new = 1.0 if state.rounds == step == 0 else SQUARES
            squares = torch.lerp(squares, square, new)
            floor = FLOOR * tensors.spread(tensors.mean(squares)) + SMALLEST**2
            momentum = torch.lerp(gradient, momentum, beta)
            direction = tensors.unit * momentum / (squares + floor).sqrt()
            move = eta * momentum + normalised * direction + decay * fitted
            fitted = fitted - tensors.shortened(move, fitted)
            if step == 0:
                losses.append(self._loss(fitted, task))
        correction, keep, stay, memory = (knobs[name].tanh() for name in MIXING)
        sent = fitted
        if state.rounds:
            sent = fitted + correction * (weights - state.fitted)
        own = _tell(losses[0], losses[1], task)
        if state.rounds:
            own = torch.lerp(own, state.heard, FORGETTING)
        told = torch.cat([sent, own], 1)
        (mixed,) = lazily(network, [told], [network.mix(told)])
        received, heard = mixed[:, : model.parameters], mixed[:, model.parameters :]
        new_weights = (1 - keep - stay - memory) * received
        new_weights = new_weights + keep * sent + stay * weights + memory * state.previous
        return replace(
            state,
            weights=new_weights,
            previous=weights,
            fitted=fitted,
            squares=squares,
            gap=tensors.size((received - sent).detach()),
            heard=heard.detach(),
            rounds=state.rounds + 1,
        )

    def _knobs(
        self, state: GradientTransferState, gradient: Tensor, task: Task, network: Network
    ) -> dict[str, Tensor]:
        """Return the knobs of all weights, each `[agents, parameters]`.

        Meta-training takes no derivatives of what the perceptron sees.
        """
        tensors = self._of(state.weights)
        motion = self._motion(state, gradient.detach())
        count = task.train.counts.to(motion.dtype)
        facts = [
            (count.log() - 3.5) / 2,
            (count * network.agents / self.model.parameters).log() / 2,
            torch.full_like(count, (math.log(task.classes) - 2.3) / 1.5),
            torch.full_like(count, (math.log(network.agents) - 3.5) / 2),
        ]
        when = schedule(state.rounds, self.rounds, NOBODY, motion)
        shared = [when.expand(len(motion), -1), state.heard.clamp(-4, 4), torch.stack(facts, 1)]
        inputs = [
            torch.cat(shared, 1)[:, None].expand(-1, tensors.count, -1),
            tensors.about.expand(len(motion), -1, -1),
            motion,
        ]
        values = two_layers(self.optimizer.first, self.optimizer.second, torch.cat(inputs, 2))
        return {
            name: tensors.spread(value) for name, value in zip(KNOBS, values.unbind(2), strict=True)
        }

    @torch.no_grad()
    def _loss(self, weights: Tensor, task: Task) -> Tensor:
        return self.model.loss(weights, task.train)

    @torch.no_grad()
    def _motion(self, state: GradientTransferState, gradient: Tensor) -> Tensor:
        """Describe what happens to each tensor, `[agents, tensors, MOTION]`."""
        tensors, weights = self._of(state.weights), state.weights
        moved = weights - state.previous
        lengths = tensors.mean(gradient.square()) * tensors.mean(moved.square())
        # The cosine of the angle between the last move and the gradient: negative where it descends.
        angle = tensors.mean(gradient * moved) / (lengths + SMALLEST**2).sqrt()
        values = [tensors.size(gradient), tensors.size(weights), tensors.size(moved), 3 * angle]
        return (torch.stack([*values, state.gap], 2) / 3).clamp(-4, 4)


def _tell(before: Tensor, after: Tensor, task: Task) -> Tensor:
    """Return what agents tell of their data and their losses, in units of guessing, `[agents, SHARED]`.

    The loss of what they heard before they fitted it is close to what examples that nobody fitted
    would say.
    """
    guessing = loss_of_guessing(task.classes)
    count = task.train.counts.to(before.dtype)
    before, after = before / guessing, after / guessing
    values = [before - 0.5, after - 0.5, before.clamp(min=1e-4).log() / 2, count.log() - 3.5]
    return torch.stack(values, 1).clamp(-4, 4)
