"""Standardisation by communication: agents estimate the federation's mean and spread of each feature.

Every agent sums up its examples: their number, their mean, the squares about it and the square of the
mean itself. Over a graph these sums are averaged in two rounds; through a server, the agents that it
calls in two rounds send the first three, and the server pools them. The squares within agents and
between them are kept apart, so that a large offset does not drown the spread within agents.

The estimates differ from agent to agent of a graph. That does no harm: heads travel in raw units, and
every agent looks at them in its own. What matters is that an agent's centre and units are of the same
agents, or a rare feature that it heard of from afar would be blown up; and that the centre is not the
agent's own, or one that holds a single class, or example, would learn nothing about the features.

Features that have one unit, such as pixels, embeddings or principal components, say by their spread how
much they matter, and standardising takes that away. So agents may be asked to leave alone what is alike:
with s the median spread, the unit of a feature of spread d is s (d/s)^γ, where γ is 0 while the
spreads of most features are within a factor of ten, and 1 where they are a hundred apart; a single
feature that is so far from the median has a γ of its own.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.local_view import LocalView

CALIBRATION_ROUNDS = 2
"""How many rounds standardisation takes."""
ROUNDING = 16
"""Differences of up to so many units in the last place are taken for rounding."""
ALIKE, UNLIKE = 10.0, 100.0
"""Spreads that differ by a factor below the first are of one unit; by one above the second, of several."""
MOST = (0.1, 0.9)
"""The spreads of most features are those between these shares of all, in their order."""


@dataclass(frozen=True)
class Standards:
    """What agents believe of the features.

    Attributes
    ----------
    centre : Tensor
        The mean, `[agents, features]`.
    unit : Tensor
        The unit, `[agents, features]`: the standard deviation, and 1 where a feature is constant; where
        what is alike is left alone, see `_eased`.
    """

    centre: Tensor
    unit: Tensor

    @property
    def of_one(self) -> Tensor:
        """The first agent's numbers as one message, `[2 · features]`."""
        return torch.cat([self.centre[0], self.unit[0]])

    def view(self, examples: Examples, classes: int) -> LocalView:
        """Look at examples from each agent's centre, in its units."""
        return LocalView.of(examples, classes, self.centre, self.unit)


def standards(examples: Examples, network: Network, *, every: bool = True) -> Standards:
    """Estimate the mean and the spread of each feature in two rounds over the network.

    Parameters
    ----------
    examples : Examples
        The agents' examples.
    network : Network
        Who hears of whose.
    every : bool
        Whether every feature is standardised, or only where they differ so much that they have
        different units.
    """
    heard = (_through_server if network.server else _over_graph)(_Own.of(examples), network)
    centre, deviation = heard
    unit = torch.where(deviation > 0, deviation, 1.0) if every else _eased(deviation)
    return Standards(*(values.expand(network.agents, -1) for values in (centre, unit)))


@dataclass(frozen=True)
class _Own:
    """What each agent knows of its own examples, in float64; it sends in the type of the task.

    Attributes
    ----------
    count : Tensor
        The number of examples, `[agents, 1]`.
    mean, squares : Tensor
        The mean of each feature, and the sum of the squares about it, `[agents, features]`.
    type : torch.dtype
        The type of what is sent.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    type: torch.dtype

    @staticmethod
    def of(examples: Examples) -> "_Own":
        """Sum up examples; squares that rounding explains are 0."""
        real = _real(examples)[:, :, None].double()
        x = examples.x.double() * real
        count = real.sum(1)
        mean = x.sum(1) / count
        squares = ((x - mean[:, None]) * real).square().sum(1)
        noise = ROUNDING * torch.finfo(x.dtype).eps * x.abs().amax(1)
        squares = torch.where(squares > count * noise.square(), squares, 0.0)
        return _Own(count, mean, squares, examples.x.dtype)

    def of_agents(self, agents: Tensor) -> "_Own":
        """Return what some agents know, numbered by `agents`."""
        return _Own(self.count[agents], self.mean[agents], self.squares[agents], self.type)

    def sums(self) -> Tensor:
        """The number of examples, sums, and squares about the mean, `[agents, 1 + 2 · features]`."""
        parts = [self.count, self.count * self.mean, self.squares]
        return torch.cat(parts, 1).to(self.type)


def _over_graph(own: _Own, network: Network) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation of each feature, as each agent hears of them."""
    squared_means = (own.count * own.mean.square()).to(own.type)
    # Of another shape than what follows, lest a stale agent's be taken for it.
    message = torch.cat([own.sums(), squared_means], 1)[:, None]
    for _ in range(CALIBRATION_ROUNDS):
        message = network.mix(message)
    count, rest = message[:, 0, :1], message[:, 0, 1:]
    centre, within, squared_means = (rest / count).chunk(3, 1)
    # A difference of squares: what is left of it may be rounding.
    noise = ROUNDING * torch.finfo(own.type).eps * centre.square()
    return centre, _deviation(within, squared_means - centre.square(), noise)


def _through_server(own: _Own, network: Network) -> tuple[Tensor, Tensor]:
    """Return them as the server does, `[1, features]`."""
    messages = []
    for _ in range(CALIBRATION_ROUNDS):
        called = network.call()
        messages.append(network.upload(own.of_agents(called).sums(), called))
    heard = torch.cat(messages)
    counts, (sums, squares) = heard[:, :1], heard[:, 1:].chunk(2, 1)
    count = counts.sum(0)
    centre = sums.sum(0) / count
    between = (counts * (sums / counts - centre).square()).sum(0) / count
    noise = (ROUNDING * torch.finfo(own.type).eps * centre).square()
    return centre[None], _deviation(squares.sum(0) / count, between, noise)[None]


def _deviation(within: Tensor, between: Tensor, noise: Tensor) -> Tensor:
    """Return the root of the variance within agents and between them."""
    return (within + torch.where(between > noise, between, 0.0)).clamp(min=0).sqrt()


def _eased(deviation: Tensor) -> Tensor:
    """Return units that leave the features as they are, up to a factor, where their deviations are alike.

    Constant features have the unit of most. `deviation` is `[agents, features]`.
    """
    varies = deviation > 0
    logs = torch.where(varies, deviation, 1.0).log()
    ordered = torch.where(varies, logs, math.inf).sort(1).values
    last = (varies.sum(1, keepdim=True) - 1).clamp(min=0).double()

    def at(share: float) -> Tensor:
        found = ordered.gather(1, (share * last).round().long())
        return torch.where(found.isfinite(), found, 0.0)  # nothing varies

    middle = at(0.5)
    own = torch.where(varies, logs - middle, 0.0)
    power = torch.maximum(_unlike(at(MOST[1]) - at(MOST[0])), _unlike(own.abs()))
    return (middle + power * own).exp()


def _unlike(apart: Tensor) -> Tensor:
    """Say from 0 to 1 whether spreads are of different units, by the logarithm of their ratio."""
    alike, unlike = math.log(ALIKE), math.log(UNLIKE)
    return ((apart - alike) / (unlike - alike)).clamp(0, 1)


def _real(examples: Examples) -> Tensor:
    """Tell which examples are no padding, bool `[agents, examples]`."""
    if examples.mask is None:
        return torch.ones_like(examples.y, dtype=torch.bool)
    return examples.mask
