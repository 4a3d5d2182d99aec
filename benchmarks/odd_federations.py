"""Extreme federations for tests and comparisons.

Each case has one difficulty; everything else is ordinary: Gaussian classes whose means are so far
apart that a linear classifier reaches an accuracy of about 75 % or more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.estimator.federations import federation_network
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task

Case = Callable[[torch.Generator], tuple[Task, Network]]

TEST_EXAMPLES = 2000
"""About how many test examples a case has in all; every agent has at least one."""


@dataclass(frozen=True)
class OddCase:
    """A federation of Gaussian classes. Calling it draws its task and its network."""

    agents: int = 20
    """The number of agents."""
    examples: int | tuple[int, int] = 40
    """Training examples of each agent: how many, or the least and the most of them, in which case
    the sizes are drawn evenly on a logarithmic scale, and both ends occur."""
    features: int = 30
    """The number of features."""
    classes: int = 5
    """The number of classes."""
    distance: float = 4.0
    """About how far the means of two classes lie apart, in standard deviations."""
    single_class: bool = False
    """Whether each agent holds examples of one class only; its test examples are of all."""
    constant: int = 0
    """How many features are constant, the first at 0, the others at a large number."""
    duplicated: int = 0
    """How many features are copies of others."""
    offset: float = 0.0
    """How far from 0 the features lie, in standard deviations, at most."""
    decades: float = 0.0
    """Over how many powers of ten the units of the features are spread."""
    degree: int = 3
    """Neighbours of each agent."""

    def __call__(self, generator: torch.Generator) -> tuple[Task, Network]:
        """Draw the task and the network."""
        network = federation_network("regular", range(self.agents), generator, degree=self.degree)
        free = self.features - self.constant - self.duplicated
        means = torch.randn(self.classes, free, generator=generator)
        means = means * self.distance / (2 * free) ** 0.5
        place = self.offset * (2 * torch.rand(self.features, generator=generator) - 1)
        unit = 10 ** (self.decades * (torch.rand(self.features, generator=generator) - 0.5))

        def part(sizes: Tensor, *, single: bool) -> Examples:
            labels = torch.randint(
                self.classes, (self.agents, int(sizes.max())), generator=generator
            )
            if single:
                # In turn, so that no class is without an agent.
                labels = (torch.arange(self.agents) % self.classes)[:, None].expand_as(labels)
            mask = torch.arange(labels.shape[1]) < sizes[:, None]
            noise = torch.randn(*labels.shape, free, generator=generator, dtype=torch.float64)
            x = self._odd(means[labels] + noise)
            x = (x + place) * unit * mask[:, :, None]
            return Examples(x, labels * mask, None if mask.all() else mask)

        test = torch.full((self.agents,), max(1, TEST_EXAMPLES // self.agents))
        train = part(self._sizes(generator), single=self.single_class)
        return Task(train, part(test, single=False), self.classes), network

    def _sizes(self, generator: torch.Generator) -> Tensor:
        if isinstance(self.examples, int):
            return torch.full((self.agents,), self.examples)
        least, most = self.examples
        where = torch.rand(self.agents, generator=generator)
        where[:2] = torch.tensor([0.0, 1.0])
        return (least * (most / least) ** where).round().long()

    def _odd(self, x: Tensor) -> Tensor:
        """Add what is constant or a copy."""
        constant = x.new_zeros(*x.shape[:2], self.constant)
        constant[:, :, 1:] = 1e3
        return torch.cat([x, constant, x[:, :, : self.duplicated]], 2)


ODD_CASES: Mapping[str, Case] = {
    "2 classes": OddCase(classes=2, distance=2.5),
    "100 classes": OddCase(classes=100, features=100, examples=100, distance=6.0),
    "4 features": OddCase(features=4, classes=3),
    "2,048 features": OddCase(features=2048, distance=8.0),
    "2 agents": OddCase(agents=2, examples=200),
    "1,000 agents": OddCase(agents=1000, examples=10),
    "single-class agents": OddCase(single_class=True),
    "sizes between 1 and 500": OddCase(examples=(1, 500)),
    "constant features": OddCase(constant=10),
    "duplicated features": OddCase(duplicated=15),
    "large offsets, tiny and huge units": OddCase(offset=1e4, decades=12.0),
    "one example each": OddCase(agents=400, examples=1, features=10),
}
"""A name for each case, and the function that draws it. Features are float64."""
