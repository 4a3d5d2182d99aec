"""Agents with very different numbers of rows: heads mixed with equal weights, or weighted.

Half of the rows of a table are test rows. Of the others, a few agents hold one row or ten each, and one agent
all the rest; or each of eight agents holds half as many as the one before. The pretrained optimizer runs for
20 rounds as `FederatedClassifier` uses it, once with equal weights, once weighted by
the square roots of the numbers of rows, as in `FederatedClassifier`. The table has the accuracy of
the agents' heads on the test rows in percent, averaged over the agents, mean ± standard error over draws, and
that of logistic regression on all training rows in one place, standardised.

    python benchmarks/unequal_agents.py [--draws 5] [--graph regular]
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedsurf
from fedsurf import SoftmaxHead, generator
from fedsurf.common.statistics import standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.estimator.federations import federation_network
from fedsurf.evaluation.run import run
from fedsurf.tasks.task import Examples, Task

ROUNDS = 20
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]
TABLES: dict[str, Callable[[], Rows]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "iris": lambda: load_iris(return_X_y=True),
    "generated": lambda: make_classification(
        4000, 20, n_informative=8, n_classes=3, random_state=1
    ),
}
SIZES: dict[str, Callable[[int], list[int]]] = {
    "one large, 19 of one row": lambda rows: [rows - 19] + [1] * 19,
    "one large, 5 of one row": lambda rows: [rows - 5] + [1] * 5,
    "one large, 7 of ten rows": lambda rows: [rows - 70] + [10] * 7 if rows > 140 else [],
    "each half of the one before": lambda rows: _halves(rows, 8),
}


def _halves(rows: int, agents: int) -> list[int]:
    sizes = [max(1, rows >> (1 + place)) for place in range(agents)]
    return [sizes[0] + rows - sum(sizes), *sizes[1:]]


def dealt(x: torch.Tensor, y: torch.Tensor, sizes: list[int]) -> Examples:
    """Give each agent its number of rows, one after the other."""
    return Examples.pad(list(x.split(sizes)), list(y.split(sizes)))


def accuracies(rows: Rows, sizes: Callable[[int], list[int]], seed: int, graph: str) -> list[float]:
    """Return the accuracy with equal weights, with weighted agents, and of logistic regression."""
    x, x_test, y, y_test = train_test_split(
        *rows, test_size=0.5, stratify=rows[1], random_state=seed
    )
    held = sizes(len(y))
    test = Examples(
        torch.from_numpy(x_test).expand(len(held), -1, -1),
        torch.from_numpy(y_test).expand(len(held), -1),
    )
    task = Task(dealt(torch.from_numpy(x), torch.from_numpy(y), held), test, int(rows[1].max()) + 1)
    network = federation_network(graph, range(len(held)), generator(seed, "unequal"), degree=3)
    head, found = SoftmaxHead(task.features, task.classes), []
    for weigh_agents in (False, True):
        algorithm = fedsurf.load().on(
            head, ROUNDS, "auto", ease_rare=True, weigh_agents=weigh_agents
        )
        ends = run(algorithm, task, network, algorithm.steps, path=(seed,))
        found.append(float(ends.pooled_accuracy[-1]))
    central = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    return [*found, float(central.score(x_test, y_test))]


def percent(values: torch.Tensor) -> str:
    return f"{100 * values.mean():.1f} ± {100 * standard_error(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5, help="divisions of the rows")
    parser.add_argument("--graph", default="regular", help="who talks to whom; star for a server")
    options = parser.parse_args()
    if options.draws < 2:
        parser.error(f"--draws: got {options.draws}, but it must be at least 2")
    limit_threads(0)
    print(
        "| data | agents | equal | weighted | logistic regression |\n| --- | --- | ---: | ---: | ---: |"
    )
    for name, load in TABLES.items():
        rows = load()
        for about, sizes in SIZES.items():
            if not sizes(len(rows[1]) // 2):
                continue
            seeds = range(options.draws)
            found = torch.tensor([accuracies(rows, sizes, seed, options.graph) for seed in seeds])
            cells = [percent(column) for column in found.double().T]
            print(f"| {name} | {about} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
