"""One round of every method against the bare matrix products that it consists of, in one run.

100 agents, 5,130 parameters each (512 features, 10 classes), 45 examples an agent. The products are
counted while the method takes a step: two for each gradient (the scores, and the gradient from the
residuals), one for each mixing. Everything else (softmax, drawing mini-batches, momentum, corrections)
makes the ratio exceed 1. Closed forms also solve linear systems at every agent, which are not
among the products.

    python benchmarks/rounds.py [--features 512] [--agents 100] [--repeats 7]
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedsurf import NetworkConfig, SoftmaxHead, Start, Streams, TaskConfig, generator, make_network
from fedsurf.evaluation.methods import METHODS
from fedsurf.network import GraphConfig
from fedsurf.tasks.distribution import TaskDistribution
from fedsurf.tasks.task import Examples


class Counting(SoftmaxHead):
    """A softmax head that remembers the sizes of the gradients that it was asked for."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.asked: list[tuple[int, int]] = []

    def gradient(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the gradient, and remember how large it was."""
        self.asked.append((len(weights), examples.y.shape[1]))
        return super().gradient(weights, examples)


def seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    features, agents = options.features, options.agents
    x = torch.randn(agents * 80, features, generator=generator(0, "x"))
    y = torch.randint(10, (agents * 80,), generator=generator(0, "y"))
    task = TaskDistribution(x, y, 10, TaskConfig(agents=agents)).draw(generator(0, "task"))
    graph = make_network(NetworkConfig(shift="metropolis"), agents, generator(0, "graph"))
    star = NetworkConfig(graph=GraphConfig(kind="star"), reporting=max(1, agents // 10))
    server = make_network(star, agents, generator(0, "graph"))
    print(
        f"{agents} agents, {(features + 1) * 10} parameters each, {torch.get_num_threads()} threads"
    )
    for method in METHODS.values():
        if method.name == "local-only":
            print(f"{method.title:20s} takes no rounds")
            continue
        network = server if method.runs_on == "server" else graph
        model = Counting(features, 10)
        algorithm = method.make(model, Start(), method.defaults)
        streams = Streams(0, network.ids)
        state = algorithm.init(task, network, streams.at("start"))
        state = algorithm.step(state, task, network, streams.at("step", 0))
        model.asked.clear()
        mixed: list[Tensor] = []
        original = network.mix

        def recording(values: Tensor, *rest: object, **named: object) -> Tensor:
            mixed.append(values.flatten(1).clone())  # noqa: B023
            return original(values, *rest, **named)  # noqa: B023

        network.mix = recording  # type: ignore[method-assign,assignment]
        algorithm.step(state, task, network, streams.at("step", 1))
        network.mix = original  # type: ignore[method-assign]
        operator = network.operator(torch.float32)
        products = [
            (torch.randn(n, m, features), torch.randn(n, features, 10), torch.randn(n, m, 10))
            for n, m in model.asked
        ]

        def bare() -> None:
            for inputs, weights, residual in products:  # noqa: B023
                torch.bmm(inputs, weights)
                torch.bmm(inputs.transpose(1, 2), residual)
            for values in mixed:  # noqa: B023
                operator @ values  # noqa: B023

        if not products and not mixed:
            continue

        def again() -> None:
            algorithm.step(state, task, network, streams.at("step", 1))  # noqa: B023

        step = seconds(again, options.repeats)
        floor = seconds(bare, options.repeats)
        print(
            f"{method.title:20s} {1000 * step:8.2f} ms a round, {len(products):2d} gradients and "
            f"{len(mixed)} mixings {1000 * floor:8.2f} ms, ratio {step / floor:6.2f}"
        )


if __name__ == "__main__":
    main()
