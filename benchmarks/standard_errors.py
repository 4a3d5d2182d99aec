"""How much larger the error over new data is than the standard error over tasks, which share their examples.

The test part of a study's data is split at random into halves, many times. The tasks drawn from each half
have half as many agents as the study's, so that they share as much of it as the study's tasks do of the
whole; ridge regression and class means are fitted to their training examples in one place and scored on
their test examples. If the standard error were the whole error, the means of two halves would differ by about
that much: the table has the root mean square of the differences in units of it, for both
methods, and for the difference of the two on the same tasks.

    python benchmarks/standard_errors.py [--study digits] [--splits 40] [--tasks 30 120]
"""

import argparse
from dataclasses import replace

import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from fedsurf import STUDIES, Study, generator
from fedsurf.common.statistics import standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.tasks.distribution import TaskDistribution
from fedsurf.tasks.task import Task

METHODS = {"ridge regression": RidgeClassifier, "class means": NearestCentroid}


def accuracies(task: Task) -> list[float]:
    """Return the accuracy of each method on one task, with all of its examples in one place."""
    train, test = task.train.pooled(), task.test.pooled()
    return [
        method().fit(train.x[0].numpy(), train.y[0].numpy()).score(test.x[0].numpy(), test.y[0])
        for method in METHODS.values()
    ]


def scored(half: TaskDistribution, tasks: int, *path: str | int) -> Tensor:
    """Return the methods' accuracies and their difference on tasks of one half, `[tasks, methods + 1]`."""
    drawn = [half.draw(generator(0, "half", *path, number)) for number in range(tasks)]
    found = torch.tensor([accuracies(task) for task in drawn], dtype=torch.float64)
    return torch.cat([found, found[:, :1] - found[:, 1:]], 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--study", choices=STUDIES, default="digits", metavar="STUDY")
    parser.add_argument("--splits", type=int, default=40, help="how often the data are split")
    parser.add_argument("--tasks", type=int, nargs="+", default=[30, 120], help="of each half")
    options = parser.parse_args()
    if options.splits < 1 or min(options.tasks) < 2:
        parser.error("--splits must be at least 1, and --tasks at least 2")
    limit_threads(0)
    study = Study(STUDIES[options.study].config)
    x, y, classes = study.features.test_x, study.features.test_y, study.features.classes
    config = replace(study.config.task, agents=study.config.task.agents // 2)
    print(f"| tasks | {' | '.join(METHODS)} | their difference |\n|{' --- |' * (2 + len(METHODS))}")
    for tasks in options.tasks:
        ratios = []
        for split in range(options.splits):
            order = torch.randperm(len(y), generator=generator(0, "split", split))
            halves = [
                scored(TaskDistribution(x[rows], y[rows], classes, config), tasks, split, side)
                for side, rows in enumerate(order.chunk(2))
            ]
            apart = halves[0].mean(0) - halves[1].mean(0)
            told = sum(standard_error(half).square() for half in halves)
            ratios.append(apart.square() / told)
        found = torch.stack(ratios).mean(0).sqrt()
        print(f"| {tasks} | {' | '.join(f'{one:.1f}' for one in found.tolist())} |", flush=True)


if __name__ == "__main__":
    main()
