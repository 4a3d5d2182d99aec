"""The time of a round of `network.mix`, by engine: the simulator, Zenoh between processes, and Flower's FedAvg.

Random float32 rows over a 3-regular graph, one agent a process, all on this machine. The engine's own cost is
what the same messages take with bare Zenoh, in the same processes and by turns (`engine_parts/`). What is left
is our share: encoding, decoding and checks, waking up, weights, mixing and counting. It should be at most as
long as the engine's: a ratio of 1. With more processes than cores, a round takes what all of them compute, so
processor time is printed, too. All figures are those of this run.

Flower is timed where it is installed (`make .venv-flower/.installed`), in its simulation; rounds through a real
SuperLink take seconds each, and are timed with --superlink only.

    .venv-flower/bin/python benchmarks/engines.py [--processes 4 8 16] [--sizes 650 5130] [--superlink]
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import torch
from engine_parts.zenoh_processes import Measured, Plan, federation, graph_of

from fedsurf.network import Network

FLOWER = Path(__file__).parent / "engine_parts" / "flower_rounds.py"
MARK = "seconds of rounds:"
FLOWER_ROUNDS, FLOWER_SECONDS = 10, 900
SUPERLINK_NODES, SUPERLINK_ROUNDS = 4, 3
MICRO = 1e6


def milliseconds(blocks: Sequence[float]) -> str:
    """Return the median and the range of seconds a round, in milliseconds."""
    figures = [1000 * value for value in (median(blocks), min(blocks), max(blocks))]
    middle, low, high = (f"{one:.3g}" if one < 100 else f"{one:,.0f}" for one in figures)
    return f"{middle} ({low}–{high})"


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(*names: str) -> None:
    print()
    row(*names)
    row("---", *["---:" for _ in names[1:]])


@torch.no_grad()
def simulated(processes: int, size: int, blocks: int, rounds: int) -> list[float]:
    """Return the seconds a round of the simulator, block by block."""
    network = Network(graph_of(processes), "metropolis")
    rows = torch.randn(processes, size, generator=torch.Generator().manual_seed(0))
    taken = []
    for _ in range(blocks + 1):
        start = time.perf_counter()
        for _ in range(rounds):
            network.mix(rows)
        taken.append((time.perf_counter() - start) / rounds)
    return taken[1:]


def blocks_of(found: Sequence[Measured], get: Callable[[Measured], list[float]]) -> list[float]:
    """Return the mean over the processes for each block."""
    return [mean(values) for values in zip(*map(get, found), strict=True)]


def flower_rounds(how: str, nodes: int, sizes: Sequence[int], rounds: int) -> list[str]:
    """Return what rounds take in Flower's "simulation" or over a "superlink", for each size."""
    command = [sys.executable, FLOWER, how, nodes, rounds, *sizes]
    run = subprocess.run(  # noqa: S603
        [*map(str, command)], capture_output=True, text=True, timeout=FLOWER_SECONDS, check=False
    )
    marked = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    if len(marked) != len(sizes):
        raise RuntimeError(f"Flower's {how} failed: {(run.stdout + run.stderr)[-3000:]}")
    return [milliseconds([*map(float, line.removeprefix(MARK).split())]) for line in marked]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--sizes", type=int, nargs="+", default=[650, 5130])
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each kind, by turns")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of a block")
    parser.add_argument("--superlink", action="store_true", help="time a real SuperLink, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    processes, sizes = options.processes, options.sizes
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start; median (range) of a round in ms")

    flower_missing = [name for name in ("flwr", "ray") if find_spec(name) is None]
    shares = []
    head(
        "processes, numbers a row", "simulator", "Zenoh", "of it bare Zenoh", "our share", "ratio",
        "ratio of processor time", "Flower's simulation",
    )  # fmt: skip
    for count in processes:
        for tls in (False, True):
            plan = Plan(count, tuple(sizes), options.blocks, options.rounds)
            with TemporaryDirectory() as folder:
                found = federation(plan, Path(folder) / "keys" if tls else None)
            flower = ["–" for _ in sizes]
            if not tls and not flower_missing:
                flower = flower_rounds("simulation", count, sizes, FLOWER_ROUNDS)
            for size, measured, by_flower in zip(sizes, found, flower, strict=True):
                ours = blocks_of(measured, lambda one: one.ours)
                bare = blocks_of(measured, lambda one: one.bare)
                share = median(ours) - median(bare)
                cpu, bare_cpu = (mean(c) for c in zip(*(m.cpu for m in measured), strict=True))
                name = f"{count}, {size:,}{', TLS' if tls else ''}"
                row(
                    name,
                    "" if tls else milliseconds(simulated(count, size, 5, 200)),
                    milliseconds(ours),
                    milliseconds(bare),
                    f"{1000 * share:.3g}",
                    f"{share / median(bare):.2f}",
                    f"{(cpu - bare_cpu) / bare_cpu:.2f}",
                    "" if tls else by_flower,
                )
                parts = {
                    part: mean(m.shares[part] for m in measured) for part in measured[0].shares
                }
                shares.append((name, cpu, bare_cpu, parts))
    parts = list(shares[0][3])
    head("processor time of a process a round, µs", "all", "bare Zenoh", *parts)
    for name, cpu, bare_cpu, found_parts in shares:
        figures = (cpu, bare_cpu, *(found_parts[part] for part in parts))
        row(name, *(f"{MICRO * one:.0f}" for one in figures))
    print()
    if flower_missing:
        print(
            f"Flower: not timed, as {' and '.join(flower_missing)} are missing here; run `make "
            ".venv-flower/.installed`, then `.venv-flower/bin/python benchmarks/engines.py`"
        )
    elif options.superlink:
        nodes = SUPERLINK_NODES
        for size, taken in zip(
            sizes, flower_rounds("superlink", nodes, sizes, SUPERLINK_ROUNDS), strict=True
        ):
            print(f"A real SuperLink, {nodes} nodes, {size:,} numbers a row: {taken} ms a round")
    else:
        print("A real SuperLink: not timed, some 10 seconds a round (--superlink)")


if __name__ == "__main__":
    main()
