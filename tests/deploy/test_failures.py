"""Sites that are killed, stopped or started again while they train with the others."""

import json
import os
import signal
import time

import numpy as np
import pytest
import sites

pytestmark = pytest.mark.slow  # a busy machine shifts who is late

LONG = {"rounds": 200, "seed": 1}
FEW = 0.03
"""By how much the accuracy of the survivors may be below that of all."""


def kill(process):
    """Kill a process, as a machine that fails does."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(10)


def reports(path, processes):
    """Wait for processes, which all end well; return what each printed as JSON."""
    ends = dict(zip(processes, sites.finish(processes.values()), strict=True))
    for name, (code, _, errors) in ends.items():
        assert code == 0, f"{name}: {errors}"
        assert sites.test_accuracy(path, name) > 0.95 - FEW
    return {name: json.loads(printed) for name, (_, printed, _) in ends.items()}


def senders(report):
    """Return whose messages a site missed."""
    return {lost["from"] for lost in report["missing"]}


@pytest.mark.parametrize(
    "names", [("agent-3",), ("agent-3", "agent-4"), ("agent-1", "agent-5", "agent-8")]
)
def test_the_others_finish_without_killed_sites_and_name_them(tmp_path, names):
    path = sites.found(tmp_path, **LONG)
    with sites.sites(path, "--json") as processes:
        for name in names:
            sites.wait_for_round(path, name, 20)
        for name in names:
            kill(processes.pop(name))
        found = reports(path, processes)
    assert set.union(*map(senders, found.values())) >= set(names)
    assert all(report["rounds"] == 200 for report in found.values())


def test_a_site_that_is_stopped_for_a_while_is_taken_in_again(tmp_path):
    path = sites.found(tmp_path, **LONG)
    with sites.sites(path, "--json") as processes:
        sites.wait_for_round(path, "agent-3", 20)
        os.kill(processes["agent-3"].pid, signal.SIGSTOP)
        sites.wait_for_round(path, "agent-1", 60)
        os.kill(processes["agent-3"].pid, signal.SIGCONT)
        found = reports(path, processes)
    late = [lost["round"] for lost in found["agent-1"]["missing"]]
    assert senders(found["agent-1"]) == {"agent-3"}
    assert max(late) < 190  # heard again
    assert found["agent-3"]["rounds"] == 200


def test_a_killed_site_resumes_in_the_round_of_the_others(tmp_path):
    path = sites.found(tmp_path, **LONG)
    with sites.sites(path, "--json") as processes:
        sites.wait_for_round(path, "agent-3", 20)
        kill(processes["agent-3"])
        refused = sites.start(path, "agent-3")
        assert "--resume goes on with it" in sites.finish([refused])[0][2]
        sites.wait_for_round(path, "agent-1", 60)
        processes["agent-3"] = sites.start(path, "agent-3", "--json", "--resume")
        found = reports(path, processes)
    back = found["agent-3"]
    assert back["skipped"]
    assert back["skipped"][0]["to"] >= 60
    heard = set(range(back["skipped"][0]["to"], 200))
    assert heard - {lost["round"] for lost in found["agent-1"]["missing"]}
    heads = [sites.head(path, name) for name in processes]
    size = np.abs(heads[0]).max()
    np.testing.assert_allclose(heads, [heads[0]] * 8, rtol=0, atol=0.02 * size)


def test_all_sites_resume_after_all_were_killed(tmp_path):
    path = sites.found(tmp_path, **LONG)
    with sites.sites(path) as processes:
        sites.wait_for_round(path, "agent-3", 30)
        for process in processes.values():
            kill(process)
    with sites.sites(path, "--json", "--resume") as processes:
        found = reports(path, processes)
    for report in found.values():
        assert len(report["missing"]) < 20  # those that were a round ahead do not go back
        assert report["rounds"] == 200


def test_a_server_and_agents_resume_and_go_on_without_a_killed_agent(tmp_path):
    path = sites.found(
        tmp_path, "star", reporting=5, **LONG, changes=[("round = 10.0", "round = 5.0")]
    )
    with sites.sites(path, "--json") as processes:
        sites.wait_for_round(path, "server", 20)
        kill(processes.pop("agent-7"))
        kill(processes["agent-2"])
        sites.wait_for_round(path, "server", 40)
        processes["agent-2"] = sites.start(path, "agent-2", "--json", "--resume")
        sites.wait_for_round(path, "server", 60)
        kill(processes["server"])
        time.sleep(1)
        processes["server"] = sites.start(path, "server", "--json", "--resume")
        found = reports(path, processes)
    assert "agent-7" in senders(found["server"])
    lost = [one["round"] for one in found["server"]["missing"] if one["from"] == "agent-2"]
    assert len(lost) < 150
    assert all(report["rounds"] == 200 for report in found.values())


def test_32_sites_train_to_the_end(tmp_path):
    ends = [*range(0, 33 * 14, 14)]
    path = sites.found(tmp_path, ends=ends, start=300)
    with sites.sites(path, "--json") as processes:
        found = dict(zip(processes, sites.finish(processes.values(), 300), strict=True))
    for name, (code, printed, errors) in found.items():
        assert code == 0, f"{name}: {errors}"
        assert json.loads(printed)["rounds"] == 20
        assert sites.test_accuracy(path, name) > 0.9


def test_a_site_that_comes_back_to_nobody_says_so_and_keeps_its_run(tmp_path):
    path = sites.found(tmp_path, **LONG, start=5)
    with sites.sites(path, "--json") as processes:
        sites.wait_for_round(path, "agent-3", 20)
        kill(processes.pop("agent-3"))
        reports(path, processes)
    back = sites.start(path, "agent-3", "--resume")
    [(code, _, errors)] = sites.finish([back])
    assert code == 1
    assert "they are down, or have finished without this process" in errors
    assert (tmp_path / "run-agent-3" / "state.safetensors").exists()
