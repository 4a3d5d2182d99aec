"""The table of methods, and the ranges of their settings."""

from dataclasses import replace

import pytest
import torch
from studies import BUDGET, SMALL, STAR, UNEQUAL, same

from fedsurf.algorithms import DGD, Start
from fedsurf.common.randomness import generator
from fedsurf.evaluation.methods import METHODS, Choice, Entrant, LogRange, method_named
from fedsurf.evaluation.study import Study
from fedsurf.models import SoftmaxHead

AVERAGING = [method.name for method in METHODS.values() if "weighting" in method.options]


@pytest.mark.parametrize("config", [SMALL, STAR], ids=["graph", "star"])
def test_every_method_runs_with_its_defaults_and_learns(config):
    study = Study(replace(config, tasks=1, rounds=30))
    methods = study.methods()
    assert methods == [m for m in METHODS.values() if m.fits(study.network(0))]
    for method in methods:
        runs = study.run(Entrant(method.title, method.name))
        assert runs.diverged == [None], method.name
        assert float(runs.pooled_accuracy[0].max()) > 0.35, method.name


def test_methods_are_chosen_by_name_and_must_run_on_the_network():
    assert [method.name for method in Study(SMALL).methods(["extra", "dgd"])] == ["extra", "dgd"]
    with pytest.raises(ValueError, match="'fedavg', but it needs a server"):
        Study(SMALL).methods(("fedavg",))
    with pytest.raises(ValueError, match="methods: got 'nothing'"):
        method_named("nothing")


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match=r"settings of dgd: got \['momentum'\]"):
        METHODS["dgd"].make(SoftmaxHead(2, 2), Start(), {"momentum": 0.5})


def test_log_ranges_are_uniform_in_the_logarithm():
    random = generator(0, "range")
    drawn = torch.tensor([LogRange(0.01, 100.0).draw(random) for _ in range(2000)])
    assert 0.01 <= float(drawn.min()) <= float(drawn.max()) <= 100
    for edge, share in ((0.1, 0.25), (1.0, 0.5), (10.0, 0.75)):
        assert float((drawn < edge).double().mean()) == pytest.approx(share, abs=0.04)


def test_the_methods_that_average_over_agents_can_weigh_them():
    assert set(AVERAGING) == {m.name for m in METHODS.values() if m.runs_on == "server"} | {
        "one-shot"
    }


@pytest.mark.parametrize("name", AVERAGING)
def test_unequal_agents_are_weighed_by_their_examples_unless_settings_decide(name):
    study, given = Study(UNEQUAL), Entrant(name, name)
    uniform = replace(given, settings={"weighting": "uniform"})
    examples = replace(given, settings={"weighting": "examples"})
    assert study.resolved(given).settings["weighting"] == "examples"
    assert study.resolved(uniform).settings["weighting"] == "uniform"
    assert same(study.run(given), study.run(examples))
    assert not same(study.run(given), study.run(uniform))
    (trial,) = study.tune(method_named(name), BUDGET).trials
    assert trial.settings["weighting"] == "examples"


def test_equal_agents_have_equal_weights():
    study = Study(STAR)
    assert study.resolved(Entrant("FedAvg", "fedavg")).settings == METHODS["fedavg"].defaults
    plain = study.run(Entrant("FedAvg", "fedavg"))
    assert same(study.run(Entrant("FedAvg", "fedavg", {"weighting": "uniform"})), plain)


def test_a_mini_batch_larger_than_an_agents_data_becomes_all_of_it():
    few = Study(replace(SMALL, task=replace(SMALL.task, train_examples=4)))
    every = {"step_size": 0.3, "batch_size": None}
    for size in (5, 1000):
        entrant = Entrant("DGD", "dgd", {"step_size": 0.3, "batch_size": size})
        assert few.resolved(entrant).settings == every
        assert same(few.run(entrant), few.run(replace(entrant, settings=every)))
    assert few.resolved(replace(entrant, settings={"batch_size": 4})).settings["batch_size"] == 4
    assert few.tune(METHODS["dgd"], BUDGET).best["batch_size"] is None


def test_a_custom_method_is_tuned_and_run_like_the_others(monkeypatch):
    space = {"step_size": LogRange(0.1, 1.0), "batch_size": Choice((None,))}
    own = replace(METHODS["dgd"], name="own", build=DGD, space=space)
    monkeypatch.setitem(METHODS, "own", own)
    study = Study(SMALL)
    assert own in study.methods()
    assert study.tune(own, BUDGET).best == own.defaults
    assert same(study.run(Entrant("own", "own")), study.run(Entrant("DGD", "dgd")))
