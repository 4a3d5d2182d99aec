"""Problems: what one step of meta-training unrolls an optimizer on."""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedsurf.common.checks import check_count
from fedsurf.common.randomness import generator as seeded
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.surf.unrolled_optimizer import Unrolled, UnrolledOptimizer
from fedsurf.tasks.distribution import MetaTasks
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class Problem:
    """A task, the model and the network with which it is trained, and for how many rounds.

    Attributes
    ----------
    task : Task
        The federated problem.
    network : Network
        Over which the agents talk.
    rounds : int or None
        How many communication rounds there are; None for as many as the optimizer has.
    trained : Model or None
        What the agents train; None for a softmax head.
    """

    task: Task
    network: Network
    rounds: int | None = None
    trained: Model | None = None

    @property
    def model(self) -> Model:
        """What the agents train."""
        return self.trained or SoftmaxHead(self.task.features, self.task.classes)

    def algorithm(self, optimizer: UnrolledOptimizer) -> Unrolled:
        """Return the algorithm by which an optimizer solves this problem."""
        return optimizer.on(self.model, self.rounds)


class Problems(Protocol):
    """Where meta-training gets its problems from."""

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""
        ...

    def validation(self, number: int) -> Problem:
        """Return a problem of validation, the same each time."""
        ...


@dataclass(frozen=True)
class FixedProblems:
    """The paper's: one network, and a given number of tasks from which every step takes one.

    Attributes
    ----------
    tasks : MetaTasks
        Where the tasks come from.
    network : Network
        Over which all of them are trained.
    count : int
        The number of different meta-training tasks, the paper's Q.
    seed : int
        Draws them.
    """

    tasks: MetaTasks
    network: Network
    count: int
    seed: int

    def training(self, number: int) -> Problem:
        """Return one of the meta-training tasks, drawn at random."""
        check_count(self.count, "count")
        choice = seeded(self.seed, "train", number)
        task_number = int(torch.randint(self.count, (), generator=choice))
        task = self.tasks.train.draw(seeded(self.seed, "train-task", task_number))
        return Problem(task, self.network)

    def validation(self, number: int) -> Problem:
        """Return a validation task."""
        task = self.tasks.validation.draw(seeded(self.seed, "validation-task", number))
        return Problem(task, self.network)
