"""A transferable layer for any module: an unrolled optimizer that sees gradients, tensor by tensor.

The layer for softmax heads (`transferable`) uses their curvature. This one uses only gradients. In a round,
every agent goes from the weights W of its module to the next ones, W⁺. It

1. describes each tensor of its module: how large its weights W, their gradient and their last move are,
   whether that move was against the gradient, and how far what it received was from what it sent; with
   the progress of the run and the losses that it received, a small perceptron maps that to the controls
   of the tensor in this round: η, ν, ρ, the momentum's decay, κ, a, b and e;
2. takes some gradient steps on all its examples, from W to V, with the momentum m and the mean square s
   of the gradient's entries: V ← V − η m − ν u m / √s − ρ V, where u is the tensor's unit, 1 / √fan-in,
   and no step moves a tensor by more than a share of its own size;
3. sends φ = V + κ (W − V_prev) and four numbers about its data and its losses; V_prev is the V of the
   round before, as W_prev is its W;
4. mixes by the network's shift operator S, and with memory: W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev,
   lazily as in `transferable.graph`.

With κ = 1, ν = ρ = 0 and no memory that is Exact Diffusion with several local steps. The perceptron is
shared by agents, tensors and rounds: permuting agents, or the hidden units of a layer, changes nothing
but the names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import SharedStart, Start, State, fan_ins, own_state
from fedsurf.algorithms.checks import check_fits
from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.models import Model, ModuleModel
from fedsurf.network import Network
from fedsurf.network.wire import Sections
from fedsurf.tasks.task import Task
from fedsurf.unrolled.config import (
    CONSTRAINT_COUNT,
    DEFAULT_ROUNDS,
    ROUNDS_PER_LAYER,
    GradientTransferConfig,
    check_averaging,
    check_rounds,
    check_rounds_left,
    layer_count,
)
from fedsurf.unrolled.transferable.controller import (
    GRAPH_CALLS,
    SCHEDULE_SIZE,
    drawn_linear,
    schedule,
    two_layers,
)
from fedsurf.unrolled.transferable.graph import mix_lazily
from fedsurf.unrolled.transferable.summaries import PROGRESS_DECAY, loss_of_guessing

LENGTHS = {"gradient": -2.0, "normalised": -3.0, "decay": -9.0}
"""η, ν and ρ as logarithms, and their initial values."""
MIXING = {"correction": 0.0, "keep": 0.0, "stay": 0.0, "memory": 0.0}
"""κ, a, b and e, before the hyperbolic tangent that bounds them, and their initial values."""
CONTROLS = {**LENGTHS, "momentum": 0.5, **MIXING}
"""The controls of a tensor in a round; the momentum's decay is before the sigmoid that bounds it."""

SHAPE_SIZE, MOTION_SIZE, FACTS_SIZE = 5, 5, 4
"""Numbers that describe a tensor's shape, its motion, and the problem."""
SUMMARY_SIZE = 4
"""Numbers that an agent sends in addition to its weights."""
NEWEST_WEIGHT = 0.1
"""The weight of the newest gradient in the mean square of its entries."""
SQUARE_FLOOR = 0.03
"""The smallest mean square of an entry, as a share of its tensor's."""
MAX_MOVE = 0.3
"""The longest step of a tensor, in units of its weights' root mean square."""
TINY_SQUARE = 1e-10
"""Added to mean squares in a tensor's units before their logarithm."""


class Tensors:
    """The places of a module's tensors in its flat weights, their units and their description."""

    def __init__(self, model: ModuleModel, like: Tensor) -> None:
        shapes, inputs = list(model.shapes.values()), fan_ins(model.shapes)
        self.count = len(shapes)
        self.sizes = [shape.numel() for shape in shapes]
        fan_in = torch.tensor(inputs, dtype=like.dtype, device=like.device)
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
        self.about = torch.tensor(about, dtype=like.dtype, device=like.device)

    def mean(self, values: Tensor) -> Tensor:
        """Average `values[agents, parameters]` over each tensor, `[agents, tensors]`."""
        return torch.stack([part.mean(1) for part in torch.split(values, self.sizes, 1)], 1)

    def spread(self, values: Tensor) -> Tensor:
        """Copy each tensor's number to its weights: `[agents, tensors]` to `[agents, parameters]`."""
        columns = zip(torch.split(values, 1, 1), self.sizes, strict=True)
        return torch.cat([column.expand(-1, size) for column, size in columns], 1)

    def size(self, values: Tensor) -> Tensor:
        """Return the logarithm of each tensor's root mean square in its units, `[agents, tensors]`."""
        return (self.mean((values / self.unit).square()) + TINY_SQUARE).log() / 2

    def shortened(self, move: Tensor, weights: Tensor) -> Tensor:
        """Shorten a move that exceeds `MAX_MOVE` times a tensor's weights or its unit.

        Over problems of all kinds some steps are too long, and one of them must not undo a run.
        """
        with torch.no_grad():
            excess = self.size(move) - self.size(weights).clamp(min=0) - math.log(MAX_MOVE)
            factor = self.spread(excess.clamp(min=0).neg().exp())
        return factor * move


