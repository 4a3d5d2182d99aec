"""Interventions on a task, by which an audit finds out what an optimizer learns from.

Each takes a task and a generator, and returns another task. Blanking and shuffling leave nothing to
learn but the frequencies of the classes; renaming and rotating leave as much to learn as before.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedsurf.tasks.task import Examples, Task

Intervention = Callable[[Task, torch.Generator], Task]


def blank_features(task: Task, generator: torch.Generator) -> Task:  # noqa: ARG001 - nothing is random
    """Replace all training features by 0; labels and test examples stay."""
    train = task.train
    return replace(task, train=Examples(torch.zeros_like(train.x), train.y, train.mask))


def shuffle_labels(task: Task, generator: torch.Generator) -> Task:
    """Permute the training labels of the whole federation.

    Labels move between agents: if each agent shuffled its own, an agent with one class would keep them.
    """
    real = _real(task.train)
    labels = task.train.y[real]
    dealt = torch.zeros_like(task.train.y)
    dealt[real] = labels[torch.randperm(len(labels), generator=generator)]
    return replace(task, train=Examples(task.train.x, dealt, task.train.mask))


def rename_labels(task: Task, generator: torch.Generator) -> Task:
    """Rename the classes, in training and test alike, so that none keeps its name."""
    order = torch.randperm(task.classes, generator=generator)
    names = torch.empty_like(order)
    names[order] = order.roll(1)
    train, test = (
        Examples(part.x, names[part.y].masked_fill(~_real(part), 0), part.mask)
        for part in (task.train, task.test)
    )
    return Task(train, test, task.classes)


def rotate_features(task: Task, generator: torch.Generator) -> Task:
    """Rotate (or reflect) the features of training and test by one random orthogonal matrix."""
    square = (task.features, task.features)
    drawn = torch.randn(square, generator=generator, dtype=torch.float64)
    matrix, upper = torch.linalg.qr(drawn)
    matrix = (matrix * upper.diagonal().sign()).to(task.train.x.dtype)  # uniform over all of them
    train, test = (Examples(part.x @ matrix, part.y, part.mask) for part in (task.train, task.test))
    return Task(train, test, task.classes)


def chance(task: Task) -> float:
    """Return the accuracy of always answering the most frequent class of the training examples.

    This is the best accuracy without features. Of several equally frequent classes it is the mean, so
    that renaming does not change it.
    """
    train, test = (part.y[_real(part)] for part in (task.train, task.test))
    counts = train.bincount(minlength=task.classes)
    answers = counts == counts.max()
    return float(answers[test].double().mean() / answers.sum())


def _real(part: Examples) -> Tensor:
    return torch.ones_like(part.y, dtype=torch.bool) if part.mask is None else part.mask
