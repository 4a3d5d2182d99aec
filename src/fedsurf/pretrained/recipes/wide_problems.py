"""The distribution of problems on which pretrained optimizers are meta-trained.

A problem is a task, a network, a number of rounds and possibly a size of mini-batches. Its examples are
Fashion-MNIST images under random views, with subsets, subdivisions and renamings of the classes and
random spectra, or synthetic features that imitate those of a deep backbone, or Gaussian classes; with 2
to 100 classes and 4 to 320 features, from almost separable to almost inseparable. There are 2 to 100
agents with 1 to 300 examples, equal or unequal, with labels from even to one class an agent; five kinds
of graphs, or a server to which some agents report; stale agents, lost messages and agents that come and
go. No other real data set is used, so that CIFAR-10, MNIST and digits are new to the optimizers.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from fedsurf.common.randomness import generator as seeded
from fedsurf.network import FaultConfig, GraphConfig, Network, NetworkConfig, make_network
from fedsurf.pretrained.config import MAX_FEW_AGENTS, WideConfig
from fedsurf.pretrained.recipes.populations import (
    Population,
    RealPopulation,
    SyntheticPopulation,
    chance,
    log_uniform,
    random_views,
    uniform,
)
from fedsurf.surf.constraints import Unrolled, UnrolledOptimizer
from fedsurf.surf.training import Problem
from fedsurf.tasks import sources
from fedsurf.tasks.distribution import (
    UNLIMITED_EXAMPLES,
    ClassImbalanced,
    DirichletAgents,
    Partition,
)
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.transferable.optimizer import Transferable

MAX_SMALL_FEDERATION = 7
"""Agents of the largest federation with a ring or a complete graph, and with up to 300 examples each."""


@dataclass(frozen=True)
class WideProblem(Problem):
    """A problem whose agents may fit their heads to mini-batches."""

    batch_size: int | None = None
    """Examples of a mini-batch of an agent in a round; None for all."""

    def algorithm(self, optimizer: UnrolledOptimizer) -> Unrolled:
        """Return the algorithm that solves this problem."""
        if self.batch_size is None:
            return super().algorithm(optimizer)
        of_heads = cast(Transferable, optimizer)  # problems for modules have no mini-batches
        return of_heads.on(self.model, self.rounds, batch_size=self.batch_size)


class WideProblems:
    """Draws problems, the same for the same seed."""

    def __init__(self, config: WideConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    @cached_property
    def _real(self) -> tuple[list[Tensor], Tensor]:
        dataset = sources.load("fashion-mnist-mini")
        pixels = torch.from_numpy(dataset.train_x).flatten(1).float()
        if float(pixels.max()) > 1:
            pixels = pixels / 255
        views = random_views(pixels, self.config.views, 128, seeded(self.seed, "views"))
        return views, torch.from_numpy(dataset.train_y)

    def with_rare_classes(self, share: float) -> "WideProblems":
        """Return the same distribution, with the same views and another share of rare classes."""
        other = copy(self)
        other.config = replace(self.config, rare_share=share)
        return other

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""
        return self.draw(seeded(self.seed, "wide-training", number))

    def validation(self, number: int) -> Problem:
        """Return a problem of validation, with the same seeds in all runs, so that these are comparable."""
        return self.draw(seeded(0, "wide-validation", number), validation=True)

    def draw(self, generator: torch.Generator, *, validation: bool = False) -> Problem:
        """Draw a problem."""
        population = self._population(generator)
        task = self._task(population, generator)
        network = self._network(task.agents, generator)
        if validation:
            rounds = 10 if network.server or chance(0.3, generator) else 20
        elif chance(0.6, generator):
            rounds = 20 if chance(0.5, generator) else 10
        else:
            rounds = int(torch.randint(5, 41, (), generator=generator))
        size = None
        if self.config.batch_share and chance(self.config.batch_share, generator):
            size = round(log_uniform(2, max(2, int(task.train.counts.max())), generator))
        return WideProblem(task, network, rounds, batch_size=size)

    def _population(self, generator: torch.Generator) -> Population:
        if not chance(self.config.real_share, generator):
            gaussian = chance(self.config.gaussian_share, generator)
            draw = SyntheticPopulation.gaussian if gaussian else SyntheticPopulation.random
            return draw(generator, self.config.two_share)
        views, labels = self._real
        chosen = int(torch.randint(len(views), (), generator=generator))
        return RealPopulation.of(views[chosen], labels, generator)

    def _task(self, population: Population, generator: torch.Generator) -> Task:
        agents = round(log_uniform(10, 0.6 * self.config.max_agents, generator))
        if chance(0.25, generator):
            agents = self.config.max_agents
        if chance(self.config.few_share, generator):
            agents = round(log_uniform(2, MAX_FEW_AGENTS, generator))
        most = 100 if agents > MAX_SMALL_FEDERATION else 300
        most = min(most, self.config.max_examples // agents)
        examples = round(log_uniform(2, most, generator))
        if chance(0.5, generator):
            examples = min(round(uniform(30, 60, generator)), most)
        sizes = torch.full((agents,), examples)
        if chance(0.3, generator):
            fewest = max(1, round(examples * uniform(0.02, 0.6, generator)))
            sizes = torch.randint(fewest, examples + 1, (agents,), generator=generator)
        tests = max(1, round(self.config.test_examples / agents))
        partition = self._partition(generator)
        limit = torch.full((population.classes,), UNLIMITED_EXAMPLES)
        labels = partition.labels(limit, sizes + tests, generator)
        train_y = [own[tests:] for own in labels]
        test_y = [own[:tests] for own in labels]
        x = population.draw(torch.cat(train_y), generator, test=False)
        test_x = population.draw(torch.cat(test_y), generator, test=True)
        centre, scale = self._units(x, generator)
        x, test_x = (x - centre) * scale, (test_x - centre) * scale
        noise = uniform(0, 0.3, generator) if chance(0.15, generator) else 0.0
        if noise:
            train_y = [_flip(own, noise, population.classes, generator) for own in train_y]
        train = Examples.pad(torch.split(x, sizes.tolist()), train_y)
        test = Examples.pad(torch.split(test_x, [tests] * agents), test_y)
        return Task(train, test, population.classes)

    def _units(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return a shift and a scale, which give features any offset and unit."""
        centre = x.mean(0)
        size = float((x - centre).square().mean().sqrt().clamp(min=1e-6))
        offset = torch.randn(x.shape[1], generator=generator) * size
        return centre + uniform(0, 1, generator) * offset, log_uniform(0.5, 2, generator) / size

    def _partition(self, generator: torch.Generator) -> Partition:
        if self.config.rare_share and chance(self.config.rare_share, generator):
            return ClassImbalanced(log_uniform(0.1, 1, generator))
        if self.config.even_share and chance(self.config.even_share, generator):
            return DirichletAgents(log_uniform(5, 100, generator))
        if chance(0.45, generator):
            return ClassImbalanced(log_uniform(1, 20, generator))
        if chance(0.75, generator):
            return DirichletAgents(log_uniform(0.1, 1.5, generator))
        return DirichletAgents(log_uniform(0.01, 0.1, generator))

    def _network(self, agents: int, generator: torch.Generator) -> Network:
        faults = self._faults(agents, generator)
        if chance(self.config.server_share, generator):
            share = 1.0 if chance(0.2, generator) else log_uniform(0.08, 0.5, generator)
            reporting = max(1, round(share * agents))
            star = GraphConfig(kind="star")
            config = NetworkConfig(graph=star, reporting=reporting, faults=faults)
        else:
            graph = self._graph(agents, generator)
            config = NetworkConfig(graph=graph, shift="metropolis", faults=faults)
        return make_network(config, agents, generator)

    def _faults(self, agents: int, generator: torch.Generator) -> FaultConfig:
        if not chance(self.config.fault_share, generator):
            return FaultConfig()
        stale = round(agents * uniform(0, 0.3, generator)) if chance(0.5, generator) else 0
        loss = uniform(0, 0.3, generator) if chance(0.5, generator) else 0.0
        leave = uniform(0, 0.1, generator) if chance(0.3, generator) else 0.0
        return FaultConfig(stale=stale, loss=loss, leave=leave)

    def _graph(self, agents: int, generator: torch.Generator) -> GraphConfig:
        if agents <= MAX_SMALL_FEDERATION:
            ring = agents > 2 and chance(0.5, generator)
            return GraphConfig(kind="regular", degree=2) if ring else GraphConfig(kind="complete")
        if chance(0.45, generator):
            return GraphConfig(kind="regular", degree=3 if agents % 2 == 0 else 4)
        if chance(0.6, generator):
            sparsest = 2 * float(torch.tensor(float(agents)).log()) / agents
            probability = min(0.9, max(0.1, uniform(1, 2, generator) * sparsest))
            return GraphConfig(kind="erdos-renyi", probability=probability)
        if chance(0.5, generator):
            return GraphConfig(kind="small-world", degree=4, probability=0.2)
        if chance(0.5, generator):
            return GraphConfig(kind="complete")
        return GraphConfig(kind="regular", degree=6)


def _flip(labels: Tensor, share: float, classes: int, generator: torch.Generator) -> Tensor:
    flipped = torch.rand(labels.shape, generator=generator) < share
    other = torch.randint(classes, labels.shape, generator=generator)
    return torch.where(flipped, other, labels)
