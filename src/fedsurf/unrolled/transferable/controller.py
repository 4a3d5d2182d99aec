"""Small perceptrons that set the controls of a transferable layer: of a round, and of every class.

They see the progress of the run, the agent's estimate of the problem, the shares of its examples and of
the agents that it uses, and, class by class, how it differs from the federation. None of this depends on
the order of agents, classes or features, or on the units of the features.
"""

import math

import torch
from torch import Tensor, nn

from fedsurf.common.devices import CPU
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE

SCHEDULE_SIZE = 7
"""Numbers that describe the progress of a run, its length and its network."""
SHARES_SIZE = 2
"""The shares of its examples that an agent uses in a round, and of the agents that it receives from."""
CONTEXT_SIZE = 3
"""Outputs of the round's perceptron that are inputs of the classes' perceptron."""
GRAPH_CALLS = 20
"""The number of called agents that a schedule has over a graph, where there is no server."""
CLASS_SIZE = 5
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
"""Controls of local steps (`newton.Step`) as logarithms, and their initial values."""
MIXING = {"correction": 0.0, "keep": 0.0, "stay": 0.0, "memory": 0.0}
"""κ, a, b and e, before they are bounded, and their initial values."""
CONTROLS = {**LENGTHS, **MIXING}
"""All controls of a round."""

MIN_EASED_SHARE = 0.02
"""The share of the damping that is left for the rarest classes."""
DISTRUST_RATE = 4.0
"""How fast easing fades with the divergence of an agent's labels; 2 to 6 did about as well."""


def schedule(step: int, steps: int, called: float, like: Tensor) -> Tensor:
    """Describe the progress and the length of a run, `[SCHEDULE_SIZE]`.

    `called` is the number of agents that a server calls in a round; over a graph `GRAPH_CALLS`.
    """
    after, left = step / 3, (steps - 1 - step) / 3
    values = [step / max(1, steps - 1) - 0.5, math.exp(-after), math.exp(-left)]
    values += [math.exp(-3 * after), math.exp(-3 * left)]
    values += [math.log(steps / 20), math.log(called / GRAPH_CALLS)]
    return torch.tensor(values, dtype=like.dtype, device=like.device)


class Controller(nn.Module):
    """Maps an agent's knowledge to the controls of a round and the gates of its classes.

    The perceptrons of the round and of the classes have `width` and `class_width` hidden units.
    """

    def __init__(self, width: int, class_width: int, generator: torch.Generator) -> None:
        super().__init__()
        inputs = SCHEDULE_SIZE + DESCRIPTION_SIZE + SHARES_SIZE
        self.round_in = drawn_linear(inputs, width, 0.5, generator)
        self.round_out = drawn_linear(width, len(CONTROLS) + CONTEXT_SIZE, 0.05, generator)
        self.class_in = drawn_linear(CLASS_SIZE + CONTEXT_SIZE, class_width, 0.5, generator)
        self.class_out = drawn_linear(class_width, 2, 0.05, generator)
        with torch.no_grad():
            self.round_out.bias[: len(CONTROLS)] = torch.tensor(list(CONTROLS.values()), device=CPU)
            self.class_out.bias[1] = 0.5

    def controls(
        self, when: Tensor, description: Tensor, examples: Tensor, agents: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the controls of a round and the context of its gates.

        The logarithms of the lengths, `[agents, LENGTHS]`; the controls of mixing, before they are
        bounded, `[agents, MIXING]`; the context, `[agents, CONTEXT_SIZE]`. Both shares are `[agents, 1]`:
        of its `examples` that an agent uses, and of the `agents` that it, or the server, receives from.
        """
        shares = [examples.log() / 2, agents.log() / 3]
        inputs = [when.expand(len(description), -1), description, *shares]
        values = two_layers(self.round_in, self.round_out, torch.cat(inputs, 1))
        sizes = [len(LENGTHS), len(MIXING), CONTEXT_SIZE]
        lengths, mixing, context = torch.split(values, sizes, 1)
        return lengths, mixing, context

    def gates(self, about: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate and the offset's weight of every class, each `[agents, classes, 1]`.

        `about` describes the classes, `[agents, classes, CLASS_SIZE]`.
        """
        context = context[:, None].expand(-1, about.shape[1], -1)
        values = two_layers(self.class_in, self.class_out, torch.cat([about, context], 2))
        return 2 * values[:, :, :1].sigmoid(), values[:, :, 1:]


def eased_share(share: Tensor, divergence: Tensor) -> Tensor:
    """Return the factor of each class's damping that does not hold rare classes back, `[agents, classes]`.

    The softmax's curvature for a class with the share c of the labels is at most about c (1 − c). The
    damping was learned where classes are of about one size, and would hold rare ones back. So it is
    multiplied by

        min(1, (c (1 − c) / u)²)^t,    u = (1 − 1/C) / C, the same for classes of one size.

    c is an estimate: a class that only distant agents hold seems rare until their messages arrive. So an
    agent whose own labels differ from c trusts it less: t = exp(−4 KL). With t = 1, digits on a ring of
    agents that hold one class each lose 7 to 20 points.

    `share` is c, as each agent estimates it, `[agents, classes]`; `divergence[agents]` is the KL of the
    agent's own label distribution from c.
    """
    classes = share.shape[1]
    if classes == 1:
        return share.new_ones(share.shape)
    even = (1 - 1 / classes) / classes
    less = (share * (1 - share) / even).square().clamp(MIN_EASED_SHARE, 1.0)
    trust = (-DISTRUST_RATE * divergence).exp().clamp(max=1.0)
    return less ** trust[:, None]


def drawn_linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Return a linear map whose outputs are about as large as `gain` for inputs of size one."""
    # The constructor would draw from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(
            torch.randn(outputs, inputs, generator=generator, device=CPU) * gain / inputs**0.5
        )
        layer.bias.zero_()
    return layer


def two_layers(first: nn.Linear, second: nn.Linear, inputs: Tensor) -> Tensor:
    """Apply a perceptron with one hidden layer, in the floating type of its inputs."""
    hidden = torch.tanh(inputs @ first.weight.to(inputs).T + first.bias.to(inputs))
    outputs: Tensor = hidden @ second.weight.to(inputs).T + second.bias.to(inputs)
    return outputs
