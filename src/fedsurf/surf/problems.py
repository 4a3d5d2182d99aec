"""The inputs of meta-training: an unrolled optimizer, and the problems that it is trained on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from fedsurf.algorithms.algorithm import Algorithm
from fedsurf.common.randomness import generator as seeded
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.distribution import MetaTasks
from fedsurf.tasks.task import Task


class Unrolled(Algorithm, Protocol):
    """An algorithm with a fixed number of steps, its layers."""

    @property
    def steps(self) -> int:
        """Number of layers."""
        ...


class UnrolledOptimizer(Protocol):
    """Learned parameters θ, and the algorithm whose layers they are: the object that SURF trains."""

    @property
    def constraints(self) -> int:
        """Number of descending constraints: one for each layer, or for each part of the depth."""
        ...

    def on(self, model: Model, rounds: int | None = None) -> Unrolled:
        """Return the algorithm whose steps are the layers, for a model and a number of rounds."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return θ."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return θ with names."""
        ...


@dataclass(frozen=True)
class Problem:
    """A task, the network and model with which it is trained, and the number of rounds.

    Attributes
    ----------
    task : Task
        The federated problem.
    network : Network
        The agents' network.
    rounds : int or None
        Number of communication rounds; None for the optimizer's own.
    trained : Model or None
        The agents' model; None for a softmax head.
    """

    task: Task
    network: Network
    rounds: int | None = None
    trained: Model | None = None

    @property
    def model(self) -> Model:
        """The agents' model."""
        return self.trained or SoftmaxHead(self.task.features, self.task.classes)

    def algorithm(self, optimizer: UnrolledOptimizer) -> Unrolled:
        """Return the algorithm by which an optimizer solves this problem."""
        return optimizer.on(self.model, self.rounds)


class Problems(Protocol):
    """The source of meta-training's problems."""

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""
        ...

    def validation(self, number: int) -> Problem:
        """Return a problem of validation, the same each time."""
        ...


@dataclass(frozen=True)
class FixedProblems:
    """The paper's problems: one network, and a fixed set of tasks from which every step takes one.

    Attributes
    ----------
    tasks : MetaTasks
        The task distributions.
    network : Network
        The network of all tasks.
    count : int
        Number of different meta-training tasks, the paper's Q.
    seed : int
        Seed of the tasks.
    """

    tasks: MetaTasks
    network: Network
    count: int
    seed: int

    def training(self, number: int) -> Problem:
        """Return one of the meta-training tasks, drawn at random."""
        choice = seeded(self.seed, "train", number)
        task_number = int(torch.randint(self.count, (), generator=choice))
        task = self.tasks.train.draw(seeded(self.seed, "train-task", task_number))
        return Problem(task, self.network)

    def validation(self, number: int) -> Problem:
        """Return a validation task."""
        task = self.tasks.validation.draw(seeded(self.seed, "validation-task", number))
        return Problem(task, self.network)