@dataclass(frozen=True, kw_only=True)
class GradientTransferState(State):
    """The state of the optimizer."""

    previous: Tensor
    """W one round ago, `[rows, parameters]`."""
    fitted: Tensor
    """V of the round before, `[rows, parameters]`."""
    squares: Tensor
    """The mean square of the gradient's entries, `[rows, parameters]`."""
    gap: Tensor
    """The size of what was received less what was sent, `[rows, tensors]`."""
    summaries: Tensor
    """Each node's averages of the summaries of data and losses, `[rows, SUMMARY_SIZE]`."""
    rounds: int


class GradientTransfer(nn.Module):
    """The learned parameters: those of a perceptron that sets the controls of a tensor in a round.

    Parameters
    ----------
    config : GradientTransferConfig
        Its shape.
    generator : torch.Generator
        Draws the initial parameters.

    Examples
    --------
    >>> from torch import nn
    >>> from fedsurf import ModuleModel, generator
    >>> from fedsurf.unrolled.config import GradientTransferConfig
    >>> optimizer = GradientTransfer(GradientTransferConfig(), generator(0))
    >>> optimizer.on(ModuleModel(nn.Linear(64, 10)), rounds=20).steps
    10
    """

    constraints = CONSTRAINT_COUNT

    def __init__(self, config: GradientTransferConfig, generator: torch.Generator) -> None:
        super().__init__()
        config.check()
        self.config = config
        inputs = SCHEDULE_SIZE + SUMMARY_SIZE + FACTS_SIZE + SHAPE_SIZE + MOTION_SIZE
        self.first = drawn_linear(inputs, config.width, 0.5, generator)
        self.second = drawn_linear(config.width, len(CONTROLS), 0.05, generator)
        with torch.no_grad():
            self.second.bias.copy_(torch.tensor(list(CONTROLS.values()), device=CPU))

    def on(
        self, model: Model, rounds: int | None = None, start: Start | None = None
    ) -> GradientTransferAlgorithm:
        """Return the algorithm that trains `model`; by default all agents start at the same weights."""
        if not isinstance(model, ModuleModel):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this optimizer trains a ModuleModel"
            )
        rounds = DEFAULT_ROUNDS if rounds is None else rounds
        return GradientTransferAlgorithm(self, model, rounds, start or SharedStart())


