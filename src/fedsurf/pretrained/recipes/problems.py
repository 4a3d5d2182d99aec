"""The distribution of problems on which the pretrained optimizer is meta-trained, by name `wide`.

A problem is a task, a network, a number of rounds and perhaps a size of mini-batches. Real
Fashion-MNIST images under random views, subsets, subdivisions and renamings of the classes and random
spectra; features that imitate a deep backbone's, or plain Gaussian classes, with 2 to 100 classes and
4 to 320 features, from almost separable to almost hopeless; 2 to 100 agents with 1 to 300 examples,
equal or not; label distributions from even to one class an agent; five kinds of graphs, or a server to
which some agents report, at random or in turn; stale agents, lost messages and agents that come and go.
Nothing of CIFAR-10, MNIST or digits is in it.
"""

from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_share
from fedsurf.common.randomness import copied, next_seed
from fedsurf.common.randomness import generator as seeded
from fedsurf.network import Calling, FaultConfig, GraphConfig, Network, NetworkConfig, make_network
from fedsurf.pretrained.recipes.synthetic import (
    BackboneCloud,
    Cloud,
    RealCloud,
    chance,
    log_uniform,
    random_views,
    uniform,
)
from fedsurf.surf.problems import Problem, Unrolled, UnrolledOptimizer
from fedsurf.tasks import sources
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.partition import ClassImbalanced, DirichletAgents, Partition
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.optimizer import Transferable

FEW = 7
"""Federations of so few agents have the simplest graphs, and agents with more examples."""
FEW_AGENTS = 10
"""Of the largest among the share of federations with few agents."""
PLENTY = torch.iinfo(torch.int64).max // 2**16


@dataclass(frozen=True)
class WideConfig:
    """How wide the distribution is."""

    real_share: float = 0.4
    """Share of the problems with real images."""
    gaussian_share: float = 0.15
    """Share of the others whose classes are round Gaussians."""
    two_share: float = 0.1
    """Share of the generated problems that have two classes, whatever the other ones have."""
    server_share: float = 0.4
    """Share of the problems that go through a server."""
    in_turn_share: float = 0.0
    """Share of the problems with a server whose server calls agents in turn, not at random."""
    fault_share: float = 0.3
    """Share of the problems over a faulty network."""
    few_share: float = 0.2
    """Share of the problems with 2 to 10 agents."""
    batch_share: float = 0.0
    """Share of the problems whose agents fit their heads to mini-batches."""
    even_share: float = 0.0
    """Share of the problems whose agents hold about the same labels."""
    rare_share: float = 0.0
    """Share of the problems some of whose classes are rare."""
    views: int = 6
    """Random views of the real images."""
    most_agents: int = 100
    """Agents of the largest federation."""
    most_examples: int = 5000
    """Training examples of the whole federation, at most."""
    test_examples: int = 512
    """Test examples of the whole federation, about."""

    def check(self) -> None:
        """Raise for settings that cannot be."""
        for one in fields(self):
            if one.name.endswith("_share"):
                check_share(getattr(self, one.name), one.name)
        check_count(self.views, "views")
        check_count(self.most_agents, "most_agents", FEW_AGENTS, ", as few agents are up to that")
        least = 2 * self.most_agents
        check_count(self.most_examples, "most_examples", least, ", two for each of most_agents")
        check_count(self.test_examples, "test_examples")


@dataclass(frozen=True)
class WideProblem(Problem):
    """A problem that is perhaps to be solved with mini-batches.

    Attributes
    ----------
    batch_size : int or None
        How many of its examples an agent fits its head to in a round; None for all.
    """

    batch_size: int | None = None

    def algorithm(self, optimizer: UnrolledOptimizer) -> Unrolled:
        """Return the algorithm by which a transferable optimizer solves this problem."""
        if self.batch_size is None:
            return super().algorithm(optimizer)
        if not isinstance(optimizer, Transferable):
            raise TypeError(
                f"optimizer: got a {type(optimizer).__name__}, but mini-batches of this problem's "
                "size are a Transferable's"
            )
        return optimizer.on(self.model, self.rounds, batch_size=self.batch_size)


