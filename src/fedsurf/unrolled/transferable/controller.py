"""Small perceptrons that steer a transferable layer: one for the round, one for every class.

They see how far the run is, what agents heard of the problem, how many of its examples an agent sees and how
many agents it hears, and, class by class, how it differs from the federation. Nothing that they see
depends on the order of agents, classes or features, or on the units of the features.
"""

import math

import torch
from torch import Tensor, nn

from fedsurf.unrolled.transferable.summaries import SIGNALS

SCHEDULE = 7
"""Numbers that say how far a run is, and how long and how wide."""
OWN = 2
"""Numbers that say which share of its examples an agent sees in a round, and which share of the agents."""
CONTEXT = 3
"""Numbers that the round's perceptron hands on to the classes' one."""
NOBODY = 20
"""The number of agents that a server hears, where there is none."""
CLASS_INPUTS = 5
"""Numbers that describe a class at an agent."""

LENGTHS = {
    "newton": -0.7,
    "gradient": -3.0,
    "damping": 0.0,
    "decay": -4.0,
    "floor": -1.5,
    "reach": 1.0,
    "again": 0.0,
}
"""The local steps' settings as logarithms, and where they start; `local_fit.Step` explains them."""

MIXING = {"correction": 0.0, "keep": 0.0, "stay": 0.0, "memory": 0.0}
"""κ, a, b and e, before they are bounded, and where they start."""

KNOBS = {**LENGTHS, **MIXING}
"""What is set in each round."""


def schedule(step: int, steps: int, heard: float, like: Tensor) -> Tensor:
    """Say how far a run is, how long it is, and how many agents a server hears in a round.

    Over a graph `heard` is `NOBODY`; returns `[SCHEDULE]`.
    """
    after, left = step / 3, (steps - 1 - step) / 3
    values = [step / max(1, steps - 1) - 0.5, math.exp(-after), math.exp(-left)]
    values += [math.exp(-3 * after), math.exp(-3 * left)]
    values += [math.log(steps / 20), math.log(heard / NOBODY)]
    return torch.tensor(values, dtype=like.dtype)


class Controller(nn.Module):
    """Turns what an agent knows into the knobs of a round and the gates of its classes.

    Parameters
    ----------
    width : int
        Hidden units of the round's perceptron.
    class_width : int
        Hidden units of the classes' perceptron.
    generator : torch.Generator
        Draws the initial parameters.
    """

    def __init__(self, width: int, class_width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.round_in = drawn_linear(SCHEDULE + SIGNALS + OWN, width, 0.5, generator)
        self.round_out = drawn_linear(width, len(KNOBS) + CONTEXT, 0.05, generator)
        self.class_in = drawn_linear(CLASS_INPUTS + CONTEXT, class_width, 0.5, generator)
        self.class_out = drawn_linear(class_width, 2, 0.05, generator)
        with torch.no_grad():
            self.round_out.bias[: len(KNOBS)] = torch.tensor(list(KNOBS.values()))
            self.class_out.bias[1] = 0.5

    def knobs(
        self, when: Tensor, signals: Tensor, examples: Tensor, agents: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the knobs of a round and the context.

        The logarithms of the lengths, `[agents, LENGTHS]`; what mixing depends on, before it is bounded,
        `[agents, MIXING]`; the context, `[agents, CONTEXT]`.

        Parameters
        ----------
        when : Tensor
            The schedule, `[SCHEDULE]`.
        signals : Tensor
            What agents heard of the problem, `[agents, SIGNALS]`.
        examples : Tensor
            The share of its examples to which an agent fits its head in this round, `[agents, 1]`.
        agents : Tensor
            The share of the agents whose messages reach it, or the server, in a round, `[agents, 1]`.
        """
        inputs = [when.expand(len(signals), -1), signals, examples.log() / 2, agents.log() / 3]
        values = two_layers(self.round_in, self.round_out, torch.cat(inputs, 1))
        sizes = [len(LENGTHS), len(MIXING), CONTEXT]
        lengths, mixing, context = torch.split(values, sizes, 1)
        return lengths, mixing, context

    def gates(self, about: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate and the offset's weight of every class, each `[agents, classes, 1]`.

        `about` describes the classes, `[agents, classes, CLASS_INPUTS]`.
        """
        context = context[:, None].expand(-1, about.shape[1], -1)
        values = two_layers(self.class_in, self.class_out, torch.cat([about, context], 2))
        return 2 * values[:, :, :1].sigmoid(), values[:, :, 1:]


def drawn_linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Return a linear map whose outputs are about as large as `gain` at inputs of size one."""
    # Not by its constructor, which draws from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) * gain / inputs**0.5)
        layer.bias.zero_()
    return layer


def two_layers(first: nn.Linear, second: nn.Linear, inputs: Tensor) -> Tensor:
    """Apply a perceptron with one hidden layer, in the floating type of its inputs."""
    dtype = inputs.dtype
    hidden = torch.tanh(inputs @ first.weight.to(dtype).T + first.bias.to(dtype))
    outputs: Tensor = hidden @ second.weight.to(dtype).T + second.bias.to(dtype)
    return outputs
