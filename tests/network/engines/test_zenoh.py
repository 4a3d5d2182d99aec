"""Peers over Zenoh: real processes on loopback give the simulator's numbers, and survive faults and attacks."""

import os
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import zenoh
from peers import (
    GRAPHS,
    NAMES,
    ROOT,
    Authority,
    counted,
    evaluate,
    federation,
    finish,
    finish_all,
    finish_and_count,
    free_addresses,
    intruder,
    one_hangs,
    one_pauses,
    rejoined,
    results,
    started,
    step_by_step,
    wait_for_round,
)

from fedsurf.network.engines.messages import Kind, Message, Slot, federation_digest
from fedsurf.network.engines.zenoh import ZenohNetwork
from fedsurf.network.faults import FaultyNetwork

ON_GRAPHS = ("dgd", "gradient-tracking", "dfedavgm", "ridge", "U-DGD", "pretrained")
THROUGH_SERVER = ("fedprox", "scaffold", "ridge", "U-DGD", "pretrained")


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """A folder with certificates of all processes."""
    folder = tmp_path_factory.mktemp("federation") / "keys"
    Authority(folder, NAMES)
    return folder


def close(found, wanted, tolerance=1e-6):
    size = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * size)


class Missed(FaultyNetwork):
    """The simulator, which loses the messages that processes reported as missing."""

    def __init__(self, inner, reports):
        self.lost = {
            (round_, NAMES.index(name), receiver)
            for receiver, report in enumerate(reports)
            for round_, name, _ in (report or {"missing": []})["missing"]
        }
        super().__init__(inner, torch.Generator())

    def _lose(self, lost):
        gone = [(self.rounds, a, b) in self.lost for a, b in self.links.T.tolist()]
        return lost.with_links(torch.tensor(gone), "renormalised")


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        ("ring", ON_GRAPHS),
        pytest.param("3-regular", ON_GRAPHS, marks=pytest.mark.slow),
        pytest.param("star", THROUGH_SERVER, marks=pytest.mark.slow),
    ],
    ids=["ring", "3-regular", "star"],
)
def test_processes_give_the_simulators_numbers(graph, names, keys):
    with federation(finish_all, keys, names, graph=graph) as (_, pipes):
        found, reports = results(pipes, 120)
    whole = GRAPHS[graph]()
    with torch.no_grad():
        for name in names:
            close(torch.cat([one[name] for one in found]), finish(name, whole))
        for field, values in evaluate(whole).items():
            if field not in ("floats", "bytes"):
                close(found[1]["evaluation"][field], values)
    for report in reports:
        assert not report["missing"]
        assert all(reasons.keys() <= {"old round"} for reasons in report["refused"].values())
        assert min(report["sent"].values()) > 4 * report["floats"] / len(report["sent"])


ring_names = ("dgd", "gradient-tracking", "pretrained")
star_names = ("fedavg", "scaffold", "pretrained")


@pytest.mark.parametrize(
    ("graph", "names", "wire"),
    [
        ("ring", ring_names, "int8"),
        ("star", star_names, "int8"),
        *(
            pytest.param(graph, names, wire, marks=pytest.mark.slow)
            for graph, names in (("ring", ring_names), ("star", star_names))
            for wire in ("float32", "float16")
        ),
    ],
)
def test_processes_send_the_simulators_numbers_and_bytes(graph, names, wire, keys):
    with federation(finish_and_count, keys, names, graph=graph, wire=wire) as (_, pipes):
        found, reports = results(pipes, 120)
    whole = GRAPHS[graph](wire=wire)
    for name in names:
        # The simulator does not round to float32, and the long steps of FedAvg amplify that.
        tolerance = 1e-4 if (name, wire) == ("fedavg", "float32") else 1e-6
        with torch.no_grad():
            close(torch.cat([one[name][0] for one, _ in found]), finish(name, whole), tolerance)
        assert all(one[name][1] == one[name][2] for one, _ in found)
        assert sum(one[name][1] for one, _ in found) == whole.bytes
    assert all(evaluations > 0 for _, evaluations in found)
    for report in reports:
        assert not report["missing"]
        assert all(reasons.keys() <= {"old round"} for reasons in report["refused"].values())


