"""Task distributions: tasks drawn from a pool of examples, for meta-training, validation and meta-test.

A partition decides the labels of all agents' examples; then examples with these labels are drawn.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.checks import (
    check_count,
    check_fraction,
    check_kind,
    check_option,
    check_positive,
)
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.randomness import numpy_generator
from fedsurf.tasks.config import PartitionKind, TaskConfig
from fedsurf.tasks.features import Features
from fedsurf.tasks.task import Examples, Task

MAX_DRAWS = 1000
"""Number of label distributions that are drawn in search of one that the pool can serve."""
UNLIMITED_EXAMPLES = torch.iinfo(torch.int64).max // 2**16
"""Number of examples of a class where they are drawn with replacement."""


class Partition(Protocol):
    """Decides the labels of all agents' examples."""

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return the labels of each agent's examples, in random order.

        `available[classes]` are the numbers of examples of each class in the pool, and
        `sizes[agents]` those of each agent, both int64.
        """
        ...


@dataclass(frozen=True)
class ClassImbalanced:
    """A different label distribution for each task, whose examples are spread evenly over the agents.

    It is drawn from Dirichlet(concentration, …, concentration), on the condition that the pool has enough
    examples of every class.
    """

    concentration: float = 10.0

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Draw the task's label counts, shuffle the labels and deal them to the agents."""
        check_positive(self.concentration, "concentration")
        counts = _draw_counts(self.concentration, available, sizes.sum()[None], generator)
        labels = torch.arange(len(available)).repeat_interleave(counts[0])
        shuffled = labels[torch.randperm(len(labels), generator=generator)]
        return list(torch.split(shuffled, sizes.tolist()))


@dataclass(frozen=True)
class DirichletAgents:
    """A different label distribution for each agent, drawn from Dirichlet(α, …, α).

    The condition is that the pool has enough examples of every class for all agents together.
    """

    alpha: float = 0.3

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Draw each agent's label counts, and shuffle the labels of each agent."""
        check_positive(self.alpha, "alpha")
        counts = _draw_counts(self.alpha, available, sizes, generator)
        every = torch.arange(len(available)).repeat(len(sizes))
        labels = every.repeat_interleave(counts.flatten())
        return [
            own[torch.randperm(len(own), generator=generator)]
            for own in torch.split(labels, sizes.tolist())
        ]


class TaskDistribution:
    """Draws tasks from a pool of labelled examples.

    The pool is its features `x[examples, features]` and their int64 labels `y[examples]`,
    `0 … classes − 1`.

    Examples
    --------
    >>> from fedsurf import TaskConfig, generator
    >>> x, y = torch.randn(200, 4), torch.arange(200) % 2
    >>> tasks = TaskDistribution(x, y, 2, TaskConfig(agents=5, train_examples=8, test_examples=4))
    >>> tasks.draw(generator(0)).train.x.shape
    torch.Size([5, 8, 4])
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int, config: TaskConfig) -> None:
        check_kind(x, Tensor, "x", "a torch tensor")
        check_kind(y, Tensor, "y", "a torch tensor")
        if x.dim() != 2 or not x.is_floating_point():
            raise ValueError(
                f"x: got {x.dtype} of shape {list(x.shape)}, but it must be floating point of shape "
                "[examples, features]"
            )
        if y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise ValueError(
                f"y: got {y.dtype} of shape {list(y.shape)}, but it must be int64 of shape [{len(x)}], "
                "a label for each example"
            )
        check_count(classes, "classes", 0)
        check_kind(config, TaskConfig, "config", "a TaskConfig")
        for name in ("agents", "train_examples", "test_examples"):
            check_count(getattr(config, name), name)
        check_option(config.partition, PartitionKind, "partition")
        fewest = config.fewest_train_examples
        if fewest is not None:
            most = config.train_examples
            check_count(fewest, "fewest_train_examples", 1, ", train_examples", most)
        subset = config.classes_per_task
        if subset is not None:
            check_count(subset, "classes_per_task", 1, ", the classes", classes)
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise ValueError(
                f"y: got labels from {int(y.min())} to {int(y.max())}, but they must be between 0 "
                f"and {classes - 1}"
            )
        self.config = config
        self.classes = classes if subset is None else subset
        self.features = x.shape[1]
        self._x = x
        self._partition: Partition = ClassImbalanced(config.concentration)
        if config.partition == "dirichlet":
            self._partition = DirichletAgents(config.alpha)
        self._members = [(y == label).nonzero().flatten() for label in range(classes)]

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task. No example is in both its training and its test part."""
        config = self.config
        chosen = self._draw_classes(generator)
        members = [self._members[label] for label in chosen]
        train_sizes = self._draw_sizes(generator)
        sizes = train_sizes + config.test_examples
        available = torch.tensor([len(own) for own in members])
        limit = (
            torch.where(available > 0, UNLIMITED_EXAMPLES, 0) if config.replacement else available
        )
        labels = torch.cat(self._partition.labels(limit, sizes, generator))
        # Examples are laid out agent after agent, an agent's training examples before its test ones.
        agent_start = sizes.cumsum(0) - sizes
        offset = torch.arange(len(labels)) - agent_start.repeat_interleave(sizes)
        is_test = offset >= train_sizes.repeat_interleave(sizes)
        places = self._draw_places(labels, is_test, members, generator)
        return Task(
            self._lay_out(labels, places, ~is_test, train_sizes),
            self._lay_out(labels, places, is_test, sizes - train_sizes),
            self.classes,
        )

    def _draw_classes(self, generator: torch.Generator) -> list[int]:
        """Choose the class of the pool behind each label of the task."""
        every = len(self._members)
        if not self.config.permute_labels and self.classes == every:
            return list(range(every))
        drawn: list[int] = torch.randperm(every, generator=generator)[: self.classes].tolist()
        return drawn if self.config.permute_labels else sorted(drawn)

    def _draw_sizes(self, generator: torch.Generator) -> Tensor:
        most, fewest = self.config.train_examples, self.config.fewest_train_examples
        if fewest is None:
            return torch.full((self.config.agents,), most)
        return torch.randint(fewest, most + 1, (self.config.agents,), generator=generator)

    def _draw_places(
        self, labels: Tensor, is_test: Tensor, members: list[Tensor], generator: torch.Generator
    ) -> Tensor:
        """Choose an example of the pool for every label."""
        places = torch.empty_like(labels)
        for label, own in enumerate(members):
            here = labels == label
            order = own[torch.randperm(len(own), generator=generator)]
            if not self.config.replacement:
                places[here] = order[: int(here.sum())]
                continue
            if not here.any():
                continue
            if len(own) < 2:
                raise ValueError(
                    f"pool: got {len(own)} examples of the task's class {label}, but sampling with "
                    "replacement needs 2, one each for training and test"
                )
            per_agent = self.config.train_examples + self.config.test_examples
            share = round(len(own) * self.config.test_examples / per_agent)
            tests = min(max(1, share), len(own) - 1)
            for part, wanted in ((order[tests:], here & ~is_test), (order[:tests], here & is_test)):
                drawn = torch.randint(len(part), (int(wanted.sum()),), generator=generator)
                places[wanted] = part[drawn]
        return places

    def _lay_out(self, labels: Tensor, places: Tensor, part: Tensor, sizes: Tensor) -> Examples:
        x, y = self._x.index_select(0, places[part]), labels[part]  # faster than indexing
        if int(sizes.min()) == int(sizes.max()):
            return Examples(x.reshape(len(sizes), -1, self.features), y.reshape(len(sizes), -1))
        parts = sizes.tolist()
        return Examples.pad(torch.split(x, parts), torch.split(y, parts))


