"""The Flower app without Flower: a server, and agents that keep all they know in their folders."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from couriers import LocalCourier
from experiments import CONFIG, features
from sklearn.datasets import load_iris

from fedsurf import Experiment, FederatedClassifier
from fedsurf.deploy.flower.learning import Learning, agree, describe, star_of
from fedsurf.deploy.flower.plan import Plan
from fedsurf.deploy.flower.serving import serve
from fedsurf.deploy.flower.site import answer, classifier
from fedsurf.estimator.agreement import Columns
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.estimator.tables import LabelledTable
from fedsurf.evaluation.methods import METHODS

AGENTS = 4
RUN = 17
IRIS = load_iris()
# Unequal agents, of whom one lacks a class.
OWNER = np.where(IRIS.target == 2, np.arange(150) % 3, np.arange(150) % 4)
NAMES = tuple(IRIS.feature_names)


class KilledError(BaseException):
    """The end of a process."""


def described(table, plan):
    """Return what a site tells of its table."""
    return describe(Columns.of(table.x, np.unique(table.y), None), len(table.x), plan)


def rows(agent, names=NAMES):
    mine = agent == OWNER
    x, y = IRIS.data[mine], IRIS.target_names[IRIS.target[mine]]
    return LabelledTable(x, y, None, x[:6], y[:6], names, "kind")


def plan_in(folder, method="softmax-head", **options):
    given = {"rounds": 6, "wire": "float64", "seed": 3, "folder": str(folder / "run")}
    return Plan(agents=AGENTS, method=method, **given | options)


def site(plan, folder, agent, read=None, run=RUN):
    """An agent that has nothing but its folder between two messages."""
    return lambda parcel: answer(
        parcel, plan, agent, run, folder / f"site-{agent}", read or (lambda: rows(agent))
    )


def trained(plan, folder, lost=None, **sites):
    agents = [sites.get(f"site_{n}") or site(plan, folder, n) for n in range(AGENTS)]
    return serve(plan, LocalCourier(agents, lost))


def simulated(plan, tables=None):
    """The model of the same plan with all agents in this process."""
    tables = tables or [rows(agent) for agent in range(AGENTS)]
    told = {str(n): json.dumps(described(t, plan)) for n, t in enumerate(tables)}
    x, y = (np.concatenate([getattr(table, name) for table in tables]) for name in "xy")
    owner = np.repeat(np.arange(len(tables)), [len(table.y) for table in tables])
    learning = Learning(plan, agree(told, plan), star_of(plan), x, y, owner)
    with torch.no_grad():
        state = learning.begin()
        for _ in range(learning.steps):
            state = learning.advance(state)
        return classifier(learning.model(state)[:1], learning, None)


def assert_close(found, wanted, tolerance=1e-10):
    for name in ("weight", "bias"):
        one, other = getattr(found, name), getattr(wanted, name)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


THROUGH_SERVER = [name for name, method in METHODS.items() if method.runs_on != "graph"]


@pytest.mark.parametrize("method", THROUGH_SERVER)
def test_every_method_gives_the_simulators_classifier(tmp_path, method):
    settings = "step_size = 0.05" if "step_size" in METHODS[method].defaults else ""
    plan = plan_in(
        tmp_path, method, rounds=4, reporting=3, settings=settings, initial_deviation=0.5
    )
    found = trained(plan, tmp_path)
    assert_close(found.saved, simulated(plan))
    assert found.missing == []


@pytest.mark.parametrize("reporting", [0, 2])
def test_the_pretrained_optimizer_gives_the_classifier_of_the_estimator(tmp_path, reporting):
    plan = plan_in(tmp_path, reporting=reporting, evaluate_every=1)
    found = trained(plan, tmp_path)
    tables = [rows(agent) for agent in range(AGENTS)]
    x, y = (np.concatenate([getattr(table, name) for table in tables]) for name in "xy")
    owner = np.repeat(np.arange(AGENTS), [len(table.y) for table in tables])
    alone = FederatedClassifier(
        graph="star", rounds=6, random_state=3, reporting=reporting or None
    ).fit(x, y, owner)
    np.testing.assert_allclose(found.saved.weight, alone.coef_, rtol=0, atol=1e-10)
    record = pd.DataFrame(found.trajectory)
    np.testing.assert_allclose(record.accuracy[1:], alone.trajectory_["accuracy"][1:])
    np.testing.assert_allclose(record.loss[1:], alone.trajectory_["loss"][1:])
    assert record.floats.tolist() == alone.trajectory_["floats"].tolist()


def test_single_precision_on_the_wire_changes_little(tmp_path):
    plan = plan_in(tmp_path, wire="float32")
    found = trained(plan, tmp_path)
    assert_close(found.saved, simulated(plan), 1e-5)
    assert found.saved.weight.dtype == np.float64


def test_u_dgd_of_a_run_folder_gives_the_simulators_classifier(tmp_path):
    run = tmp_path / "trained"
    short = replace(CONFIG, surf=replace(CONFIG.surf, steps=3))
    experiment = Experiment(short, features())
    experiment.train(run)
    (task,) = experiment.test_tasks(1)
    tables = [
        LabelledTable(x.numpy(), y.numpy(), None, x[:0].numpy(), y[:0].numpy())
        for x, y in zip(task.train.x, task.train.y, strict=True)
    ]
    plan = plan_in(tmp_path, "u-dgd", optimizer=str(run), reporting=2, wire="float32")
    sites = {f"site_{n}": site(plan, tmp_path, n, lambda t=t: t) for n, t in enumerate(tables)}
    found = trained(plan, tmp_path, **sites)
    assert_close(found.saved, simulated(plan, tables), 1e-5)


def test_sites_and_server_have_the_same_files(tmp_path):
    plan = plan_in(tmp_path)
    found = trained(plan, tmp_path)
    found.write(plan.folder)
    server = SavedClassifier.read(plan.folder)
    assert server.features == list(NAMES)
    assert server.classes == sorted(IRIS.target_names)
    for agent in range(AGENTS):
        folder = tmp_path / f"site-{agent}"
        assert_close(SavedClassifier.read(folder), server, 1e-12)
        assert [file.name for file in (folder / f"run-{RUN}").iterdir()] == ["progress.json"]
    messages = json.loads((tmp_path / "run" / "messages.json").read_text())
    assert messages["missing"] == []
    assert min(messages["bytes_received"].values()) > 0
    accuracies = json.loads((tmp_path / "run" / "config.json").read_text())["result"]["sites"]
    for agent in range(AGENTS):
        own = rows(agent)
        hits = server.probabilities(own.test_x).argmax(1)
        share = np.mean(np.array(server.classes)[hits] == own.test_y)
        assert accuracies[f"site-{agent}"]["test_accuracy"] == pytest.approx(share)


def once(when, fate, agent, number):
    return fate if (agent, number) == when else None


@pytest.mark.parametrize("method", ["scaffold", "softmax-head", "dgd"])
@pytest.mark.parametrize("fate", ["parcel", "reply"])
def test_whatever_is_lost_once_the_others_go_on_and_the_agent_comes_back(tmp_path, method, fate):
    settings = "step_size = 0.05" if method in METHODS else ""
    for number in range(1, 5):
        folder = tmp_path / str(number)
        plan = plan_in(folder, method, settings=settings, timeout=0.1)
        lost = partial(once, (2, number), fate)
        found = trained(plan, folder, lost)
        assert {name for _, name, _ in found.missing} <= {"site-2"}
        assert len(found.missing) == 1
        assert_close(SavedClassifier.read(folder / "site-2"), found.saved, 1e-12)


def test_a_site_that_dies_is_named_and_the_others_finish(tmp_path):
    plan = plan_in(tmp_path, timeout=0.1)
    found = trained(plan, tmp_path, lambda agent, n: "parcel" if agent == 1 and n > 2 else None)
    assert {name for _, name, _ in found.missing} == {"site-1"}
    assert set(found.sites) == {"site-0", "site-2", "site-3"}
    assert found.trajectory[-1]["accuracy"] > 0.9


def test_a_site_that_was_away_for_rounds_catches_up(tmp_path):
    plan = plan_in(tmp_path, "scaffold", rounds=8, settings="step_size = 0.05", timeout=0.1)
    found = trained(plan, tmp_path, lambda agent, n: "parcel" if agent == 1 and 2 < n < 6 else None)
    assert len(found.missing) == 3
    assert set(found.sites) == {f"site-{n}" for n in range(AGENTS)}


def test_a_site_killed_while_it_writes_goes_on_from_what_is_complete(tmp_path, monkeypatch):
    from fedsurf.deploy.flower import memory

    plan = plan_in(tmp_path, "scaffold", settings="step_size = 0.05", timeout=0.1)
    wanted = trained(plan, tmp_path / "calm")
    writes, kill = iter(range(1000)), {5, 9, 16, 22}
    write_tensors, write_json = memory.write_tensors, memory.write_json

    def dying(function):
        def write(*args):
            if "site-1" in args[0].parts and next(writes) in kill:
                raise KilledError
            function(*args)

        return write

    own = site(plan, tmp_path / "killed", 1)

    def again(parcel):
        while True:
            try:
                return own(parcel)
            except KilledError:
                continue

    monkeypatch.setattr(memory, "write_tensors", dying(write_tensors))
    monkeypatch.setattr(memory, "write_json", dying(write_json))
    found = trained(plan, tmp_path / "killed", site_1=again)
    assert next(writes) > max(kill)
    assert_close(found.saved, wanted.saved, 1e-12)


def test_two_runs_of_one_site_do_not_mix_and_finished_ones_are_removed(tmp_path):
    plan = plan_in(tmp_path)
    for run in (3, RUN):
        sites = {f"site_{n}": site(plan, tmp_path, n, run=run) for n in range(AGENTS)}
        trained(plan, tmp_path, **sites)
    assert [one.name for one in (tmp_path / "site-0").glob("run-*")] == [f"run-{RUN}"]


def test_other_features_at_one_site_stop_training_with_its_name(tmp_path):
    plan = plan_in(tmp_path)
    other = site(plan, tmp_path, 2, lambda: rows(2, ("a", "b", "c", "d")))
    with pytest.raises(
        ValueError, match=r"X, y: got .*: site-2 has features a, b, c, d in place of sepal length"
    ):
        trained(plan, tmp_path, site_2=other)


def test_what_goes_wrong_at_a_site_before_training_is_told_by_its_name(tmp_path):
    plan = plan_in(tmp_path, patience=0.2)

    def unreadable():
        raise FileNotFoundError("clinic.csv")

    with pytest.raises(
        ConnectionError, match=r"site-2 \(FileNotFoundError: clinic\.csv\): no answer"
    ):
        trained(plan, tmp_path, site_2=site(plan, tmp_path, 2, unreadable))


def test_another_optimizer_file_at_one_site_stops_training(tmp_path):
    plan = plan_in(tmp_path)
    table = rows(0)
    told = described(table, plan)
    with pytest.raises(ValueError, match=r"optimizer: b has another file than the server"):
        agree({"a": json.dumps(told), "b": json.dumps(told | {"optimizer": "x"})}, plan)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"features": 4}', "[" * 100000])
def test_a_description_of_another_form_is_refused_with_the_site(text):
    with pytest.raises(ValueError, match="from site"):
        agree({"site": text}, Plan(agents=1))


@pytest.mark.parametrize("text", ["nonsense", "[" * 10000, '{"rows": NaN}', '{"rows": "9"}'])
def test_measures_of_another_form_are_left_out(tmp_path, text):
    from fedsurf.network.engines.flower.parcels import Parcel, packed_text, unpacked_text

    plan = plan_in(tmp_path)
    own = site(plan, tmp_path, 1)

    def lying(parcel):
        reply = own(parcel)
        items = {}
        for place, item in reply.items.items():
            measures = item.kind == "text" and "hits" in unpacked_text(item)
            items[place] = packed_text(text) if measures else item
        return Parcel(items, reply.want, reply.note)

    found = trained(plan, tmp_path, site_1=lying)
    assert [what[1:] for what in found.missing] == [("site-1", "refused: no measures")]
    assert set(found.sites) == {"site-0", "site-2", "site-3"}


def test_diverging_training_says_so(tmp_path):
    plan = plan_in(tmp_path, "fedavg", settings="step_size = 1e300", patience=0.1, wire="float32")
    with pytest.raises((ValueError, ConnectionError), match=r"diverged|not finite"):
        trained(plan, tmp_path)
