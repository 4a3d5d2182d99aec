"""Peers over Zenoh: real processes on loopback give the simulator's numbers, and survive faults and attacks."""

import os
import signal
import time

import pytest
import torch
from peers import (
    GRAPHS,
    NAMES,
    Authority,
    evaluate,
    federation,
    finish,
    finish_all,
    results,
    step_by_step,
    wait_for_round,
)

from fedsurf.network.faults import FaultyNetwork

ON_GRAPHS = ("dgd", "gradient-tracking", "dfedavgm", "ridge", "U-DGD", "pretrained")
THROUGH_SERVER = ("fedprox", "scaffold", "ridge", "U-DGD", "pretrained")


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """A folder with certificates of all processes."""
    folder = tmp_path_factory.mktemp("federation") / "keys"
    Authority(folder, NAMES)
    return folder


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


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
    [("ring", ON_GRAPHS), ("3-regular", ON_GRAPHS), ("star", THROUGH_SERVER)],
    ids=["ring", "3-regular", "star"],
)
def test_processes_give_the_simulators_numbers(graph, names, keys):
    with federation(finish_all, keys, names, graph=graph) as (_, pipes):
        found, reports = results(pipes)
    whole = GRAPHS[graph]()
    with torch.no_grad():
        for name in names:
            close(torch.cat([one[name] for one in found]), finish(name, whole))
        for field, values in evaluate(whole).items():
            if field != "floats":
                close(found[1]["evaluation"][field], values)
    for report in reports:
        assert not report["missing"]
        assert not report["refused"]
        assert min(report["sent"].values()) > 4 * report["floats"] / len(report["sent"])


def test_the_others_finish_without_a_killed_process_and_name_it(keys):
    with federation(step_by_step, keys, 20) as (processes, pipes):
        wait_for_round(pipes[3], 5)
        os.kill(processes[3].pid, signal.SIGKILL)
        begun = time.monotonic()
        found, reports = results(pipes[:3] + pipes[4:])
    assert time.monotonic() - begun < 5
    reports.insert(3, None)
    for neighbour in (2, 4):
        assert {(name, why) for _, name, why in reports[neighbour]["missing"]} == {
            (NAMES[3], "gone")
        }
    with torch.no_grad():
        wanted = step_by_step(Missed(GRAPHS["ring"](), reports), None, 20)
    close(torch.cat(found), wanted[torch.arange(8) != 3])