class TaskSampler(Protocol):
    """A `TaskDistribution`, or any other object that draws tasks."""

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task; all its randomness comes from `generator`."""
        ...


@dataclass(frozen=True)
class MetaTasks:
    """The tasks of meta-training, of validation and tuning, and of meta-test; no two share an example."""

    train: TaskSampler
    validation: TaskSampler
    test: TaskSampler


@dataclass(frozen=True)
class DividedTasks(MetaTasks):
    """Task distributions over three parts of one data set; `meta_tasks` returns them."""

    train: TaskDistribution
    validation: TaskDistribution
    test: TaskDistribution


def meta_tasks(
    features: Features, config: TaskConfig, *, validation_share: float = 0.4, seed: int = 0
) -> DividedTasks:
    """Divide a data set for meta-learning.

    Meta-test tasks use the data set's own test part. Its training part is divided at random by `seed`,
    class by class: `validation_share` of it for the validation tasks, the rest for meta-training.

    Examples
    --------
    >>> from fedsurf import TaskConfig, generator
    >>> from fedsurf.tasks.config import FeatureConfig
    >>> from fedsurf.tasks.features import load_features
    >>> features = load_features(FeatureConfig(source="digits", components=16))
    >>> config = TaskConfig(agents=10, train_examples=20, test_examples=5)
    >>> meta_tasks(features, config).test.draw(generator(0)).agents
    10
    """
    check_fraction(validation_share, "validation_share")
    random = seeded(seed, "meta-split")
    held_out = torch.zeros(len(features.train_y), dtype=torch.bool)
    for label in range(features.classes):
        own = (features.train_y == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=random)]
        held_out[own[: round(len(own) * validation_share)]] = True
    train_x, train_y, classes = features.train_x, features.train_y, features.classes
    return DividedTasks(
        TaskDistribution(train_x[~held_out], train_y[~held_out], classes, config),
        TaskDistribution(train_x[held_out], train_y[held_out], classes, config),
        TaskDistribution(features.test_x, features.test_y, classes, config),
    )


def _draw_counts(
    evenness: float, available: Tensor, totals: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw a label distribution for each of `totals` until the pool has enough examples of every class.

    Returns the counts of the classes, `[totals, classes]`.
    """
    random = numpy_generator(generator)
    total = int(totals.sum())
    if not available.any():
        raise ValueError(f"pool: got no examples, but a task needs {total}")
    if total > int(available.sum()):
        raise ValueError(
            f"pool: got {int(available.sum())} examples, but a task needs {total} different ones; "
            "take fewer agents or examples, or sample with replacement"
        )
    limit = available.numpy()
    wanted = np.zeros_like(limit)
    for _ in range(MAX_DRAWS):
        shares = random.dirichlet(np.full(len(limit), evenness), size=len(totals))
        counts = random.multinomial(totals.numpy(), shares)
        wanted = counts.sum(0)
        if (wanted <= limit).all():
            return torch.from_numpy(counts)
    worst = int((wanted - limit).argmax())
    raise ValueError(
        f"pool: got {int(limit[worst])} examples of the task's class {worst}, but it wanted "
        f"{int(wanted[worst])}, and {MAX_DRAWS} draws found no label distribution that the pool can "
        "serve; take a more even distribution, fewer examples, or sample with replacement, and leave classes "
        "without examples out"
    )
