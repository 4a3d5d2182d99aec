"""Flower for real: its simulation, and a SuperLink with TLS and authenticated SuperNodes on loopback."""

import contextlib
import csv
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from sklearn.datasets import load_breast_cancer

from fedsurf import FederatedClassifier
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.estimator.tables import read_labelled

pytest.importorskip(
    "flwr.app", reason="Flower is not installed: pip install '.[flower]' to test with it"
)
pytestmark = pytest.mark.slow

SITES = 5
APP = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
START, RUN = 90, 1200
"""Seconds for a process to be ready, and for a whole run: five sites share few cores here."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table for each clinic, and one of all."""
    folder = tmp_path_factory.mktemp("tables")
    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "label"})
    frame["agent"] = [f"clinic-{row % SITES}" for row in range(len(frame))]
    frame.to_csv(folder / "all.csv", index=False)
    for name, rows in frame.groupby("agent"):
        rows.drop(columns="agent").to_csv(folder / f"{name}.csv", index=False)
    return folder


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Flower:
    """Flower's commands with their own home, and the processes that were started."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        home = folder / "home"
        home.mkdir()
        entries = f'address = "127.0.0.1:{self.port}"\n'
        secure = f'root-certificates = "{folder / "ca.pem"}"\n'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "open"\n[superlink.open]\n{entries}insecure = true\n'
            f"[superlink.clinics]\n{entries}{secure}"
        )
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.running = {}

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [BIN / command[0], *map(str, command[1:])],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name, text, seconds=START):
        end = time.monotonic() + seconds
        while text not in self.log(name):
            assert self.running[name].poll() is None, self.log(name)[-3000:]
            assert time.monotonic() < end, f"{name}: no {text!r} in {self.log(name)[-3000:]}"
            time.sleep(0.2)

    def kill(self, name):
        """End a process and its children, which are a group of their own."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def close(self):
        for name in list(self.running):
            self.kill(name)

    def call(self, *command):
        found = subprocess.run(
            [BIN / "flwr", *map(str, command)],
            capture_output=True,
            text=True,
            timeout=START,
            env=self.environment,
            cwd=self.folder,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def run(self, superlink, *options, **config):
        words = " ".join(f"{name.replace('_', '-')}={json.dumps(v)}" for name, v in config.items())
        self.start("run", "flwr", "run", APP, superlink, "--stream", *options, "-c", words)

    def finish(self, seconds=RUN):
        """Wait for the server's last line; return all that it printed."""
        self.wait("run", "written to ", seconds)
        return self.log("run")


@pytest.fixture
def flower(tmp_path):
    found = Flower(tmp_path)
    yield found
    found.close()


def certificates(folder):
    """Make an authority, and a certificate for loopback that it vouches for."""
    now = datetime.datetime.now(datetime.UTC)

    def made(name, key, issuer, issuer_key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    basic = x509.BasicConstraints(ca=True, path_length=None)
    (folder / "ca.pem").write_bytes(made("ca", authority, "ca", authority, basic))
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    alternative = x509.SubjectAlternativeName(names)
    (folder / "server.pem").write_bytes(made("server", server, "ca", authority, alternative))
    private = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(private)


def node_key(path):
    """Make a key of a SuperNode, as `ssh-keygen -t ecdsa -b 384` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def start_superlink(flower):
    certificates(flower.folder)
    flower.start(
        "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", flower.port,
        "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.pem",
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
    )  # fmt: skip
    flower.wait("superlink", "Uvicorn running")


def start_supernode(flower, number, data, *, register=True):
    name = f"clinic-{number}"
    if not (flower.folder / name).exists():
        node_key(flower.folder / name)
        if register:
            flower.call("supernode", "register", flower.folder / f"{name}.pub", "clinics")
    config = f'partition-id={number} name="{name}" data="{data}" folder="{flower.folder / "sites" / name}"'
    flower.start(
        name, "flower-supernode", "--root-certificates", "ca.pem",
        "--superlink", f"127.0.0.1:{flower.port}", "--auth-supernode-private-key", name,
        "--port", free_port(), "--node-config", config,
    )  # fmt: skip


def simulated(tables, rounds, **options):
    """The classifier of the simulator on the same rows, none held out."""
    found = [read_labelled(tables / f"clinic-{n}.csv", test_share=0.0) for n in range(SITES)]
    x, y = np.concatenate([one.x for one in found]), np.concatenate([one.y for one in found])
    owner = np.repeat(np.arange(SITES), [len(one.y) for one in found])
    return FederatedClassifier(graph="star", rounds=rounds, **options).fit(x, y, owner)


def assert_heads_equal(folder, model):
    saved = SavedClassifier.read(folder)
    for found, wanted in ((saved.weight, model.coef_), (saved.bias, model.intercept_)):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_five_authenticated_supernodes_over_tls_give_the_simulators_head(flower, tables):
    start_superlink(flower)
    for number in range(SITES):
        start_supernode(flower, number, tables / f"clinic-{number}.csv")
    run = flower.folder / "run"
    flower.run("clinics", rounds=10, test_share=0.0, timeout=300.0, folder=str(run))
    printed = flower.finish()
    assert "without" not in printed
    model = simulated(tables, 10)
    assert_heads_equal(run, model)
    for number in range(SITES):
        assert_heads_equal(flower.folder / "sites" / f"clinic-{number}", model)
    with (run / "trajectory.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["accuracy"]) == pytest.approx(model.trajectory_["accuracy"][-1])
    assert int(last["floats"]) == model.floats_
    # A node whose key nobody registered takes no part.
    start_supernode(flower, 9, tables / "clinic-0.csv", register=False)
    assert flower.running["clinic-9"].wait(START) != 0


def test_a_supernode_killed_in_the_middle_is_named_and_the_others_finish(flower, tables):
    start_superlink(flower)
    for number in range(SITES):
        start_supernode(flower, number, tables / f"clinic-{number}.csv")
    run = flower.folder / "run"
    flower.run("clinics", rounds=6, test_share=0.0, timeout=120.0, folder=str(run))
    flower.wait("run", "round 2,", RUN)
    flower.kill("clinic-3")
    printed = flower.finish()
    assert "without clinic-3" in printed
    messages = json.loads((run / "messages.json").read_text())
    assert {one["from"] for one in messages["missing"]} == {"clinic-3"}
    assert {one["round"] for one in messages["missing"]} <= set(range(3, 7))
    result = json.loads((run / "config.json").read_text())["result"]
    assert sorted(result["sites"]) == [f"clinic-{n}" for n in range(SITES) if n != 3]
    saved = SavedClassifier.read(run)
    frame = pd.read_csv(tables / "all.csv").drop(columns="agent")
    x, y = frame.drop(columns="label").to_numpy(), frame["label"].to_numpy()
    assert np.mean(np.array(saved.classes)[saved.probabilities(x).argmax(1)] == y) > 0.95


@pytest.mark.parametrize("method", ["softmax-head", "scaffold"])
def test_flowers_simulation_gives_the_simulators_head(flower, tables, method):
    pytest.importorskip("ray", reason="Flower's simulation needs Ray: pip install '.[flower]'")
    flower.start(
        "superlink", "flower-superlink", "--insecure", "--simulation",
        "--disable-runtime-dependency-installation", "--port", flower.port,
    )  # fmt: skip
    flower.wait("superlink", "Uvicorn running")
    config = {"settings": "step_size = 1e-6"} if method == "scaffold" else {}
    flower.run(
        "open", "--federation-config", f"num-supernodes={SITES}", method=method, rounds=6, reporting=3,
        test_share=0.0, data=str(tables / "all.csv"), folder=str(flower.folder / "run"),
        state_folder=str(flower.folder / "sites"), **config,
    )  # fmt: skip
    assert "without" not in flower.finish(300)
    if method == "softmax-head":
        assert_heads_equal(flower.folder / "run", simulated(tables, 6, reporting=3))
