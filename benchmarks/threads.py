"""A fit with one thread for each core against a fit with one thread, on an idle and on a busy machine.

The busy machine runs one process for each core that computes in a loop. Fits alternate; the table has the
ratio of medians.

    python benchmarks/threads.py [--repeats 3]
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Process

import numpy as np
from joblib import cpu_count
from sklearn.datasets import load_digits

from fedsurf import FederatedClassifier
from fedsurf.estimator.federations import Array


def circle() -> None:
    """Keep a core busy."""
    while True:
        pass


def made(rows: int, features: int, classes: int = 10) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=rows)
    means = 0.3 * random.normal(size=(classes, features))
    return (means[labels] + random.normal(size=(rows, features))).astype("float32"), labels


CASES = {
    "digits, 30 agents": (load_digits(return_X_y=True), 30),
    "4,500 rows, 512 features, 100 agents": (made(4500, 512), 100),
    "50,000 rows, 128 features, 50 agents": (made(50_000, 128), 50),
}


@contextmanager
def others(cores: int) -> Iterator[None]:
    """Keep a number of cores busy."""
    busy = [Process(target=circle, daemon=True) for _ in range(cores)]
    for one in busy:
        one.start()
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.join()


def ratio(data: tuple[Array, Array], agents: int, cores: int, repeats: int) -> tuple[float, float]:
    """Return how long a fit takes with one thread, and how many times as long with all cores."""
    taken: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(repeats):
        for n_jobs, times in taken.items():
            start = time.perf_counter()
            FederatedClassifier(n_agents=agents, n_jobs=n_jobs).fit(*data)
            times.append(time.perf_counter() - start)
    one, every = (statistics.median(times) for times in taken.values())
    return one, every / one


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cores = cpu_count()
    if cores < 2:
        print("one core only: there is nothing to compare")
        return
    print(
        f"| data | with {cores} threads, idle machine | next to {cores} busy processes |\n| --- | ---: | ---: |"
    )
    for case, (data, agents) in CASES.items():
        cells = []
        for busy in (0, cores):
            with others(busy):
                one, times = ratio(data, agents, cores, options.repeats)
            cells.append(f"{times:.1f} times {one:.1f} s")
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
