"""Real processes on loopback that mix rows over Zenoh, by the engine of fedsurf and by bare Zenoh in turn.

Bare Zenoh is what a round cannot do without: the same messages between the same neighbours, in sessions with
the same settings, each put once and waited for in a queue. Nothing of it is encoded, checked or mixed.

Processes are forked from a server that has imported everything, before any thread of Zenoh exists.
"""

import multiprocessing
import os
import queue
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import networkx as nx
import torch
import zenoh

from fedsurf.network import Network
from fedsurf.network.engines.config import SITE_FILES, Agent, Federation
from fedsurf.network.engines.keys import make_keys
from fedsurf.network.engines.messages import HEADER_BYTES
from fedsurf.network.engines.sessions import Certificates, open_session
from fedsurf.network.engines.zenoh import ZenohNetwork

CONTEXT = multiprocessing.get_context("forkserver")
LEASE, DEADLINE, PATIENCE = 10.0, 30.0, 60.0
"""Seconds; on a crowded machine nobody shall count as dead, nor as late."""
MAX_BYTES = 2**20
ROOT = "fedsurf/bare"
WARM_UP = 10
torch.set_num_threads(1)


@dataclass(frozen=True)
class Plan:
    """What the processes of one federation do."""

    processes: int
    sizes: tuple[int, ...]
    blocks: int
    rounds: int
    """Rounds of a block."""


@dataclass(frozen=True)
class Measured:
    """What one process measured with one size of rows, in seconds a round; blocks one by one."""

    ours: list[float]
    bare: list[float]
    cpu: tuple[float, float]
    """Processor time of all threads of the process, with fedsurf and with bare Zenoh."""
    shares: dict[str, float]
    """Processor time of the parts of a round, in the process's own Python code."""


def graph_of(processes: int) -> nx.Graph:
    """Return a 3-regular graph, or where there is none, a ring or the complete graph."""
    if processes < 4:
        return nx.complete_graph(processes)
    if processes % 2:
        return nx.cycle_graph(processes)
    return nx.random_regular_graph(3, processes, seed=1)


class Bare:
    """A session without fedsurf: rows are put, and their arrival is waited for in a queue of each sender."""

    def __init__(self, session: zenoh.Session, name: str, neighbours: Sequence[str]) -> None:
        self._session, self._name, self._neighbours = session, name, neighbours
        self._arrived = {one: queue.SimpleQueue[bytes]() for one in neighbours}
        self._subscriber = session.declare_subscriber(f"{ROOT}/to/{name}/*", self._on_message)

    def _on_message(self, sample: zenoh.Sample) -> None:
        sender = str(sample.key_expr).rsplit("/", 1)[1]
        self._arrived[sender].put(sample.payload.to_bytes())

    def round(self, raw: bytes) -> None:
        """Send to all neighbours, and wait for all of them."""
        for one in self._neighbours:
            self._session.put(
                f"{ROOT}/to/{one}/{self._name}",
                raw,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )
        for one in self._neighbours:
            self._arrived[one].get(timeout=DEADLINE)

    def meet(self) -> None:
        """Wait until every neighbour listens."""
        end = time.monotonic() + PATIENCE
        for one in self._neighbours:
            publisher = self._session.declare_publisher(f"{ROOT}/to/{one}/{self._name}")
            while not publisher.matching_status.matching:
                if time.monotonic() > end:
                    raise TimeoutError(f"{one} does not listen to {self._name}")
                time.sleep(0.02)
            publisher.undeclare()


class Shares:
    """Processor time of the parts of a round in the code of the network, by wrapping its methods.

    Time on the thread's clock: what other processes do meanwhile does not count.
    """

    def __init__(self, network: ZenohNetwork) -> None:
        self.seconds: Counter[str] = Counter()
        peer = network._peer
        self._wrap(peer, "_put", "put")
        self._wrap(peer, "send", "encode", inner=["put"])
        self._wrap(peer, "receive", "wait")
        self._wrap(peer.arrivals, "receive", "decode, check")
        self._wrap(network, "exchange", "weights, mix", inner=["put", "encode", "wait"])

    def _wrap(self, thing: Any, name: str, part: str, inner: Sequence[str] = ()) -> None:
        work = getattr(thing, name)

        def timed(*values: Any, **named: Any) -> Any:
            before, start = sum(self.seconds[one] for one in inner), time.thread_time()
            try:
                return work(*values, **named)
            finally:
                spent = time.thread_time() - start
                self.seconds[part] += spent - sum(self.seconds[one] for one in inner) + before

        setattr(thing, name, timed)


