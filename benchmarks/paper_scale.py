"""One meta-training step of U-DGD at the paper's scale against the bare linear algebra in it, and its memory.

The bare algebra is the products of the perceptrons, one forward and two backward (for the weights and for
the matrix) at each layer, into preallocated tensors, and one pass of torch's fused Adam over all
parameters. Everything else (filters, constraints and their second
derivatives, drawing the task and its mini-batches, memory) makes the ratio exceed 1.

The step and its bare algebra run in one process each, so that the peak memory is the step's alone, and in
turn, so that a busy machine disturbs both alike. The step's process needs 7 GB, the other one 1 GB.

    python benchmarks/paper_scale.py [--features 512] [--agents 100] [--repeats 3]
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch

from fedsurf import UDGD, NetworkConfig, SoftmaxHead, TaskConfig, generator, make_network
from fedsurf.surf import FixedProblems, MetaTraining, SurfConfig
from fedsurf.tasks.distribution import MetaTasks, TaskDistribution
from fedsurf.unrolled import UDGDConfig


def matrix_shape(options: argparse.Namespace) -> tuple[int, int]:
    """Return rows and columns of a perceptron's matrix."""
    rows = (options.features + 1) * options.classes
    return rows, rows + UDGDConfig().batch_size * (options.features + options.classes)


def whole_step(options: argparse.Namespace) -> Callable[[], object]:
    """Return one step of meta-training, as `fedsurf train paper-regular` takes it."""
    examples = 80 * options.agents
    y = torch.randint(options.classes, (examples,), generator=generator(0, "y"))
    means = torch.randn(options.classes, options.features, generator=generator(0, "means")) / 10
    x = torch.randn(examples, options.features, generator=generator(0, "x")) + means[y]
    tasks = TaskDistribution(x, y, options.classes, TaskConfig(agents=options.agents))
    network = make_network(NetworkConfig(), options.agents, generator(0, "graph"))
    head = SoftmaxHead(options.features, options.classes)
    optimizer = UDGD(head, UDGDConfig(layers=options.layers), generator(0, "parameters"))
    # Slow, so that numbers stay ordinary ones on data without meaning. The time is the same.
    surf = SurfConfig(learning_rate=1e-5)
    problems = FixedProblems(MetaTasks(tasks, tasks, tasks), network, surf.tasks, seed=0)
    return MetaTraining(optimizer, problems, surf, seed=0).step


def bare_algebra(options: argparse.Namespace) -> Callable[[], object]:
    """Return the products and the updates of such a step, on the tensors of one layer again and again.

    One layer's matrix, gradient and moments are larger than any cache, as all of them are.
    """
    rows, columns = matrix_shape(options)
    random = generator(0, "bare")
    matrix = torch.nn.Parameter(torch.randn(rows, columns, generator=random) / columns)
    matrix.grad = torch.zeros_like(matrix)
    offset = torch.zeros(rows)
    inputs = torch.randn(options.agents, columns, generator=random)
    slopes = torch.randn(options.agents, rows, generator=random)
    outputs, for_weights = torch.empty_like(slopes), torch.empty_like(slopes)
    adam = torch.optim.Adam([matrix], lr=1e-5, fused=True)

    @torch.no_grad()
    def again() -> None:
        for layer in range(options.layers):
            torch.addmm(offset, inputs, matrix.T, out=outputs)
            if layer:  # the first layer's weights are drawn, not learned
                torch.mm(slopes, matrix[:, :rows], out=for_weights)
            torch.mm(slopes.T, inputs, out=matrix.grad)
            adam.step()

    return again


def serve(
    part: Callable[[argparse.Namespace], Callable[[], object]],
    options: argparse.Namespace,
    calls: Connection,
) -> None:
    """Do the part's work whenever called.

    Answers with its seconds by the clock and of the processors, and this process's peak so far.
    """
    work = part(options)
    while calls.recv():
        start, busy = time.perf_counter(), time.process_time()
        work()
        taken = time.perf_counter() - start, time.process_time() - busy
        calls.send((taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def measure(options: argparse.Namespace) -> tuple[list[tuple[float, float]], int]:
    """Return the median seconds of the step and of its bare algebra, and the step's peak in bytes."""
    context = multiprocessing.get_context("spawn")
    processes, ends = [], []
    for part in (whole_step, bare_algebra):
        here, there = context.Pipe()
        processes.append(context.Process(target=serve, args=(part, options, there), daemon=True))
        processes[-1].start()
        there.close()  # so that a process that dies ends the waiting for it
        ends.append(here)
    taken: list[list[tuple[float, float]]] = [[], []]
    peak = 0
    for repeat in range(options.repeats + 1):
        for number, end in enumerate(ends):
            end.send(True)
            seconds, resident = end.recv()
            if repeat:  # the first time, memory is touched for the first time
                taken[number].append(seconds)
            if number == 0:
                peak = resident
    for end, process in zip(ends, processes, strict=True):
        end.send(False)
        process.join()
    medians = []
    for times in taken:
        by_clock, busy = zip(*times, strict=True)
        medians.append((middle(by_clock), middle(busy)))
    return medians, peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows, columns = matrix_shape(options)
    parameters = options.layers * (rows * columns + rows + UDGDConfig().filter_order + 1)
    print(f"{parameters:,} parameters, {options.agents} agents, {torch.get_num_threads()} threads")
    ((step, step_busy), (bare, bare_busy)), peak = measure(options)
    for what, seconds, busy in (
        ("one meta-training step", step, step_busy),
        ("its bare products and one pass of Adam", bare, bare_busy),
    ):
        print(f"{what} {1000 * seconds:.0f} ms, of the processors {1000 * busy:.0f} ms")
    print(f"ratio {step / bare:.2f}, of the processors {step_busy / bare_busy:.2f}")
    alone = 3 * 4 * parameters
    print(
        f"peak resident memory of the step's process {peak / 2**30:.2f} GiB, "
        f"of which parameters and Adam's moments {alone / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