@pytest.mark.slow  # a busy machine shifts who is late
def test_the_others_finish_without_a_killed_process_and_name_it(keys):
    with federation(step_by_step, keys, 20) as (processes, pipes):
        wait_for_round(pipes[3], 5)
        os.kill(processes[3].pid, signal.SIGKILL)
        begun = time.monotonic()
        found, reports = results(pipes[:3] + pipes[4:])
    assert time.monotonic() - begun < 20
    reports.insert(3, None)
    for neighbour in (2, 4):
        assert {(name, why) for _, name, why in reports[neighbour]["missing"]} == {
            (NAMES[3], "gone")
        }
    with torch.no_grad():
        wanted = step_by_step(Missed(GRAPHS["ring"](), reports), None, 20)
    close(torch.cat(found), wanted[torch.arange(8) != 3])


@pytest.mark.slow  # a busy machine shifts who is late
def test_a_stopped_process_is_heard_again_in_the_round_of_the_others(keys):
    steps = 60
    with federation(step_by_step, keys, steps, 0.05, lease=1.0) as (processes, pipes):
        wait_for_round(pipes[3], 5)
        os.kill(processes[3].pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(processes[3].pid, signal.SIGCONT)
        found, reports = results(pipes)
    for neighbour in (2, 4):
        missed = reports[neighbour]["missing"]
        assert {name for _, name, _ in missed} == {NAMES[3]}
        assert 4 <= missed[0][0] <= missed[-1][0] < steps - 5
    skipped = sum(last - first for first, last in reports[3]["skipped"])
    assert 0 < skipped < steps - 10
    assert not any(reports[other]["missing"] for other in (0, 1, 5, 6, 7))
    assert torch.cat(found).isfinite().all()


@pytest.mark.slow  # a busy machine shifts who is late
def test_a_restarted_process_goes_on_in_the_round_of_the_others(keys):
    addresses = free_addresses(NAMES)
    with federation(step_by_step, keys, 60, 0.05, addresses=addresses) as (processes, pipes):
        wait_for_round(pipes[3], 5)
        processes[3].kill()
        processes[3].join()
        time.sleep(0.5)
        with started(rejoined, 3, addresses, keys, 60) as pipe:
            found, reports = results([*pipes[:3], pipe, *pipes[4:]])
    joined, weights = found[3]
    assert 4 < joined < 60
    assert reports[2]["missing"]
    missed = {round_ for round_, _, _ in reports[2]["missing"]}
    assert set(range(joined, 60)) - missed  # heard again
    assert weights.isfinite().all()


@pytest.mark.slow  # a busy machine shifts who is late
def test_both_parts_of_a_cut_graph_finish(keys):
    with federation(counted, keys, 20) as (processes, pipes):
        for number in (0, 4):
            wait_for_round(pipes[number], 5)
        for number in (0, 4):
            os.kill(processes[number].pid, signal.SIGKILL)
        begun = time.monotonic()
        found, reports = results(pipes[1:4] + pipes[5:])
    assert time.monotonic() - begun < 5  # less than the patience
    assert [int(one) for one in found] == [3] * 6
    unheard = {name for _, name, why in reports[0]["missing"] if why == "no answer"}
    assert unheard == {NAMES[number] for number in (0, 4, 5, 6, 7)}


@pytest.mark.slow  # a busy machine shifts who is late
def test_the_last_row_of_a_late_neighbour_is_used_if_wanted(keys):
    options = {"deadline": 1.0, "lease": 0.9, "late": "stale"}
    with federation(one_pauses, keys, 20, **options) as (_, pipes):
        _, reports = results(pipes)
    for neighbour in (2, 4):
        reasons = {(name, why) for _, name, why in reports[neighbour]["missing"]}
        assert reasons == {(NAMES[3], "late, last row used")}


REMOTE = zenoh.Locality.REMOTE
DIGEST = federation_digest("clinics", "1")


def hostile(sender):
    """Give a thousand messages that must not be used."""
    random = np.random.default_rng(0)
    row = np.full((1, 18), 1e6, np.float32)
    nan = np.full((1, 18), np.nan, np.float32)
    for number in range(125):
        near = Slot(0, number % 30)
        claim = Message(Kind.ROWS, sender, near, row[:0]).encoded(DIGEST)
        yield random.bytes(number)
        yield claim[:-8] + struct.pack("<II", 1, 2**28)
        yield Message(Kind.ROWS, 0, near, row).encoded(DIGEST)
        yield Message(Kind.ROWS, sender, near, row).encoded(bytes(16))
        yield Message(Kind.ROWS, sender, near, row[:, :17]).encoded(DIGEST)
        yield Message(Kind.ROWS, sender, near, nan).encoded(DIGEST)
        yield Message(Kind.ROWS, sender, Slot(0, 0), row).encoded(DIGEST)
        yield Message(Kind.ROWS, sender, Slot(0, 1000 + number), row).encoded(DIGEST)


@pytest.mark.slow  # a busy machine shifts who is late
def test_hostile_messages_change_nothing_and_their_sender_is_named(keys):
    addresses = free_addresses(NAMES)
    with federation(step_by_step, keys, 40, 0.05, addresses=addresses) as (_, pipes):
        wait_for_round(pipes[2], 8)
        with intruder(addresses, [NAMES[2]], keys, NAMES[3]) as session:
            time.sleep(0.2)
            for message in hostile(3):
                session.put(f"{ROOT}/to/{NAMES[2]}/{NAMES[3]}", message)
            found, reports = results(pipes)
    with torch.no_grad():
        close(torch.cat(found), step_by_step(GRAPHS["ring"](), None, 40))
    assert not any(report["missing"] for report in reports)
    refused = reports[2]["refused"]
    assert refused.keys() == {NAMES[3]}
    assert refused[NAMES[3]].keys() == {
        "not a message",
        "size differs from its header",
        "another's name",
        "another federation",
        "another shape",
        "NaN or infinite",
        "old round",
        "round too far ahead",
    }


@pytest.mark.slow  # a busy machine shifts who is late
def test_who_is_not_invited_neither_hears_nor_says_anything(keys, tmp_path):
    Authority(tmp_path / "foreign", NAMES)
    addresses, heard = free_addresses(NAMES), []
    forged = np.full((1, 18), 1e6, np.float32)
    with federation(step_by_step, keys, 40, 0.05, addresses=addresses) as (_, pipes):
        wait_for_round(pipes[2], 5)
        for folder in (keys, None, tmp_path / "foreign"):  # the first is another agent's
            with intruder(addresses, [NAMES[2]], folder, NAMES[3]) as session:
                time.sleep(0.2)
                assert bool(session.info.peers_zid()) == (folder == keys)
                spies = [
                    session.declare_subscriber(key, heard.append, allowed_origin=REMOTE)
                    for key in ("**", f"{ROOT}/to/{NAMES[2]}/*")
                ]
                session.liveliness().declare_token(
                    f"{ROOT}/alive/{NAMES[1]}/{DIGEST.hex()}"
                ).undeclare()
                for number in range(40):
                    message = Message(Kind.ROWS, 1, Slot(0, number), forged).encoded(DIGEST)
                    session.put(f"{ROOT}/to/{NAMES[2]}/{NAMES[1]}", message)
                time.sleep(0.2)
                for spy in spies:
                    spy.undeclare()
        found, reports = results(pipes)
    assert not heard
    with torch.no_grad():
        close(torch.cat(found), step_by_step(GRAPHS["ring"](), None, 40))
    assert not any(report["missing"] for report in reports)
    refused = [reasons.keys() for report in reports for reasons in report["refused"].values()]
    assert all(reasons <= {"old round"} for reasons in refused)


def test_the_package_does_not_import_zenoh():
    code = "import sys, fedsurf, fedsurf.network; fedsurf.Network; sys.exit('zenoh' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_certificates_messages_stay_on_this_machine():
    far = {"clinic-1": "192.0.2.1:7447"}
    options = {"name": "clinics", "digest": "1", "deadline": 5, "patience": 1}
    whole, owners = GRAPHS["ring"](), torch.zeros(8).long()
    with pytest.raises(ValueError, match=r"^tls: .*192\.0\.2\.1:7447"):
        ZenohNetwork(whole, owners, 0, far, **options)
    with pytest.warns(UserWarning, match="insecure"):
        ZenohNetwork(whole, owners, 0, far, insecure=True, **options)


def test_a_deadline_is_longer_than_the_lease():
    here = {"clinic-1": "127.0.0.1:7447"}
    with pytest.raises(ValueError, match=r"^deadline: got 1.*lease"):
        ZenohNetwork(
            GRAPHS["ring"](),
            torch.zeros(8).long(),
            0,
            here,
            name="a",
            digest="1",
            deadline=1,
            patience=1,
        )


@pytest.mark.slow  # a busy machine shifts who is late
def test_a_process_that_hangs_while_its_connections_live_does_not_stop_the_others(keys):
    options = {"deadline": 2.0, "lease": 1.0, "patience": 60.0}
    with federation(one_hangs, keys, 4, **options) as (_, pipes):
        begun = time.monotonic()
        found, _ = results(pipes[:3] + pipes[4:])
    assert time.monotonic() - begun < 28
    assert all(sums[0] == 8 for sums in found)
    assert all(sums[-1] == 7 for sums in found)
