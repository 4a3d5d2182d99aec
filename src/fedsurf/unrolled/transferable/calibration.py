"""Standardisation by communication: agents estimate the federation's mean and spread of each feature.

Every agent sums up its examples: their number, their sum, the squares about their mean and the square of
the mean itself. Over a graph these sums are averaged along with the heads in the first rounds; through a
server, the agents that it calls in them send the first three, and the server pools them. The squares within
agents and between them are kept apart, so that a large offset does not drown the spread within agents.

Nobody waits for the estimates: an agent begins with those of its own examples, and sees its examples in
better units after each of these rounds.

The estimates differ from agent to agent of a graph. That does no harm: heads travel in raw units, and
every agent looks at them in its own. What matters is that an agent's centre and units are of the same
agents, or a rare feature that it heard of from afar would be blown up; and that the centre does not stay
the agent's own, or one that holds a single class, or example, would learn nothing about the features.

Features that have one unit, such as pixels, embeddings or principal components, say by their spread how
much they matter, and standardising takes that away. So agents may be asked to leave alone what is alike:
with s the median spread, the unit of a feature of spread d is s (d/s)^γ, where γ is 0 while the
spreads of most features are within a factor of ten, and 1 where they are a hundred apart; a single
feature that is so far from the median has a γ of its own.

In two rows, some feature's spread may by chance be a hundredth of what it is, and the feature would be
blown up. Until an agent has heard of a few rows, features with a spread below s have the unit s, or one
between s and their own.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.tasks.examples import Examples

ROUNDING = 16
"""Differences of up to so many units in the last place are taken for rounding."""
ALIKE, UNLIKE = 10.0, 100.0
"""Spreads that differ by a factor below the first are of one unit; by one above the second, of several."""
FEW, ENOUGH = 2, 5
"""Small spreads of so few rows are not believed at all, those of so many are."""
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

    @staticmethod
    def of(
        spreads: Tensor, dtype: torch.dtype, *, every: bool, agents: Tensor | int = 1
    ) -> "Standards":
        """Read sums.

        Parameters
        ----------
        spreads : Tensor
            What `own_spreads` returns, averaged or summed over agents, `[agents, 1 + 3 · features]`.
        dtype : torch.dtype
            The type of the examples, by whose precision what is left of a difference may be rounding.
        every : bool
            Whether every feature is standardised, or only where they differ so much that they have
            different units.
        agents : Tensor or int
            Of how many agents each one's are the average, about, `[agents, 1]`.
        """
        centre, within, squared_means = (spreads[:, 1:] / spreads[:, :1]).chunk(3, 1)
        eps = torch.finfo(dtype).eps
        # Of a sum in higher precision only the sums that were sent are rounded, of one in this precision
        # the difference of squares is.
        noise = (ROUNDING * eps * centre).square()
        if spreads.dtype == dtype:
            noise = ROUNDING * eps * centre.square()
        deviation = _deviation(within, squared_means - centre.square(), noise)
        trust = ((agents * spreads[:, :1] - FEW) / (ENOUGH - FEW)).clamp(0, 1)
        unit = _eased(deviation, trust, every=every)
        if every:
            own = torch.where(deviation > 0, deviation, 1.0)
            unit = torch.where((trust < 1) & (deviation > 0), unit, own)
        return Standards(centre.to(dtype), unit.to(dtype))


def own_spreads(examples: Examples) -> Tensor:
    """Sum up each agent's examples, `[agents, 1 + 3 · features]`.

    Their number; their sums; the squares about their means, 0 where rounding explains them; and their
    number times the squares of the means.
    """
    real = _real(examples)[:, :, None].double()
    x = examples.x.double() * real
    count = real.sum(1)
    mean = x.sum(1) / count
    squares = ((x - mean[:, None]) * real).square().sum(1)
    noise = ROUNDING * torch.finfo(x.dtype).eps * x.abs().amax(1)
    squares = torch.where(squares > count * noise.square(), squares, 0.0)
    parts = [count, count * mean, squares, count * mean.square()]
    return torch.cat(parts, 1).to(examples.x.dtype)


def without_squared_means(spreads: Tensor) -> Tensor:
    """What agents send to a server, `[agents, 1 + 2 · features]`: it can square their means itself."""
    return spreads[:, : 1 + 2 * (spreads.shape[1] // 3)]


def pooled_spreads(before: Tensor, received: Tensor) -> Tensor:
    """Add what agents sent, `[agents, 1 + 2 · features]`, to a server's sums, float64 `[1 + 3 · features]`."""
    count, sums = received[:, :1].double(), received[:, 1:].double().chunk(2, 1)[0]
    return before + torch.cat([received.double(), sums.square() / count], 1).sum(0)


def _deviation(within: Tensor, between: Tensor, noise: Tensor) -> Tensor:
    """Return the root of the variance within agents and between them."""
    return (within + torch.where(between > noise, between, 0.0)).clamp(min=0).sqrt()


def _eased(deviation: Tensor, trust: Tensor, *, every: bool) -> Tensor:
    """Return units that leave the features as they are, up to a factor, where their deviations are alike.

    Constant features have the unit of most. `deviation` is `[agents, features]`; `trust`, `[agents, 1]`,
    says how much small ones are believed. With `every`, no deviations are taken to be alike.
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
    power = torch.ones_like(own)
    if not every:
        power = torch.maximum(_unlike(at(MOST[1]) - at(MOST[0])), _unlike(own.abs()))
    return (middle + power * torch.where(own < 0, trust * own, own)).exp()


def _unlike(apart: Tensor) -> Tensor:
    """Say from 0 to 1 whether spreads are of different units, by the logarithm of their ratio."""
    alike, unlike = math.log(ALIKE), math.log(UNLIKE)
    return ((apart - alike) / (unlike - alike)).clamp(0, 1)


def _real(examples: Examples) -> Tensor:
    """Tell which examples are no padding, bool `[agents, examples]`."""
    if examples.mask is None:
        return torch.ones_like(examples.y, dtype=torch.bool)
    return examples.mask