class WideProblems:
    """Draws problems, the same ones for the same seed.

    Parameters
    ----------
    config : WideConfig
        How wide.
    seed : int
        The seed of the views and of all problems.
    """

    def __init__(self, config: WideConfig, seed: int) -> None:
        config.check()
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
        """Return the same distribution, of the same views, with another share of rare classes."""
        other = copy(self)
        other.config = replace(self.config, rare_share=share)
        return other

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""
        return self.draw(seeded(self.seed, "wide-training", number))

    def validation(self, number: int) -> Problem:
        """Return a problem of validation; the same seeds for all runs, so that they compare."""
        return self.draw(seeded(0, "wide-validation", number), validation=True)

    def draw(self, generator: torch.Generator, *, validation: bool = False) -> Problem:
        """Draw a problem."""
        cloud = self._cloud(generator)
        task = self._task(cloud, generator)
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

    def _cloud(self, generator: torch.Generator) -> Cloud:
        if not chance(self.config.real_share, generator):
            plain = chance(self.config.gaussian_share, generator)
            draw = BackboneCloud.gaussian if plain else BackboneCloud.random
            return draw(generator, self.config.two_share)
        views, labels = self._real
        chosen = int(torch.randint(len(views), (), generator=generator))
        return RealCloud.of(views[chosen], labels, generator)

    def _task(self, cloud: Cloud, generator: torch.Generator) -> Task:
        agents = round(log_uniform(10, 0.6 * self.config.most_agents, generator))
        if chance(0.25, generator):
            agents = self.config.most_agents
        if chance(self.config.few_share, generator):
            agents = round(log_uniform(2, FEW_AGENTS, generator))
        most = min(100 if agents > FEW else 300, self.config.most_examples // agents)
        examples = round(log_uniform(2, most, generator))
        if chance(0.5, generator):
            examples = min(round(uniform(30, 60, generator)), most)
        sizes = torch.full((agents,), examples)
        if chance(0.3, generator):
            fewest = max(1, round(examples * uniform(0.02, 0.6, generator)))
            sizes = torch.randint(fewest, examples + 1, (agents,), generator=generator)
        tests = max(1, round(self.config.test_examples / agents))
        partition = self._partition(generator)
        limit = torch.full((cloud.classes,), PLENTY)
        labels = partition.labels(limit, sizes + tests, generator)
        train_y = [own[tests:] for own in labels]
        test_y = [own[:tests] for own in labels]
        x = cloud.draw(torch.cat(train_y), generator, test=False)
        test_x = cloud.draw(torch.cat(test_y), generator, test=True)
        centre, scale = self._units(x, generator)
        x, test_x = (x - centre) * scale, (test_x - centre) * scale
        noise = uniform(0, 0.3, generator) if chance(0.15, generator) else 0.0
        if noise:
            train_y = [_flip(own, noise, cloud.classes, generator) for own in train_y]
        train = Examples.pad(torch.split(x, sizes.tolist()), train_y)
        test = Examples.pad(torch.split(test_x, [tests] * agents), test_y)
        return Task(train, test, cloud.classes)

    def _units(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Features come with any offset and in any unit."""
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
            # Apart, so that all else of a problem is the same whatever the share.
            apart = seeded(next_seed(copied(generator)), "calling")
            calling: Calling = "in-turn" if chance(self.config.in_turn_share, apart) else "random"
            config = NetworkConfig(graph=star, reporting=reporting, calling=calling, faults=faults)
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
        if agents <= FEW:
            ring = agents > 2 and chance(0.5, generator)
            return GraphConfig(kind="regular", degree=2) if ring else GraphConfig(kind="complete")
        if chance(0.45, generator):
            degree = 3 if agents % 2 == 0 else 4
            return GraphConfig(kind="regular", degree=degree)
        if chance(0.6, generator):
            sparsest = 2 * float(torch.tensor(float(agents)).log()) / agents
            return GraphConfig(
                kind="erdos-renyi",
                probability=min(0.9, max(0.1, uniform(1, 2, generator) * sparsest)),
            )
        if chance(0.5, generator):
            return GraphConfig(kind="small-world", degree=4, probability=0.2)
        if chance(0.5, generator):
            return GraphConfig(kind="complete")
        return GraphConfig(kind="regular", degree=6)


def _flip(labels: Tensor, share: float, classes: int, generator: torch.Generator) -> Tensor:
    flipped = torch.rand(labels.shape, generator=generator) < share
    other = torch.randint(classes, labels.shape, generator=generator)
    return torch.where(flipped, other, labels)
