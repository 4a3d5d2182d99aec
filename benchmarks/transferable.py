"""The transferable layer against the bare linear algebra in it, and against the paper's layer.

A run of 20 rounds over 100 agents with 512 features, 45 examples each and 10 classes, on a 3-regular
graph. Its products and decompositions are recorded while it runs, and repeated on the same
numbers with nothing in between, into preallocated tensors. Everything else (softmax, the
perceptrons, sums, memory) makes the ratio exceed 1.

With --steps, also one meta-training step of it at that size, as `fedsurf pretrain` takes it, in turn with
two of the paper's layer by the same trainer: with the same settings, so that only the layers differ (the
loss and the gradients on all agents' examples, and the whole gradient clipped); and with the paper's
settings, a different and cheaper step, with the loss on an agent's own test examples and gradients
on mini-batches. U-DGD has 531 million parameters there and needs about 9 GB.

Everything runs on one thread, as `fedsurf pretrain` does; OMP_NUM_THREADS sets another number.

    python benchmarks/transferable.py [--features 512] [--agents 100] [--repeats 7] [--steps 3]
"""

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedsurf import (
    UDGD,
    NetworkConfig,
    SoftmaxHead,
    Streams,
    TaskConfig,
    Transferable,
    generator,
    make_network,
)
from fedsurf.common.threads import limit_threads
from fedsurf.network import Network
from fedsurf.pretrained.config import PretrainConfig
from fedsurf.surf import FixedProblems, MetaTraining, SurfConfig
from fedsurf.tasks.distribution import MetaTasks, TaskDistribution
from fedsurf.unrolled import TransferableConfig, UDGDConfig

ALGEBRA = {"mm", "bmm", "addmm", "baddbmm", "baddbmm_", "_linalg_eigh", "mv", "dot", "_sparse_mm"}
"""Names in torch of the operations that count as linear algebra."""
OURS = 3
"""How many of the short steps are timed before each of the long ones."""


class Writing(TorchDispatchMode):
    """Writes down every product and decomposition, with what went in and what came out."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what was asked, and remember it if it is linear algebra."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ALGEBRA:
            self.done.append((func, args, kwargs or {}, result))
        return result

    def again(self) -> Callable[[], None]:
        """Return what does all of it again, into the tensors that hold the results."""
        calls = []
        for func, args, named, result in self.done:
            packet = func.overloadpacket
            sparse = any(isinstance(one, Tensor) and one.is_sparse for one in args)
            if not sparse and isinstance(result, Tensor) and "out" in packet.overloads():
                calls.append((packet.out, args, {**named, "out": result}))
            else:
                calls.append((func, args, named))

        def bare() -> None:
            for call, args, named in calls:
                call(*args, **named)

        return bare


def seconds(*works: Callable[[], object], repeats: int) -> list[float]:
    """Return the median time of each, measured in turn, so that a busy machine disturbs all alike."""
    taken: list[list[float]] = [[] for _ in works]
    for repeat in range(repeats + 1):
        for work, times in zip(works, taken, strict=True):
            start = time.perf_counter()
            work()
            if repeat:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def distribution(features: int, classes: int, agents: int) -> TaskDistribution:
    x = torch.randn(agents * 80, features, generator=generator(0, "x"))
    y = torch.randint(classes, (agents * 80,), generator=generator(0, "y"))
    x = x + torch.randn(classes, features, generator=generator(0, "means"))[y] / 10
    # As many test examples as in pretraining, about 500 in all.
    config = TaskConfig(agents=agents, test_examples=max(1, 500 // agents))
    return TaskDistribution(x, y, classes, config)


@torch.no_grad()
def one_run(tasks: TaskDistribution, network: Network, model: SoftmaxHead, repeats: int) -> None:
    task = tasks.draw(generator(0, "task"))
    optimizer = Transferable(PretrainConfig().optimizer, generator(0, "parameters"))
    algorithm = optimizer.on(model, rounds=20)
    streams = Streams(0, network.ids, "run")

    def run() -> None:
        network.reset()
        state = algorithm.init(task, network, streams.at("start"))
        for step in range(algorithm.steps):
            state = algorithm.step(state, task, network, streams.at("step", step))

    run()  # what is found once for a network is no part of a run
    with Writing() as writing:
        run()
    whole, bare = seconds(run, writing.again(), repeats=repeats)
    counts = Counter(func.overloadpacket.__name__ for func, *_ in writing.done)
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    print(f"a run of {network.rounds} rounds {1000 * whole:.0f} ms")
    print(f"its linear algebra ({kinds}) {1000 * bare:.0f} ms")
    print(f"ratio {whole / bare:.2f}")


def one_step(tasks: TaskDistribution, network: Network, model: SoftmaxHead, steps: int) -> None:
    every = MetaTasks(tasks, tasks, tasks)

    def training(optimizer: UDGD | Transferable, surf: SurfConfig) -> MetaTraining:
        problems = FixedProblems(every, network, surf.tasks, seed=0)
        return MetaTraining(optimizer, problems, surf, seed=0)

    transferable = Transferable(TransferableConfig(), generator(0, "parameters"))
    recipe = PretrainConfig().surf
    own = training(transferable, recipe).step
    # A layer that starts at random has losses that pretraining would skip.
    same = replace(recipe, skip_above=None)
    for settings, surf in (("the same settings", same), ("the paper's settings", SurfConfig())):
        gc.collect()
        paper = UDGD(model, UDGDConfig(), generator(0, "parameters"))
        *ours, theirs = seconds(*[own] * OURS, training(paper, surf).step, repeats=steps)
        taken = statistics.median(ours)
        print(_said("transferable", transferable, taken))
        print(_said(f"the paper's layer with {settings}", paper, theirs))
        print(f"ratio {theirs / taken:.1f}")


def _said(name: str, optimizer: UDGD | Transferable, taken: float) -> str:
    numbers = sum(value.numel() for value in optimizer.parameters())
    return f"a meta-training step, {name}: {numbers:,} parameters, {1000 * taken:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=0, help="meta-training steps to time")
    options = parser.parse_args()
    limit_threads(0)
    tasks = distribution(options.features, options.classes, options.agents)
    config = NetworkConfig(shift="metropolis")
    network = make_network(config, options.agents, generator(0, "graph"))
    model = SoftmaxHead(options.features, options.classes)
    print(
        f"{options.agents} agents, {options.features} features, {options.classes} classes, "
        f"45 examples an agent, {torch.get_num_threads()} threads"
    )
    one_run(tasks, network, model, options.repeats)
    gc.collect()
    if options.steps:
        one_step(tasks, network, model, options.steps)


if __name__ == "__main__":
    main()
