"""A fit of agents of very different size against one of agents of one size, with the same rows.

The sizes of the agents fall as 1, 1/2, 1/3, …, so that the largest of 100 holds a fifth of all rows. Agents
work in groups of similar size, compared with the time where all are padded to the largest.

    python benchmarks/sizes.py [--rows 20000] [--agents 100] [--features 64]
"""

import argparse
import time

import numpy as np

from fedsurf import FederatedClassifier
from fedsurf.estimator.federations import Array
from fedsurf.tasks import groups

CLASSES = 10


def drawn(rows: int, agents: int, features: int) -> tuple[Array, Array, Array]:
    """Draw features, labels and whose each row is; every agent has one at least."""
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, agents + 1)
    owner = random.choice(agents, size=rows, p=share / share.sum())
    owner[:agents] = np.arange(agents)
    labels = random.integers(CLASSES, size=rows)
    means = 0.3 * random.normal(size=(CLASSES, features))
    return means[labels] + random.normal(size=(rows, features)), labels, owner


def seconds(x: Array, y: Array, owner: Array) -> float:
    """Return the processor time of a fit."""
    start = time.process_time()
    FederatedClassifier().fit(x, y, agents=owner)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--features", type=int, default=64)
    options = parser.parse_args()
    x, y, owner = drawn(options.rows, options.agents, options.features)
    seconds(x[:500], y[:500], owner[:500])  # what is made once
    equal = seconds(x, y, np.arange(len(x)) % options.agents)
    unequal = seconds(x, y, owner)
    groups.MAX_ORDINARY_SIZE = x.size * options.agents  # more than any problem has
    padded = seconds(x, y, owner)
    largest = int(np.bincount(owner).max())
    print(
        f"{options.rows:,} rows of {options.features} features, {options.agents} agents, the largest "
        f"with {largest:,} rows\n"
        f"in groups {unequal / equal:.1f} times as long as with agents of one size, "
        f"all padded to the largest {padded / equal:.1f} times"
    )


if __name__ == "__main__":
    main()
