"""Sites as processes of `fedsurf join` and `fedsurf serve`, each in a folder of its own, for tests."""

import os
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import peers
import torch
from sklearn.datasets import load_breast_cancer

from fedsurf.cli import join, watching  # noqa: F401 - forked processes have them
from fedsurf.cli import main as cli
from fedsurf.common.files import FileError, read_metadata
from fedsurf.deploy import sites as _sites  # noqa: F401
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.evaluation import plots  # noqa: F401
from fedsurf.network.config import GraphConfig
from fedsurf.network.engines.federation import read_federation, write_new
from fedsurf.network.engines.keys import make_keys
from fedsurf.network.engines.template import FIRST_PORT, federation_text

ENDS = (0, 20, 50, 90, 140, 200, 270, 350, 450)
TEST = "test.csv"


def free_ports(count):
    """Return free ports of loopback."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def tables(ends=ENDS):
    """Return a table for each site, and one for testing; the second site has benign tumours only."""
    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    frame["label"] = frame.pop("target").map({0: "malignant", 1: "benign"})
    *parts, test = [frame.iloc[a:b] for a, b in pairwise([*ends, len(frame)])]
    parts[1] = parts[1][parts[1]["label"] == "benign"]
    return parts, test


def found(folder, kind="regular", ends=ENDS, *, start=60, changes=(), **options):
    """Found a federation with certificates and tables in a folder; return its file."""
    parts, test = tables(ends)
    text = federation_text("clinics", len(parts), GraphConfig(kind), **options)
    for number, port in enumerate(free_ports(len(parts) + 1)):
        text = text.replace(f'"127.0.0.1:{FIRST_PORT + number}"', f'"127.0.0.1:{port}"')
    for old, new in [("start = 600.0", f"start = {start}"), *changes]:
        assert old in text
        text = text.replace(old, new)
    path = folder / "clinics.toml"
    write_new(path, text)
    read = read_federation(path)
    make_keys(read, folder / "keys")
    for agent, table in zip(read.agents, parts, strict=True):
        table.to_csv(folder / f"{agent.name}.csv", index=False)
    test.to_csv(folder / TEST, index=False)
    return path


def together(path):
    """Return the rows of all sites, their labels and whose they are."""
    names = [agent.name for agent in read_federation(path).agents]
    parts = [pd.read_csv(path.parent / f"{name}.csv") for name in names]
    rows = pd.concat(parts)
    agents = np.repeat(names, [len(part) for part in parts])
    return rows.drop(columns="label").to_numpy(), rows["label"].to_numpy(), agents


def command(path, name, *options):
    """Return what a site, or the server, starts."""
    folder, words = path.parent, [path, "--folder", path.parent / f"run-{name}", *options]
    if name == "server":
        return ["serve", *words]
    return ["join", *words, "--as", name, "--data", folder / f"{name}.csv", "--test-share", "0"]


def start(path, name, *options):
    """Start a site's process."""
    return run(command(path, name, *options))


def run(words):
    """Start a command of fedsurf, in a process that is forked from one that has imported everything."""
    return Command([str(word) for word in words])


class Command:
    """A command in a process of its own, whose output goes into files."""

    def __init__(self, words):
        peers.start_server()
        self._folder = Path(tempfile.mkdtemp())
        self._process = peers.CONTEXT.Process(
            target=main, args=(words, self._folder / "out", self._folder / "err"), daemon=True
        )
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def returncode(self):
        """The exit code; None while it runs."""
        return self._process.exitcode

    def communicate(self, timeout=None):
        """Wait for the end; return the output and the errors."""
        self._process.join(timeout)
        assert self.returncode is not None, f"still running: {self.errors()}"
        return (self._folder / "out").read_text(), self.errors()

    def errors(self):
        """Return what the command wrote to standard error so far."""
        return (self._folder / "err").read_text() if (self._folder / "err").exists() else ""


def main(words, out, err):
    """Run a command in this process with its own files for output."""
    torch.set_num_threads(1)
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, stream.fileno())
    code = cli.run(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def sites(path, *options):
    """Start all sites of a federation; give their processes by name, and end them."""
    processes = {
        node.name: start(path, node.name, *options) for node in read_federation(path).nodes
    }
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def finish(processes, seconds=120):
    """Wait for processes; return their exit codes, outputs and errors."""
    ends = time.monotonic() + seconds
    texts = [one.communicate(timeout=max(ends - time.monotonic(), 1)) for one in processes]
    return [(one.returncode, *text) for one, text in zip(processes, texts, strict=True)]


def wait_for_round(path, name, number, seconds=120):
    """Wait until the file of a site's run is of a round."""
    ends, file = time.monotonic() + seconds, path.parent / f"run-{name}" / "state.safetensors"
    while time.monotonic() < ends:
        try:
            if read_metadata(file)["numbers"]["rounds"] >= number:
                return
        except FileError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"{name} did not reach round {number}")


def head(path, name):
    """Return the classifier that a site wrote, weights and biases in one array."""
    saved = SavedClassifier.read(path.parent / f"run-{name}")
    return np.concatenate([saved.weight, saved.bias[:, None]], 1)


def test_accuracy(path, name):
    """Return the accuracy of a site's classifier on the rows that no site has."""
    rows = pd.read_csv(path.parent / TEST)
    saved = SavedClassifier.read(path.parent / f"run-{name}")
    scores = saved.probabilities(rows[saved.features].to_numpy())
    return float(np.mean(np.array(saved.classes)[scores.argmax(1)] == rows["label"]))