def timed(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the seconds and the processor's seconds that a round takes."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        work()
    return (time.perf_counter() - start) / rounds, (time.process_time() - cpu) / rounds


def measure(network: ZenohNetwork, bare: Bare, size: int, plan: Plan, wait: Callable) -> Measured:
    """Alternate blocks of rounds by fedsurf and by bare Zenoh; all processes begin a block together."""
    rows = torch.randn(1, size, generator=torch.Generator().manual_seed(network.process))
    raw = bytes(HEADER_BYTES + 4 * size)
    ours, theirs = partial(network.mix, rows), partial(bare.round, raw)
    found: dict[Any, list[tuple[float, float]]] = {ours: [], theirs: []}
    for block in range(plan.blocks + 1):
        for work in (ours, theirs) if block % 2 else (theirs, ours):
            wait()
            taken = timed(work, plan.rounds if block else WARM_UP)
            if block:
                found[work].append(taken)

    def cpu(work: Any) -> float:
        return median(seconds for _, seconds in found[work])

    shares = Shares(network)
    wait()
    timed(ours, plan.rounds)
    return Measured(
        [one for one, _ in found[ours]],
        [one for one, _ in found[theirs]],
        (cpu(ours), cpu(theirs)),
        {part: seconds / plan.rounds for part, seconds in shares.seconds.items()},
    )


def live(
    process: int, addresses: list[dict[str, str]], keys: Path | None, plan: Plan, pipe: Connection, wait: Any
) -> None:  # fmt: skip
    """What a process does: it measures, and sends what it found."""
    torch.set_num_threads(1)
    names = list(addresses[0])
    tls = keys and Certificates(*(str(keys / names[process] / file) for file in _FILES))
    whole = Network(graph_of(plan.processes), "metropolis")
    neighbours = [names[one] for one in sorted(whole.graph[process])]
    settings = {"lease": LEASE, "max_bytes": MAX_BYTES, "tls": tls}
    with (
        torch.no_grad(),
        ZenohNetwork(
            whole, torch.arange(plan.processes), process, addresses[0], name="timed", digest="1",
            deadline=DEADLINE, patience=PATIENCE, **settings,
        ) as network,
        open_session(names[process], addresses[1], neighbours, ROOT, **settings) as session,
    ):  # fmt: skip
        bare = Bare(session, names[process], neighbours)
        bare.meet()
        for size in plan.sizes:
            pipe.send(measure(network, bare, size, plan, partial(wait.wait, PATIENCE)))
        assert not network.missing, network.missing
        wait.wait(PATIENCE)


_FILES = (SITE_FILES[2], SITE_FILES[1], SITE_FILES[0])


def federation(plan: Plan, folder: Path | None) -> list[list[Measured]]:
    """Return what all processes measured, by size; with TLS if there is a folder for keys."""
    _start_server()
    names = [f"site-{number}" for number in range(plan.processes)]
    if folder:
        make_keys(Federation("timed", tuple(Agent(n, "127.0.0.1:1") for n in names)), folder)
    addresses = [_free_addresses(names) for _ in range(2)]
    barrier = CONTEXT.Barrier(plan.processes)
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(_started(number, addresses, folder, plan, barrier))
            for number in range(plan.processes)
        ]
        return [[_received(pipe) for pipe in pipes] for _ in plan.sizes]


def _received(pipe: Connection, seconds: float = 300.0) -> Measured:
    assert pipe.poll(seconds), "a process did not finish"
    found: Measured = pipe.recv()
    return found


@contextmanager
def _started(number: int, *arguments: Any) -> Iterator[Connection]:
    mine, its = CONTEXT.Pipe()
    *most, barrier = arguments
    process = CONTEXT.Process(target=live, args=(number, *most, its, barrier), daemon=True)
    process.start()
    its.close()
    try:
        yield mine
    finally:
        process.join(5)
        process.kill()
        process.join()


def _start_server() -> None:
    """Start the server that processes are forked from; its path is that of its environment only."""
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before])])
    CONTEXT.set_forkserver_preload([__name__])
    forkserver.ensure_running()
    del os.environ["PYTHONPATH"]
    if before is not None:
        os.environ["PYTHONPATH"] = before


def _free_addresses(names: Sequence[str]) -> dict[str, str]:
    """Return an address on a free port of loopback for each name."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {n: f"127.0.0.1:{s.getsockname()[1]}" for n, s in zip(names, sockets, strict=True)}
