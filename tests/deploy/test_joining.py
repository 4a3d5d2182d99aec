"""Sites in processes of their own, with certificates, train one classifier on rows that stay with them."""

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from fedsurf import FederatedClassifier
from fedsurf.common.files import FileError
from fedsurf.deploy.joining import join, join_table
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.network.config import GraphConfig
from fedsurf.network.engines.config import Agent, Federation, Links, Security
from fedsurf.network.engines.federation import read_federation, write_new
from fedsurf.network.engines.keys import make_keys
from fedsurf.network.engines.template import federation_text

SITES, PATIENCE = 4, 60
ENDS = (0, 100, 230, 330, 569)


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.fixture(scope="module")
def tables():
    """Return a table for each of four sites; the second has benign tumours only."""
    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    frame["label"] = frame.pop("target").map({0: "malignant", 1: "benign"})
    parts = [frame.iloc[a:b] for a, b in pairwise(ENDS)]
    parts[1] = parts[1][parts[1]["label"] == "benign"]
    return parts


@pytest.fixture
def federation(tmp_path, tables):
    """Write the file of a ring of four sites with certificates, and their tables."""
    text = federation_text("clinics", SITES, GraphConfig("ring"))
    text = text.replace("insecure = true", "insecure = false").replace(
        "start = 600.0", f"start = {PATIENCE}"
    )
    for number, port in enumerate(free_ports(SITES)):
        text = text.replace(f'"127.0.0.1:{17401 + number}"', f'"127.0.0.1:{port}"')
    path = tmp_path / "clinics.toml"
    write_new(path, text)
    read = read_federation(path)
    assert read.deadlines.start == PATIENCE
    make_keys(read, tmp_path / "keys")
    for agent, table in zip(read.agents, tables, strict=True):
        table.to_csv(tmp_path / f"{agent.name}.csv", index=False)
    return path


def start(path, name, *options):
    """Start a site's process."""
    folder = path.parent
    command = [sys.executable, "-m", "fedsurf", "join", path, "--as", name]
    command += ["--data", folder / f"{name}.csv", "--folder", folder / f"run-{name}", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(processes):
    """Wait for processes; return their exit codes, outputs and errors."""
    try:
        found = [process.communicate(timeout=2 * PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *texts) for p, texts in zip(processes, found, strict=True)]


def test_sites_get_the_classifier_of_the_simulator(federation, tables):
    names = [agent.name for agent in read_federation(federation).agents]
    processes = [start(federation, name, "--test-share", "0", "--json") for name in names]
    for code, printed, errors in finish(processes):
        assert code == 0, errors
        assert json.loads(printed)["rounds"] == 20
        assert json.loads(printed)["missing"] == []
    together = pd.concat(tables)
    agents = np.repeat(names, [len(table) for table in tables])
    x, y = together.drop(columns="label").to_numpy(), together["label"].to_numpy()
    model = FederatedClassifier(graph="ring").fit(x, y, agents=agents)
    for name in names:
        saved = SavedClassifier.read(federation.parent / f"run-{name}")
        assert saved.classes == model.classes_.tolist()
        size = np.abs(model.coef_).max()
        np.testing.assert_allclose(saved.weight, model.coef_, rtol=0, atol=1e-5 * size)
        messages = json.loads((federation.parent / f"run-{name}" / "messages.json").read_text())
        assert len(messages["bytes_sent"]) == 2
        assert min(messages["bytes_sent"].values()) > 10_000


@pytest.mark.slow  # it waits until the start is over
def test_a_site_that_never_comes_is_named_and_nobody_starts(federation):
    text = federation.read_text().replace(f"start = {PATIENCE}", "start = 12")
    federation.write_text(text)
    *there, away = [agent.name for agent in read_federation(federation).agents]
    for code, _, errors in finish([start(federation, name) for name in there]):
        assert code == 1
        assert f"{away}: no answer, so training does not start" in errors
    assert not list(federation.parent.glob("run-*/*.safetensors"))


def test_other_features_at_a_site_are_named_and_nobody_starts(federation):
    names = [agent.name for agent in read_federation(federation).agents]
    table = pd.read_csv(federation.parent / f"{names[2]}.csv")
    table = table.rename(columns={"mean radius": "radius"})
    table.to_csv(federation.parent / f"{names[2]}.csv", index=False)
    for code, _, errors in finish([start(federation, name) for name in names]):
        assert code == 1
        assert "radius" in errors
        assert "all must have the same ones, in the same order" in errors


def test_names_are_those_of_one_address():
    agents = tuple(Agent(f"a{n}", f"127.0.0.1:{7460 + n // 2}") for n in range(4))
    both = Federation("both", agents, Links("ring"), security=Security(insecure=True))
    for names, wanted in [((), "got none"), (("b",), "got b"), (("a0",), "a0, a1 have their")]:
        with pytest.raises(ValueError, match=f"names: .*{wanted}"):
            join(both, *names)
    with pytest.raises(ValueError, match="one process is for all agents of one address"):
        join(both, "a0", "a2")


def test_a_table_without_a_feature_of_the_federation_is_refused(federation):
    text = federation.read_text().replace("[data]", '[data]\nfeatures = ["size"]')
    federation.write_text(text)
    name = read_federation(federation).agents[0].name
    with pytest.raises(FileError, match="lacks the features size"):
        join_table(federation, name, federation.parent / f"{name}.csv")
