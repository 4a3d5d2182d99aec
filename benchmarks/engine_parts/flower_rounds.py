"""Rounds of Flower's FedAvg with rows of given sizes: in Flower's simulation, or through a real SuperLink.

The clients return what they get, so that a round is messages only. This file is also the Flower app that
runs on the SuperLink. `benchmarks/engines.py` runs it and reads the lines that it marks:

    python flower_rounds.py simulation|superlink NODES ROUNDS SIZE [SIZE …]
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

START, RUN = 90.0, 900.0
"""Seconds for a process to be ready, and for a whole run over a SuperLink."""
MARK = "seconds of rounds:"
APP = """
[project]
name = "timed"
version = "1.0.0"
[tool.flwr.app]
publisher = "timed"
[tool.flwr.app.components]
serverapp = "flower_rounds:server"
clientapp = "flower_rounds:client"
[tool.flwr.app.config]
nodes = 0
size = 0
rounds = 0
"""

client = ClientApp()
server = ServerApp()


@client.train()
def reply(message: Message, context: Context) -> Message:  # noqa: ARG001
    """Return the arrays as they came."""
    content = RecordDict(
        {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content, reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Train as the run configuration says, and print what each round took."""
    nodes, size, rounds = (int(context.run_config[name]) for name in ("nodes", "size", "rounds"))
    print(MARK, *fedavg(grid, nodes, size, rounds), flush=True)


def fedavg(grid: Grid, nodes: int, size: int, rounds: int) -> list[float]:
    """Return the seconds of each round, without the first."""
    ends: list[float] = []

    def note(number: int, arrays: ArrayRecord) -> None:  # noqa: ARG001
        ends.append(time.perf_counter())

    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=0,
        min_available_nodes=nodes,
    )
    start = ArrayRecord([np.zeros((1, size), np.float32)])
    # `note` is called before the first round, too.
    strategy.start(grid, start, num_rounds=rounds + 1, timeout=RUN, evaluate_fn=note)
    return np.diff(ends[1:]).tolist()


def simulated(nodes: int, sizes: Sequence[int], rounds: int) -> list[list[float]]:
    """Return the seconds of each round in Flower's simulation, for each size of rows."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    found: list[list[float]] = []
    timed = ServerApp()

    @timed.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        found.extend(fedavg(grid, nodes, size, rounds) for size in sizes)

    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(timed, client, nodes, backend_config=one_core)
    return found


def over_superlink(nodes: int, size: int, rounds: int) -> list[float]:
    """Return the seconds of each round through a SuperLink on loopback, without TLS."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        app, home = folder / "app", folder / "home"
        app.mkdir()
        home.mkdir()
        (app / "pyproject.toml").write_text(APP)
        copy(__file__, app)
        ports = [_free_port() for _ in range(nodes + 2)]
        control = f'address = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "open"\n[superlink.open]\n{control}'
        )
        link = stack.enter_context(
            _started(
                folder, "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", ports[0],
                "--disable-runtime-dependency-installation",
            )
        )  # fmt: skip
        _wait(link, "Uvicorn running", START)
        for port in ports[2:]:
            stack.enter_context(
                _started(
                    folder, "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{ports[0]}",
                    "--port", port,
                )
            )  # fmt: skip
        words = f"nodes={nodes} size={size} rounds={rounds}"
        run = stack.enter_context(
            _started(folder, "flwr", "run", app, "open", "--stream", "-c", words)
        )
        line = _wait(run, MARK, RUN).split(MARK)[1].splitlines()[0]
        return [float(word) for word in line.split()]


Running = tuple[subprocess.Popen[bytes], Path]


@contextmanager
def _started(folder: Path, command: str, *options: object) -> Iterator[Running]:
    """Start a command with a log, in a group of its own, which is ended with all its children."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    log = folder / f"{command}-{time.monotonic_ns()}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603
            [binaries / command, *map(str, options)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _wait(running: Running, text: str, seconds: float) -> str:
    """Return what a process printed, once a line with this text is complete."""
    process, log = running
    end = time.monotonic() + seconds
    while True:
        ended = process.poll() is not None
        printed = log.read_text(errors="replace")
        if text in printed and "\n" in printed.split(text)[1]:
            return printed
        if ended or time.monotonic() > end:
            raise RuntimeError(f"no {text!r} in {printed[-3000:]}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(how: str, nodes: int, rounds: int, *sizes: int) -> None:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    if how == "simulation":
        found = simulated(nodes, sizes, rounds)
    else:
        found = [over_superlink(nodes, size, rounds) for size in sizes]
    for taken in found:
        print(MARK, *taken, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
