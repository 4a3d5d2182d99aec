"""Real processes on loopback, each with the row of one agent and a certificate, for tests of Zenoh.

Processes are forked from a server that has imported everything, before any thread of Zenoh exists.
"""

import datetime
import io
import ipaddress
import json
import multiprocessing
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import networkx as nx
import torch
import zenoh
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from random_data import seeded
from test_rows_anywhere import Subject, task

import fedsurf
from fedsurf.common.streams import Streams
from fedsurf.evaluation.run import run
from fedsurf.network import Network, StarNetwork
from fedsurf.network.engines.zenoh import ZenohNetwork

CONTEXT = multiprocessing.get_context("forkserver")
PEERS = 8
ROUNDS = 6
torch.set_num_threads(1)

GRAPHS = {
    "ring": partial(Network, nx.cycle_graph(PEERS), "metropolis"),
    "3-regular": partial(Network, nx.random_regular_graph(3, PEERS, seed=1), "metropolis"),
    "star": lambda **wire: StarNetwork(PEERS - 1, 4, seeded(3), "metropolis", **wire),
}


class Authority:
    """Certificates of an authority in a folder."""

    def __init__(self, folder, names):
        folder.mkdir()
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._write("authority", self._key, x509.BasicConstraints(True, None))
        for name in names:
            addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            key = ec.generate_private_key(ec.SECP256R1())
            self._write(name, key, x509.SubjectAlternativeName(addresses))

    def _write(self, name, key, extension):
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, "authority")
        )
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        made = x509.CertificateBuilder(
            issuer, subject, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        made = made.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
        (self.folder / f"{name}.key").write_bytes(pem)


def certificates(folder, name):
    """Return the paths of what a process needs for TLS."""
    return tuple(str(folder / f) for f in ("authority.pem", f"{name}.pem", f"{name}.key"))


def free_addresses(names):
    """Return an address on a free port of loopback for each name."""
    sockets = [socket.socket() for _ in names]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = {n: f"127.0.0.1:{s.getsockname()[1]}" for n, s in zip(names, sockets, strict=True)}
    for one in sockets:
        one.close()
    return found


NAMES = [f"clinic-{number}" for number in range(PEERS)]


def peer(number, addresses, keys, graph="ring", wire="float32", **options):
    """Return the network of one process."""
    options = {"deadline": 10.0, "patience": 10.0, "name": "clinics", "digest": "1"} | options
    tls = keys and certificates(keys, NAMES[number])
    whole = GRAPHS[graph](wire=wire)
    return ZenohNetwork(whole, torch.arange(PEERS), number, addresses, tls=tls, **options)


def finish(name, network, rounds=ROUNDS, seed=7):
    """Run an algorithm on the rows of a network, in float64; return the agents' weights."""
    own = task(torch.float64).of(network.agent_rows(network.ids))
    algorithm = algorithm_named(name, network)
    streams = Streams(9, network.ids)
    network.reset(seeded(seed))
    state = algorithm.init(own, network, streams.at("start"))
    for step in range(getattr(algorithm, "steps", rounds)):
        state = algorithm.step(state, own, network, streams.at("step", step))
    return state.agent_weights(network)


def algorithm_named(name, network):
    if name == "pretrained":
        return fedsurf.load().to(torch.float64).on(fedsurf.SoftmaxHead(5, 3), 10)
    return Subject(name, network.server, False).algorithm(torch.float64)


def finish_and_count(network, pipe, names):
    """Run algorithms; return weights, and the bytes of rounds as sent and as the simulator counts them."""
    found, before = {}, 0
    for name in names:
        weights = finish(name, network)
        sent = sum(network.round_bytes_sent.values())
        found[name] = weights, sent - before, network.bytes
        network.collect(weights)  # bytes of an evaluation
        before = sum(network.round_bytes_sent.values())
    evaluations = sum(network.bytes_sent.values()) - before
    return found, evaluations


def finish_all(network, pipe, names):
    """Run algorithms one after another, and DGD once more with evaluations."""
    return {name: finish(name, network) for name in names} | {"evaluation": evaluate(network)}


def step_by_step(network, pipe, steps, pause=0.0, name="dgd", first=0):
    """Take steps, and tell the round after each; return the weights."""
    own = task(torch.float64).of(network.agent_rows(network.ids))
    algorithm, streams = algorithm_named(name, network), Streams(9, network.ids)
    if not first:
        network.reset(seeded(7))
    state = algorithm.init(own, network, streams.at("start"))
    while network.rounds < steps:
        state = algorithm.step(state, own, network, streams.at("step", network.rounds))
        if pipe is not None:
            pipe.send_bytes(network.rounds.to_bytes(4, "little"))
            time.sleep(pause)
    return state.agent_weights(network)


def rejoined(network, pipe, steps):
    """Take the steps that are left when a restarted process comes back."""
    first = network.rejoin()
    return first, step_by_step(network, pipe, steps, 0.05, first=first)


def counted(network, pipe, steps):
    """Take steps, and return the number of agents that answer."""
    step_by_step(network, pipe, steps)
    return network.total(torch.ones(1, 1))


def one_pauses(network, pipe, steps):
    """Take steps; process 3 pauses in the middle."""
    step_by_step(network, None, steps // 2)
    if network.process == 3:
        time.sleep(1.5)
    step_by_step(network, None, steps, first=network.rounds)


def one_hangs(network, pipe, count):
    """Evaluate several times; after the first, process 3 hangs."""
    found = []
    network.gather_text("ready")
    for _ in range(count):
        found.append(int(network.total(torch.ones(1, 1))))
        step_by_step(network, None, network.rounds + 1, first=1)
        if network.process == 3:
            time.sleep(30)
    return found


def wait_for_round(pipe, number, seconds=20):
    """Read what a process tells until it has finished a round."""
    while True:
        assert pipe.poll(seconds), f"round {number} was not reached"
        if int.from_bytes(pipe.recv_bytes(), "little") >= number:
            return


def evaluate(network):
    """Return what a run with an evaluation after every round recorded."""
    own = task(torch.float64).of(network.agent_rows(network.ids))
    return vars(run(algorithm_named("dgd", network), own, network, 4))


def body(work, number, pipe, arguments):
    """What a process does: `work(network, pipe, …)`, whose result it sends."""
    torch.set_num_threads(1)
    addresses, keys, options, more = arguments
    with torch.no_grad(), peer(number, addresses, keys, **options) as network:
        result = work(network, pipe, *more)
        report = {
            "missing": network.missing,
            "skipped": network.skipped,
            "refused": {k: dict(v) for k, v in network.refused.items()},
            "sent": network.bytes_sent,
            "received": network.bytes_received,
            "floats": network.floats,
        }
    buffer = io.BytesIO()
    torch.save((result, report), buffer)
    pipe.send_bytes(buffer.getvalue())


@contextmanager
def intruder(addresses, targets, keys=None, name=None):
    """Open a session that connects to some processes and keeps to no access list."""
    scheme = "tls" if keys else "tcp"
    settings = {
        "mode": "peer",
        "listen/endpoints": [],
        "scouting/multicast/enabled": False,
        "connect/endpoints": [f"{scheme}/{addresses[target]}" for target in targets],
        "connect/timeout_ms": 1000,
        "connect/exit_on_failure": False,
    }
    if keys:
        authority, certificate, key = certificates(keys, name)
        settings["transport/link/tls"] = {
            "root_ca_certificate": authority,
            "enable_mtls": True,
            "connect_private_key": key,
            "connect_certificate": certificate,
        }
    config = zenoh.Config()
    for place, value in settings.items():
        config.insert_json5(place, json.dumps(value))
    with zenoh.open(config) as session:
        yield session


ROOT = "fedsurf/clinics"


@contextmanager
def federation(work, keys, *more, addresses=None, **options):
    """Start all processes, with the keys in a folder; give them and their pipes, and end them."""
    addresses = addresses or free_addresses(NAMES)
    with ExitStack() as stack:
        arguments = (addresses, keys, *more)
        both = [stack.enter_context(_process(work, n, *arguments, **options)) for n in range(PEERS)]
        yield [process for process, _ in both], [pipe for _, pipe in both]


@contextmanager
def started(work, number, addresses, keys, *more, **options):
    """Start one process; give its pipe, and end it."""
    with _process(work, number, addresses, keys, *more, **options) as (_, pipe):
        yield pipe


def start_server():
    """Start the server that processes are forked from; its path is that of its environment only."""
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    CONTEXT.set_forkserver_preload(["peers", "sites"])
    with mock.patch.dict(os.environ, PYTHONPATH=here):
        forkserver.ensure_running()


@contextmanager
def _process(work, number, addresses, keys, *more, **options):
    start_server()
    mine, its = CONTEXT.Pipe()
    arguments = (work, number, its, (addresses, keys, options, more))
    process = CONTEXT.Process(target=body, args=arguments, daemon=True)
    process.start()
    its.close()
    try:
        yield process, mine
    finally:
        process.kill()
        process.join()


def results(pipes, seconds=30):
    """Return what the processes of these pipes sent as their last message: (results, reports)."""
    found = []
    for pipe in pipes:
        raw = b"...."
        while len(raw) == 4:
            assert pipe.poll(seconds), "a process did not finish"
            raw = pipe.recv_bytes()
        found.append(torch.load(io.BytesIO(raw), weights_only=False))
    return [f[0] for f in found], [f[1] for f in found]
