"""Task distributions: what tasks are drawn from, for meta-training, validation and meta-test."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.randomness import generator as seeded
from fedsurf.tasks.config import TaskConfig
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.features import Features
from fedsurf.tasks.partition import make_partition
from fedsurf.tasks.task import Task

UNLIMITED = torch.iinfo(torch.int64).max // 2**16
"""How many examples of a class there are where they are drawn with replacement."""


class TaskDistribution:
    """Draws tasks from a pool of labelled examples.

    Parameters
    ----------
    x : Tensor
        Features of the pool, `[examples, features]`.
    y : Tensor
        Their labels, int64 `[examples]`.
    classes : int
        The number of classes.
    config : TaskConfig
        What a task looks like.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int, config: TaskConfig) -> None:
        for name, value in (("x", x), ("y", y)):
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{name}: got {type(value).__name__}, but it must be a torch tensor"
                )
        if x.dim() != 2 or not x.is_floating_point():
            raise ValueError(
                f"x: got {x.dtype} of shape {list(x.shape)}, but it must be floating point of shape "
                "[examples, features]"
            )
        if y.dtype != torch.int64:
            raise ValueError(f"y: got labels of type {y.dtype}, but they must be int64")
        if len(x) != len(y) or y.dim() != 1:
            raise ValueError(
                f"y: got shape {list(y.shape)}, but the pool has {len(x)} examples, each with a label"
            )
        check_whole(classes, "classes")
        check_kind(config, TaskConfig, "config", "a TaskConfig")
        for name in ("agents", "train_examples", "test_examples"):
            check_whole(getattr(config, name), name)
            if getattr(config, name) < 1:
                raise ValueError(f"{name}: got {getattr(config, name)}, but it must be at least 1")
        fewest = config.fewest_train_examples
        if fewest is not None and not 1 <= fewest <= config.train_examples:
            raise ValueError(
                f"fewest_train_examples: got {fewest}, but it must be between 1 and "
                f"train_examples, {config.train_examples}"
            )
        subset = config.classes_per_task
        if subset is not None and not 1 <= subset <= classes:
            raise ValueError(
                f"classes_per_task: got {subset}, but it must be between 1 and {classes}, the classes"
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
            wrong = int(y.max()) if int(y.max()) >= classes else int(y.min())
            raise ValueError(
                f"y: got label {wrong}, but labels must be between 0 and {classes - 1}"
            )
        self.config = config
        self.classes = classes if subset is None else subset
        self.features = x.shape[1]
        self._x = x
        self._partition = make_partition(config)
        self._members = [(y == label).nonzero().flatten() for label in range(classes)]

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task. No example is in both its training and its test part."""
        config = self.config
        chosen = self._draw_classes(generator)
        members = [self._members[label] for label in chosen]
        train_sizes = self._draw_sizes(generator)
        sizes = train_sizes + config.test_examples
        available = torch.tensor([len(own) for own in members])
        limit = torch.where(available > 0, UNLIMITED, 0) if config.replacement else available
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
        """Choose which class of the pool each label of the task stands for."""
        everything = len(self._members)
        if self.config.permute_labels:
            return torch.randperm(everything, generator=generator)[: self.classes].tolist()
        if self.classes < everything:
            drawn = torch.randperm(everything, generator=generator)[: self.classes]
            return drawn.sort().values.tolist()
        return list(range(everything))

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
            share = round(len(own) * self.config.test_examples / self._per_agent)
            tests = min(max(1, share), len(own) - 1)
            for part, wanted in ((order[tests:], here & ~is_test), (order[:tests], here & is_test)):
                places[wanted] = part[
                    torch.randint(len(part), (int(wanted.sum()),), generator=generator)
                ]
        return places

    @property
    def _per_agent(self) -> int:
        return self.config.train_examples + self.config.test_examples

    def _lay_out(self, labels: Tensor, places: Tensor, part: Tensor, sizes: Tensor) -> Examples:
        x, y = self._x.index_select(0, places[part]), labels[part]  # faster than brackets
        if int(sizes.min()) == int(sizes.max()):
            return Examples(x.reshape(len(sizes), -1, self.features), y.reshape(len(sizes), -1))
        parts = sizes.tolist()
        return Examples.pad(torch.split(x, parts), torch.split(y, parts))


class Draws(Protocol):
    """Where tasks come from: a `TaskDistribution`, or anything else that draws them."""

    def draw(self, generator: torch.Generator) -> Task:
        """Draw a task; everything random in it comes from `generator`."""
        ...


@dataclass(frozen=True)
class MetaTasks:
    """The three task distributions of a meta-learning experiment; no two share an example.

    Attributes
    ----------
    train, validation, test : Draws
        For meta-training, for validation and tuning, and for meta-test.
    """

    train: Draws
    validation: Draws
    test: Draws


@dataclass(frozen=True)
class DividedTasks(MetaTasks):
    """What `meta_tasks` makes of one data set: three parts of it, each drawn from."""

    train: TaskDistribution
    validation: TaskDistribution
    test: TaskDistribution


def meta_tasks(
    features: Features, config: TaskConfig, *, validation_share: float = 0.4, seed: int = 0
) -> DividedTasks:
    """Divide a data set for meta-learning.

    Meta-test tasks use the data set's own test part. Its training part is divided at random, class
    by class: `validation_share` of it for the validation tasks, the rest for meta-training.

    Parameters
    ----------
    features : Features
        The data set, e.g. of `load_features`.
    config : TaskConfig
        What tasks are like.
    validation_share : float
        Between 0 and 1.
    seed : int
        Divides the training part.
    """
    check_kind(features, Features, "features", "Features, as fedsurf.load_features returns")
    if not 0 < validation_share < 1:
        raise ValueError(
            f"validation_share: got {validation_share}, but it must be between 0 and 1"
        )
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
