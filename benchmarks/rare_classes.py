"""Classes of very different size: the pretrained optimizer compared with centralised training.

Generated problems with two classes, one of which is rare, or twenty whose sizes fall as 1/k^1.2, dealt to 20
agents at random or so that an agent holds few classes (Dirichlet 0.3). The pretrained optimizer runs for
20 rounds over a 3-regular graph, with its damping as learned, and with less of it for rare classes, as in
`FederatedClassifier`. The table has the accuracy of the consensus head on test examples in percent
and its cross-entropy, each the mean over draws, and those of logistic regression on all data.

    python benchmarks/rare_classes.py [--draws 5]
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from torch import Tensor

import fedsurf
from fedsurf import SoftmaxHead, Streams, generator
from fedsurf.common.threads import limit_threads
from fedsurf.estimator.federations import federation_network
from fedsurf.tasks.task import Examples, Task

AGENTS, ROUNDS, ROWS, FEATURES, TEST_SHARE = 20, 20, 4000, 20, 0.4
RARE = (0.5, 0.1, 0.03, 0.01)
CLASSES, FALL = 20, 1.2


@dataclass(frozen=True)
class Draw:
    """Training and test rows."""

    x: np.ndarray
    x_test: np.ndarray
    y: np.ndarray
    y_test: np.ndarray


def two_classes(rare: float, seed: int) -> Draw:
    """Draw rows of two classes, of which one has this share."""
    x, y = make_classification(
        ROWS,
        FEATURES,
        n_informative=8,
        n_redundant=4,
        weights=[1 - rare],
        flip_y=0.005,
        random_state=seed,
    )
    return Draw(*train_test_split(x, y, test_size=TEST_SHARE, stratify=y, random_state=seed))


def many_classes(seed: int) -> Draw:
    """Draw rows of Gaussian classes with a long tail."""
    random = np.random.default_rng(seed)
    share = 1 / np.arange(1, CLASSES + 1) ** FALL
    y = random.choice(CLASSES, size=ROWS, p=share / share.sum())
    x = 0.7 * random.normal(size=(CLASSES, FEATURES))[y] + random.normal(size=(ROWS, FEATURES))
    return Draw(*train_test_split(x, y, test_size=TEST_SHARE, stratify=y, random_state=seed))


def dealt(draw: Draw, alpha: float | None, seed: int) -> Task:
    """Deal the training rows to agents: at random, or each class by shares from Dirichlet(α)."""
    random = np.random.default_rng(seed)
    place = np.arange(len(draw.y))
    owner = random.permutation(place % AGENTS)
    if alpha is not None:
        shares = random.dirichlet(np.full(AGENTS, alpha), size=draw.y.max() + 1)
        drawn = [random.choice(AGENTS, p=shares[label]) for label in draw.y]
        owner = np.where(place < AGENTS, place, drawn)  # every agent has an example
    own = [owner == agent for agent in range(AGENTS)]
    part = Examples.pad(
        [torch.tensor(draw.x[rows]) for rows in own], [torch.tensor(draw.y[rows]) for rows in own]
    )
    return Task(part, part, int(draw.y.max()) + 1)


@torch.no_grad()
def trained(task: Task, *, ease_rare: bool) -> Tensor:
    """Return the consensus head."""
    network = federation_network("regular", range(AGENTS), generator(0, "rare"), degree=3)
    head = SoftmaxHead(task.features, task.classes)
    algorithm = fedsurf.load().on(head, ROUNDS, ease_rare=ease_rare)
    streams = Streams(0, network.ids, "rare")
    state = algorithm.init(task, network, streams.at("start"))
    for step in range(algorithm.steps):
        state = algorithm.step(state, task, network, streams.at("step", step))
    return state.weights.mean(0, keepdim=True)


def judged(draw: Draw, alpha: float | None, seed: int) -> list[tuple[float, float]]:
    """Return accuracy and loss of three ways to train."""
    task, found = dealt(draw, alpha, seed), []
    head, x_test = SoftmaxHead(task.features, task.classes), torch.tensor(draw.x_test)[None]
    for ease_rare in (False, True):
        logits = head.logits(trained(task, ease_rare=ease_rare), x_test)[0]
        found.append(logits.softmax(1).numpy())
    found.append(LogisticRegression(max_iter=1000).fit(draw.x, draw.y).predict_proba(draw.x_test))
    every = np.arange(task.classes)
    return [
        (float(np.mean(one.argmax(1) == draw.y_test)), log_loss(draw.y_test, one, labels=every))
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5, help="draws of each problem")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws: got {options.draws}, but it must be at least 1")
    limit_threads(0)
    headings = ["classes", "agents' labels", "as learned", "rare classes eased"]
    headings.append("all data in one place")
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for rare in (*RARE, None):
        for alpha in (None, 0.3):
            rows = [
                judged(many_classes(seed) if rare is None else two_classes(rare, seed), alpha, seed)
                for seed in range(options.draws)
            ]
            means = np.mean(rows, 0)
            cells = [f"{100 * accuracy:.1f}, {loss:.3f}" for accuracy, loss in means]
            name = f"{CLASSES}, long tail" if rare is None else f"2, one with {100 * rare:g} %"
            labels = "even" if alpha is None else f"Dirichlet {alpha}"
            print(f"| {name} | {labels} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