@dataclass(frozen=True)
class GradientTransferAlgorithm:
    """An optimizer for modules that trains one model in a fixed number of rounds.

    The controls depend on the `rounds` of a whole run; `start` draws W_0.
    """

    name = "SURF-G"

    optimizer: GradientTransfer
    model: ModuleModel
    rounds: int = DEFAULT_ROUNDS
    start: Start = field(default_factory=SharedStart)

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    @property
    def steps(self) -> int:
        """The number of layers, of two rounds each; the last one has one if the rounds are odd."""
        return layer_count(self.rounds)

    def init(self, task: Task, network: Network, streams: Streams) -> GradientTransferState:
        """Draw W_0."""
        check_fits(task, network, self.model)
        if network.server:
            raise ValueError(
                "network: got a star with a server, but this optimizer runs over graphs only"
            )
        check_averaging(network.facts.shift)
        weights = self.start.draw(self.model, streams, task.train.x)
        zero = torch.zeros_like(weights)
        return GradientTransferState(
            weights,
            previous=weights,
            fitted=weights,
            squares=zero,
            gap=Tensors(self.model, weights).size(zero),
            summaries=weights.new_zeros(len(weights), SUMMARY_SIZE),
            rounds=0,
        )

    def step(
        self,
        state: State,
        task: Task,
        network: Network,
        streams: Streams,  # noqa: ARG002 - nothing is random
    ) -> GradientTransferState:
        """Apply the next layer."""
        own = own_state(state, GradientTransferState)
        check_rounds_left(own.rounds, self.rounds)
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            own = self._round(own, task, network)
        return replace(own, steps=own.steps + 1)

    def _round(
        self, state: GradientTransferState, task: Task, network: Network
    ) -> GradientTransferState:
        weights, model = state.weights, self.model
        tensors = Tensors(model, weights)
        gradient = model.gradient(weights, task.train)
        controls = self._controls(state, tensors, gradient, task, network)
        eta, normalised, decay = (controls[name].clamp(-14, 3).exp() for name in LENGTHS)
        beta = controls["momentum"].sigmoid()
        fitted, momentum, squares = weights, torch.zeros_like(weights), state.squares
        losses = [model.loss(weights.detach(), task.train)]
        for step in range(self.optimizer.config.local_steps):
            if step:
                gradient = model.gradient(fitted, task.train)
            # No derivatives through the denominator: they explode where hidden units die.
            square = gradient.detach().square()
            newest = 1.0 if state.rounds == step == 0 else NEWEST_WEIGHT
            squares = torch.lerp(squares, square, newest)
            floor = SQUARE_FLOOR * tensors.spread(tensors.mean(squares)) + TINY_SQUARE**2
            momentum = torch.lerp(gradient, momentum, beta)
            direction = tensors.unit * momentum / (squares + floor).sqrt()
            move = eta * momentum + normalised * direction + decay * fitted
            fitted = fitted - tensors.shortened(move, fitted)
            if step == 0:
                losses.append(model.loss(fitted.detach(), task.train))
        correction, keep, stay, memory = (controls[name].tanh() for name in MIXING)
        sent = fitted
        if state.rounds:
            sent = fitted + correction * (weights - state.fitted)
        own = _summarise(losses[0], losses[1], task)
        if state.rounds:
            own = torch.lerp(own, state.summaries, PROGRESS_DECAY)
        message = torch.cat([sent, own], 1)
        layout = [Sections(1, sent.shape[1]), Sections(own.shape[1], 1)]
        mixed = mix_lazily(network, [message], network.mix_parts(message, layout=layout))[0]
        received, summaries = mixed[:, : model.parameters], mixed[:, model.parameters :]
        new_weights = (1 - keep - stay - memory) * received
        new_weights = new_weights + keep * sent + stay * weights + memory * state.previous
        return replace(
            state,
            weights=new_weights,
            previous=weights,
            fitted=fitted,
            squares=squares,
            gap=tensors.size((received - sent).detach()),
            summaries=summaries.detach(),
            rounds=state.rounds + 1,
        )

    def _controls(
        self,
        state: GradientTransferState,
        tensors: Tensors,
        gradient: Tensor,
        task: Task,
        network: Network,
    ) -> dict[str, Tensor]:
        """Return the controls of all weights, each `[agents, parameters]`; the inputs are detached."""
        motion = _motion(state, tensors, gradient)
        count = task.train.counts.to(motion.dtype)
        facts = [
            (count.log() - 3.5) / 2,
            (count * network.facts.agents / self.model.parameters).log() / 2,
            torch.full_like(count, (math.log(task.classes) - 2.3) / 1.5),
            torch.full_like(count, (math.log(network.facts.agents) - 3.5) / 2),
        ]
        when = schedule(state.rounds, self.rounds, GRAPH_CALLS, motion)
        shared = [when.expand(len(motion), -1), state.summaries.clamp(-4, 4), torch.stack(facts, 1)]
        inputs = [
            torch.cat(shared, 1)[:, None].expand(-1, tensors.count, -1),
            tensors.about.expand(len(motion), -1, -1),
            motion,
        ]
        values = two_layers(self.optimizer.first, self.optimizer.second, torch.cat(inputs, 2))
        named = zip(CONTROLS, values.unbind(2), strict=True)
        return {name: tensors.spread(value) for name, value in named}


@torch.no_grad()
def _motion(state: GradientTransferState, tensors: Tensors, gradient: Tensor) -> Tensor:
    """Describe the motion of each tensor, `[agents, tensors, MOTION_SIZE]`."""
    weights, moved = state.weights, state.weights - state.previous
    lengths = tensors.mean(gradient.square()) * tensors.mean(moved.square())
    # The cosine of the angle between the last move and the gradient: negative for a descent.
    angle = tensors.mean(gradient * moved) / (lengths + TINY_SQUARE**2).sqrt()
    values = [tensors.size(gradient), tensors.size(weights), tensors.size(moved), 3 * angle]
    return (torch.stack([*values, state.gap], 2) / 3).clamp(-4, 4)


def _summarise(before: Tensor, after: Tensor, task: Task) -> Tensor:
    """Summarise data and losses, in units of guessing, `[agents, SUMMARY_SIZE]`.

    The loss of the received weights before they are fitted is close to that on test examples.
    """
    guessing = loss_of_guessing(task.classes)
    count = task.train.counts.to(before.dtype)
    before, after = before / guessing, after / guessing
    values = [before - 0.5, after - 0.5, before.clamp(min=1e-4).log() / 2, count.log() - 3.5]
    return torch.stack(values, 1).clamp(-4, 4)
