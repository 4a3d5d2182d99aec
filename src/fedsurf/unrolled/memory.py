"""The weights of mixing with memory: what the controller asks for, kept where no head can run away.

Over a graph, φ = V + κ (W − V_prev) and W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev. Through a server, W⁺
is made of the mean of what agents send, of W and of W_prev; and a running average of it, of which a is the
memory, is what the server returns.

The mean counts agents alike, however many examples they hold. Where these are very unequal, most heads
are of agents that know next to nothing; weighing them by a power of the number of their examples, here
`mass`, lets those count for more that know more.
"""

import torch
from torch import Tensor

LIMITS = {
    "correction": (0.35, 1.0),
    "keep": (0.35, 0.35),
    "stay": (0.7, 0.7),
    "memory": (0.7, 0.25),
}
"""How far κ, a, b and e over a graph may fall below 0 and rise above: else W could grow and grow."""
MOST_OLD = 0.9
"""The weight of a server's older heads beside what agents send, at most."""

POWER = 0.5
"""The power of an agent's number of examples by which its head may be weighed."""


def mass(count: Tensor) -> Tensor:
    """Return the weight of each agent's head; `count` is the number of its examples, `[agents, 1]`."""
    return count**POWER


def over_graph(mixing: Tensor) -> tuple[Tensor, Tensor]:
    """Return κ, `[agents, 1]`, and the weights of Sφ, φ, W and W_prev, `[agents, 4]`.

    `mixing` is what the controller asks for, `[agents, MIXING]`.
    """
    below, above = (mixing.new_tensor(limits) for limits in zip(*LIMITS.values(), strict=True))
    mixing = _bounded(mixing, below, above)
    memory = mixing[:, 1:]
    return mixing[:, :1], torch.cat([1 - memory.sum(1, keepdim=True), memory], 1)


def through_server(mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and e of a server, scalars: the means of what its controller asks for the called agents."""
    one = torch.ones_like(mixing)
    _, keep, stay, memory = _bounded(mixing, one, one).mean(0).unbind()
    # What agents send must count for something, whatever the features: else W walks away from it.
    shrink = MOST_OLD / (stay + memory).clamp(min=MOST_OLD)
    return keep, shrink * stay, shrink * memory


def _bounded(value: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Keep values between two limits; unlike tanh it never runs out of slope in float32."""
    return value / (1 + value.abs() / torch.where(value < 0, below, above))
