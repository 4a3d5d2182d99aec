"""One meta-training step of U-DGD against the bare matrix products in it, in one run.

The products are those of the perceptrons: one forward and two backward (for the input and for the
matrix) at each layer, and Adam's pass over as many numbers. Everything else (filters, gradients for
the constraints, drawing the task and its mini-batches) is what the ratio shows above 1.

    python benchmarks/meta_training_step.py [--features 64] [--steps 20]
"""

import argparse
import time
from collections.abc import Callable

import torch

from fedsurf import (
    UDGD,
    FixedProblems,
    MetaTasks,
    MetaTraining,
    NetworkConfig,
    SoftmaxHead,
    SurfConfig,
    TaskConfig,
    TaskDistribution,
    UDGDConfig,
    generator,
    make_network,
)


def seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    model = SoftmaxHead(options.features, options.classes)
    shape = UDGDConfig()
    optimizer = UDGD(model, shape, generator(0, "parameters"))
    config = TaskConfig(agents=options.agents)
    pool_x = torch.randn(20_000, options.features, generator=generator(0, "x"))
    pool_y = torch.randint(options.classes, (20_000,), generator=generator(0, "y"))
    tasks = TaskDistribution(pool_x, pool_y, options.classes, config)
    network = make_network(NetworkConfig(), options.agents, generator(0, "graph"))
    surf = SurfConfig()
    problems = FixedProblems(MetaTasks(tasks, tasks, tasks), network, surf.tasks, seed=0)
    training = MetaTraining(optimizer, problems, surf, seed=0)
    step = seconds(training.step, options.steps)

    rows, columns = optimizer.layers[0].perceptron.matrix.shape
    matrix = torch.zeros(rows, columns, requires_grad=True)
    matrix.grad = torch.zeros_like(matrix)
    inputs, outputs = torch.randn(options.agents, columns), torch.randn(options.agents, rows)
    adam = torch.optim.Adam([matrix], fused=True)

    def products() -> None:
        with torch.no_grad():
            for _ in range(shape.layers):
                inputs @ matrix.T
                outputs @ matrix
                outputs.T @ inputs
                adam.step()

    bare = seconds(products, options.steps)
    parameters = sum(value.numel() for value in optimizer.parameters())
    print(f"{parameters:,} parameters, {torch.get_num_threads()} threads")
    print(f"one step {1000 * step:.1f} ms, its bare products and Adam {1000 * bare:.1f} ms")
    print(f"ratio {step / bare:.2f}")


if __name__ == "__main__":
    main()
