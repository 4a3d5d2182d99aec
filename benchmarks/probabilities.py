"""The probabilities of the pretrained optimizer, compared with cross-validated centralised training.

Real and generated tables, some rows of which are dealt at random to ten agents over a 3-regular graph; the
optimizer runs for 20 rounds, and the table has the cross-entropy of its consensus head on the other rows:
without the learned factor of its logits, with it, and with the best factor for these rows, which is not
known in practice; and that of logistic regression on all training rows in one place, standardised, with
its penalty chosen by five-fold cross-validation. Each is the mean over draws of the rows,
and of the problem where it is generated.

    python benchmarks/probabilities.py [--draws 5]
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedsurf
from fedsurf import FederatedClassifier
from fedsurf.common.threads import limit_threads
from fedsurf.surf.losses import best_factor

AGENTS = 10
Rows = tuple[np.ndarray, np.ndarray]
Draw = Callable[[int], Rows]


def generated(rare: float) -> Draw:
    """Return what draws 3,000 rows of two classes, of which one has this share."""

    def draw(seed: int) -> Rows:
        x, y = make_classification(
            3000, 15, n_informative=8, weights=[1 - rare], flip_y=0.01, random_state=seed
        )
        return x, y

    return draw


def gaussians(seed: int) -> Rows:
    """Draw 3,000 rows of two round classes with 100 features."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=3000)
    means = random.normal(size=(2, 100)) * 4 / np.sqrt(200)
    return means[y] + random.normal(size=(3000, 100)), y


PROBLEMS: dict[str, tuple[Draw, tuple[int, ...]]] = {
    "digits": (lambda _: load_digits(return_X_y=True), (200, 1000)),
    "breast cancer": (lambda _: load_breast_cancer(return_X_y=True), (100, 400)),
    "wine": (lambda _: load_wine(return_X_y=True), (100,)),
    "iris": (lambda _: load_iris(return_X_y=True), (100,)),
    "round classes": (gaussians, (200, 1000)),
    "generated": (generated(0.5), (200, 1000)),
    "generated, one class 10 %": (generated(0.1), (200, 1000)),
    "generated, one class 3 %": (generated(0.03), (200, 1000)),
}
"""The function that draws the rows, and the numbers of training rows that are tried."""


def judged(x: np.ndarray, y: np.ndarray, rows: int, seed: int) -> list[float]:
    """Return the losses of a draw: without the factor, with it, with the best one, centralised."""
    x, x_test, y, y_test = train_test_split(x, y, train_size=rows, stratify=y, random_state=seed)
    found = []
    for sure in (False, True):
        optimizer = fedsurf.load()
        if not sure:
            optimizer.confidence = None
        model = FederatedClassifier(optimizer=optimizer, n_agents=AGENTS, random_state=seed)
        found.append(model.fit(x, y).predict_proba(x_test))
    logits = torch.tensor(found[0]).clamp(min=1e-12).log()[None]
    factor = best_factor(logits, torch.tensor(y_test)[None])
    found.append((logits * factor).softmax(2)[0].numpy())
    penalties = {"Cs": np.logspace(-4, 2, 13), "cv": 5, "max_iter": 1000}
    central = LogisticRegressionCV(scoring="neg_log_loss", **penalties)
    found.append(make_pipeline(StandardScaler(), central).fit(x, y).predict_proba(x_test))
    return [float(log_loss(y_test, one)) for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5, help="draws of the rows")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws: got {options.draws}, but it must be at least 1")
    limit_threads(0)
    warnings.simplefilter("ignore", FutureWarning)  # scikit-learn's, about its own defaults
    print("| data | rows | without the factor | with it | best factor | centralised |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (draw, sizes) in PROBLEMS.items():
        for rows in sizes:
            losses = np.mean([judged(*draw(seed), rows, seed) for seed in range(options.draws)], 0)
            cells = " | ".join(f"{loss:.3f}" for loss in losses)
            print(f"| {name} | {rows:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
