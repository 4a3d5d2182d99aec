"""Standardisation by communication: agents estimate the federation's mean and spread of each feature.

Two rounds. Over a graph, agents first average their numbers of examples and their sums of features,
so that each knows the mean around itself, then the squares of their examples' distances from that
mean. Through a server, the agents that it calls send their means and their squares about these, and
the server pools them. All distances are from a nearby point, so that large offsets do not drown
small units.

The estimates differ from agent to agent of a graph. That does no harm: heads travel in raw units, and
every agent looks at them in its own. A common centre matters more than it seems: an agent that holds
one class, or one example, learns nothing about the features where it is centred by its own mean.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.local_fit import LocalView

CALIBRATION_ROUNDS = 2
"""How many rounds standardisation takes."""
ROUNDING = 16
"""Differences of up to so many units in the last place are taken for rounding."""


@dataclass(frozen=True)
class Standards:
    """What agents believe of the features.

    Attributes
    ----------
    centre : Tensor
        The mean, `[agents, features]`.
    unit : Tensor
        The standard deviation, `[agents, features]`; 1 where a feature is constant.
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


def standards(examples: Examples, network: Network) -> Standards:
    """Estimate the mean and the spread of each feature in two rounds over the network."""
    return (_through_server if network.server else _over_graph)(_Own.of(examples), network)


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
        """The number of examples and the sums of features, `[agents, 1 + features]`."""
        return torch.cat([self.count, self.count * self.mean], 1).to(self.type)

    def spread(self, centre: Tensor) -> Tensor:
        """The number of examples, and their squares about a centre, `[agents, 1 + features]`."""
        apart = self.mean - centre
        noise = ROUNDING * torch.finfo(self.type).eps * self.mean.abs()
        between = torch.where(apart.abs() > noise, apart, 0.0).square()
        return torch.cat([self.count, self.squares + self.count * between], 1).to(self.type)


def _over_graph(own: _Own, network: Network) -> Standards:
    centre = _mean(network.mix(own.sums()))
    # The centre is not averaged again: a feature that is constant around an agent must be 0 there,
    # or a tiny spread that it heard of from afar would blow it up.
    return Standards(centre, _unit(network.mix(own.spread(centre))))


def _through_server(own: _Own, network: Network) -> Standards:
    messages = []
    for _ in range(CALIBRATION_ROUNDS):
        called = network.call()
        some = own.of_agents(called)
        sent = torch.cat([some.sums(), some.squares.to(own.type)], 1)
        messages.append(network.upload(sent, called))
    sums, squares = torch.cat(messages).double().tensor_split([1 + own.mean.shape[1]], 1)
    heard = _Own(sums[:, :1], _mean(sums), squares, own.type)
    centre = _mean(sums.sum(0, keepdim=True))
    unit = _unit(heard.spread(centre).sum(0, keepdim=True))
    every = network.agents, -1
    return Standards(centre.to(own.type).expand(every), unit.expand(every))


def _mean(sums: Tensor) -> Tensor:
    return sums[:, 1:] / sums[:, :1]


def _unit(spread: Tensor) -> Tensor:
    variance = _mean(spread)
    return torch.where(variance > 0, variance, 1.0).sqrt()


def _real(examples: Examples) -> Tensor:
    """Tell which examples are no padding, bool `[agents, examples]`."""
    if examples.mask is None:
        return torch.ones_like(examples.y, dtype=torch.bool)
    return examples.mask
