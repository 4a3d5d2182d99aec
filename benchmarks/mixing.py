"""One communication round, sparse against dense, on 3-regular graphs of growing size, in one run.

python benchmarks/mixing.py
"""

import time
from collections.abc import Callable

import torch

from fedsurf import Network, generator
from fedsurf.network import GraphConfig, make_graph


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]


def main() -> None:
    print(f"{torch.get_num_threads()} threads, 650 weights an agent")
    for agents in (100, 400, 1000, 2000, 4000):
        network = Network(make_graph(GraphConfig(degree=3), agents, generator(0, "graph")))
        operator = network.operator(torch.float32)
        sparse = operator if operator.is_sparse else operator.to_sparse()
        dense = operator.to_dense()
        weights = torch.randn(agents, 650, generator=generator(0, "weights"))
        times = {
            "mix": seconds(lambda: network.mix(weights)),  # noqa: B023
            "sparse": seconds(lambda: sparse @ weights),  # noqa: B023
            "dense": seconds(lambda: dense @ weights),  # noqa: B023
        }
        best = min(times["sparse"], times["dense"])
        print(
            f"{agents:5d} agents: dense/sparse {times['dense'] / times['sparse']:6.2f}, "
            f"mix/best of both {times['mix'] / best:5.2f}"
        )


if __name__ == "__main__":
    main()
