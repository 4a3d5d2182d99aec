"""Standardising the features: never, always, or only if they seem to have different units.

The pretrained optimizer runs for 20 rounds (or --rounds) on real and generated features in every one of the
three ways (`standardize` of `FederatedClassifier`): the studies' meta-test tasks, and scikit-learn's tables of
measurements, divided in each draw into training and test rows of eight agents. The table has the
pooled accuracy in percent, mean ± standard error over draws, and how far apart the spreads of features
are: the ratio of the 0.9 and 0.1 quantiles of their standard deviations.

    python benchmarks/units.py [--draws 10] [--rounds 20] [--cases mnist wine] [--features features.npz]
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor

import fedsurf
from fedsurf import STUDIES, SoftmaxHead, Study, generator
from fedsurf.common.statistics import standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.estimator.federations import federation_network
from fedsurf.evaluation.run import run_all
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.config import Scaling

WAYS: dict[str, Scaling] = {"False": "whole", "True": "features", '"auto"': "auto"}
TABLES: dict[str, Callable[..., object]] = {
    "breast cancer": load_breast_cancer,
    "wine": load_wine,
    "iris": load_iris,
}
AGENTS, TEST_SHARE = 8, 0.4

Draws = tuple[Sequence[Task], Network]


def of_study(name: str, draws: int, features: Path | None) -> Draws:
    """Return meta-test tasks of a study."""
    config = replace(STUDIES[name].config, tasks=draws)
    if features is not None:
        config = replace(config, data=replace(config.data, source=str(features), backbone="pca"))
    study = Study(config)
    return study.test_tasks(0), study.network(0)


def of_table(name: str, draws: int) -> Draws:
    """Deal the rows of a table to agents, in another way for each draw."""
    x, y = (torch.from_numpy(part) for part in TABLES[name](return_X_y=True))  # type: ignore[attr-defined]

    def dealt(rows: Tensor) -> Examples:
        each = len(rows) // AGENTS
        rows = rows[: each * AGENTS].reshape(AGENTS, each)
        return Examples(x[rows].double(), y[rows])

    tasks = []
    for number in range(draws):
        parts = train_test_split(
            torch.arange(len(y)), test_size=TEST_SHARE, stratify=y, random_state=number
        )
        tasks.append(Task(*map(dealt, parts), int(y.max()) + 1))
    return tasks, federation_network("regular", range(AGENTS), generator(0, "units"), degree=3)


def apart(task: Task) -> float:
    """Return the ratio of the large and the small deviations of a task's features."""
    deviations = task.train.pooled().x[0].double().std(0)
    deviations = deviations[deviations > 0]
    return float(deviations.quantile(0.9) / deviations.quantile(0.1))


def percent(values: Tensor) -> str:
    return f"{100 * values.mean():.1f} ± {100 * standard_error(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    studies = [
        "mnist",
        "digits",
        "synthetic-glyphs",
        "synthetic-genes",
        "synthetic-words",
        "synthetic-table",
    ]
    every = ["cifar10", *studies, *TABLES]
    parser.add_argument("--draws", type=int, default=10, help="tasks of each case")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of communication")
    parser.add_argument("--features", type=Path, help="an .npz file for the case cifar10")
    parser.add_argument("--cases", nargs="+", choices=every, metavar="CASE", default=every[1:])
    options = parser.parse_args()
    if options.draws < 2:
        parser.error(f"--draws: got {options.draws}, but it must be at least 2")
    if ("cifar10" in options.cases) and options.features is None:
        parser.error("--features: got nothing, but the case cifar10 needs a file")
    limit_threads(0)
    optimizer = fedsurf.load()
    print(
        f"| data | features | ratio of spreads | {' | '.join(WAYS)} |\n|{' --- |' * (3 + len(WAYS))}"
    )
    for case in options.cases:
        if case in TABLES:
            tasks, network = of_table(case, options.draws)
        else:
            own = options.features if case == "cifar10" else None
            tasks, network = of_study(case, options.draws, own)
        head = SoftmaxHead(tasks[0].features, tasks[0].classes)
        cells = []
        for scaling in WAYS.values():
            algorithm = optimizer.on(head, options.rounds, scaling)
            runs = run_all(algorithm, tasks, network, algorithm.steps)
            cells.append(percent(runs.pooled_accuracy[:, -1].double()))
        ratio = apart(tasks[0])
        shown = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
        print(f"| {case} | {head.features} | {shown} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
