"""Studies: same tasks for all, cached by configuration, the same bits again, divergence contained."""

import csv
import itertools
import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

import fedsurf
from fedsurf.algorithms import DGD as DGDAlgorithm  # noqa: N811
from fedsurf.cli.main import run as run_command
from fedsurf.common.configuration import to_dict
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.randomness import generator
from fedsurf.common.writing import write_tensors
from fedsurf.evaluation import study as study_module
from fedsurf.evaluation import tuning as tuning_module
from fedsurf.evaluation.config import StudyConfig, TuneConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import METHODS, Choice, LogRange, Method, Setting, method_named
from fedsurf.evaluation.plots import study_figure
from fedsurf.evaluation.presets import STUDIES, preset
from fedsurf.evaluation.report import write_report
from fedsurf.evaluation.run import Trajectories, recorded_steps, run, run_all
from fedsurf.evaluation.scores import score
from fedsurf.evaluation.study import Entrant, Study
from fedsurf.evaluation.tuning import (
    Trial,
    Tuned,
    read_tuned,
    tuned_otherwise,
    write_tuned,
)
from fedsurf.network import FaultConfig, Network, NetworkConfig
from fedsurf.pretrained import digest, load
from fedsurf.tasks.features import fingerprint

SMALL = replace(STUDIES["digits"].config, tasks=2, rounds=6)
DGD = Entrant("DGD", "dgd", {"step_size": 0.3, "batch_size": None})


def same(left: Trajectories, right: Trajectories) -> bool:
    return all(
        torch.equal(getattr(left, name), getattr(right, name))
        for name in ("rounds", "floats", "loss", "pooled_accuracy", "gradient_norm")
    )


def test_the_same_configuration_gives_the_same_bits() -> None:
    assert same(Study(SMALL).run(DGD), Study(SMALL).run(DGD))


def test_another_seed_gives_other_tasks() -> None:
    assert not same(Study(SMALL).run(DGD), Study(replace(SMALL, seeds=(1,))).run(DGD))


def test_seeds_are_stacked_behind_each_other() -> None:
    both = Study(replace(SMALL, seeds=(0, 1))).run(DGD)
    assert torch.equal(both.loss[:2], Study(SMALL).run(DGD).loss)
    assert torch.equal(both.loss[2:], Study(replace(SMALL, seeds=(1,))).run(DGD).loss)


def test_results_are_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Study(SMALL, tmp_path).run(DGD)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(study_module, "run_all", forbidden)
    assert same(Study(SMALL, tmp_path).run(DGD), first)
    with pytest.raises(AssertionError, match="computed again"):
        Study(SMALL, tmp_path).run(replace(DGD, settings={"step_size": 0.2, "batch_size": None}))
    with pytest.raises(AssertionError, match="computed again"):
        Study(replace(SMALL, rounds=7), tmp_path).run(DGD)


def test_what_older_versions_cached_of_the_packages_own_methods_is_still_read(
    tmp_path: Path,
) -> None:
    study = Study(SMALL, tmp_path)
    study.run(replace(DGD, settings={"batch_size": None}))
    (file,) = tmp_path.iterdir()
    settings = {"step_size": 0.3, "batch_size": None}
    assert read_metadata(file) == {
        "study": {**json.loads(json.dumps(to_dict(study.config))), "data": study.digest},
        "version": 3,
        "entrant": {"method": "dgd", "settings": settings},
    }


def test_results_that_were_cached_in_float32_are_the_same(tmp_path: Path, monkeypatch) -> None:
    first = Study(SMALL, tmp_path).run(DGD)
    (file,) = tmp_path.iterdir()
    stored = {
        n: t.float() if t.is_floating_point() else t for n, t in read_all_tensors(file).items()
    }
    write_tensors(file, stored, read_metadata(file))
    monkeypatch.setattr(study_module, "run_all", None)
    assert same(Study(SMALL, tmp_path).run(DGD), first)


def test_a_cached_run_that_went_on_without_a_loss_is_computed_again(tmp_path: Path) -> None:
    first = Study(SMALL, tmp_path).run(DGD)
    (file,) = tmp_path.iterdir()
    stored = read_all_tensors(file)
    stored["loss"][0, 3:] = math.nan
    write_tensors(file, stored, read_metadata(file))
    assert same(Study(SMALL, tmp_path).run(DGD), first)


def halved(model, start, step_size):
    return DGDAlgorithm(model, step_size / 2, start=start)


def whole(model, start, step_size):
    return DGDAlgorithm(model, step_size, start=start)


def mine(build, **defaults) -> Method:
    return Method("mine", "Mine", build, "any", {}, {"step_size": 0.3, **defaults})


def test_another_method_under_the_same_name_is_not_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(replace(SMALL, tasks=1), tmp_path)
    entrant = Entrant("Mine", "mine")

    def run_with(method: Method) -> Trajectories:
        monkeypatch.setitem(METHODS, "mine", method)
        return study.run(entrant)

    first = run_with(mine(whole))
    assert not list(tmp_path.iterdir())
    others = [mine(halved), mine(whole, step_size=0.2)]
    assert not any(same(run_with(other), first) for other in others)
    monkeypatch.setitem(METHODS, "dgd", replace(METHODS["extra"], name="dgd"))
    before = study.run(Entrant("DGD", "dgd", {"step_size": 0.3}))
    monkeypatch.undo()
    assert not same(study.run(Entrant("DGD", "dgd", {"step_size": 0.3})), before)


def test_a_method_that_is_added_before_studies_are_imported_is_not_cached(tmp_path: Path) -> None:
    """As in a script that adds a method, and then is the command: its code may change."""
    script = """
import sys
import fedsurf
from fedsurf.algorithms import DGD
from fedsurf.evaluation.methods import METHODS

def build(model, start, step_size):
    return DGD(model, step_size * float(sys.argv[2]), start=start)

name = sys.argv[3]
METHODS[name] = fedsurf.Method(name, "Mine", build, "any", {}, {"step_size": 0.3})
assert "fedsurf.evaluation.study" not in sys.modules
from dataclasses import replace
config = replace(fedsurf.STUDIES["digits"].config, tasks=1, rounds=2)
study = fedsurf.Study(config, sys.argv[1])
print(study.run(fedsurf.Entrant("Mine", name)).loss.tolist())
"""
    for name in ("mine", "dgd"):
        told = [
            subprocess.run(
                [sys.executable, "-c", script, str(tmp_path), factor, name],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for factor in ("1", "2")
        ]
        assert told[0] != told[1]
    assert not list(tmp_path.iterdir())


def test_methods_are_added_to_settings_of_the_same_graph_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tuned.json"
    command = ["tune", "digits", "--file", str(file), "--budget.trials", "1"]
    command += ["--budget.tasks", "1", "--budget.rounds", "2", "--methods"]
    assert run_command([*command, "dgd"]) == 0
    before = file.read_bytes()
    assert run_command([*command, "extra", "--seeds", "3"]) == 1
    assert "differing in seeds.0 (0 there, 3 here)" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert run_command([*command, "extra", "--seeds", "0", "1"]) == 0
    assert set(read_tuned(file)) == {"dgd", "extra"}


def test_a_method_under_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own name would find the package's method, and run that under the other's title."""
    monkeypatch.setitem(METHODS, "mine", replace(METHODS["dgd"], title="Mine", build=halved))
    for names in (["mine"], ["all"]):
        with pytest.raises(ValueError, match=r"^methods: got 'mine', whose own name is 'dgd', but"):
            Study(SMALL).methods(names)
    with pytest.raises(ValueError, match=r"^methods: got 'mine', whose own name is 'dgd', but"):
        Study(SMALL).run(Entrant("Mine", "mine"))


def test_methods_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^runs_on: got 'star', but it must be 'graph' or 'serv"):
        replace(METHODS["dgd"], runs_on="star")  # type: ignore[arg-type]
    for low, high in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match=r"^low, high: got .* but they must be above 0"):
            LogRange(low, high)
    with pytest.raises(TypeError, match=r"^low: got 'a', but it must be a number"):
        LogRange("a", 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^values: got 3, but it must be a tuple of values"):
        Choice(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^values: got none"):
        Choice(())


def test_other_defaults_of_a_method_are_not_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, entrant = Study(replace(SMALL, tasks=1), tmp_path), Entrant("DGD", "dgd")
    first = study.run(entrant)
    changed = replace(METHODS["dgd"], defaults={"step_size": 0.01, "batch_size": None})
    monkeypatch.setitem(METHODS, "dgd", changed)
    assert not same(study.run(entrant), first)


class OnARing(Study):
    chords = 0
    weights: torch.Tensor | None = None

    def network(self, seed: int, config: NetworkConfig | None = None) -> Network:  # noqa: ARG002
        graph = nx.cycle_graph(self.config.task.agents)
        graph.add_edges_from((0, 10 + end) for end in range(self.chords))
        made = Network(graph, (config or self.config.network).shift)
        if self.weights is not None:
            made._operators = {torch.float64: self.weights}
        return made


def test_other_networks_of_a_study_are_not_read_from_the_cache(tmp_path: Path) -> None:
    config = replace(SMALL, tasks=1)
    plain, ring = Study(config, tmp_path), OnARing(config, tmp_path)
    found = [plain.run(DGD), ring.run(DGD)]
    assert len(list(tmp_path.iterdir())) == 1
    ring.chords = 2
    found.append(ring.run(DGD))
    ring.weights = torch.eye(config.task.agents, dtype=torch.float64)
    found.append(ring.run(DGD))
    plain.network = ring.network  # type: ignore[method-assign]
    assert same(plain.run(DGD), found[-1])
    assert not any(same(*pair) for pair in itertools.combinations(found, 2))


def test_a_trained_optimizer_runs_with_its_own_shift_operator(tmp_path: Path) -> None:
    config = preset("smoke")
    small = replace(config.surf, steps=1, validation_tasks=2)
    Experiment(replace(config, surf=small)).train(tmp_path / "run")
    asked: list[NetworkConfig | None] = []

    class Asked(Study):
        def network(self, seed: int, config: NetworkConfig | None = None) -> Network:
            asked.append(config)
            return super().network(seed, config)

    study = Asked(replace(SMALL, data=config.data, tasks=1), tmp_path / "cache")
    study.run(Entrant("U-DGD", run=tmp_path / "run"))
    assert {one.shift for one in asked if one is not None} == {config.network.shift}
    assert None not in asked


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    first = Study(SMALL, str(tmp_path)).run(DGD)
    assert len(list(tmp_path.iterdir())) == 1
    assert same(Study(SMALL, tmp_path).run(DGD), first)
    with pytest.raises(FileError, match="nowhere: there is no such run folder"):
        Study(SMALL).run(Entrant("U-DGD", run=str(tmp_path / "nowhere")))


def test_a_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    first = Study(SMALL, tmp_path).run(DGD)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert same(Study(SMALL, tmp_path).run(DGD), first)
    assert same(Study(SMALL, tmp_path).run(DGD), first)


def test_a_method_that_diverges_is_reported_and_harms_nobody() -> None:
    study = Study(replace(SMALL, rounds=200))
    wild = study.run(Entrant("wild", "dgd", {"step_size": 1e38, "batch_size": None}))
    (first, second) = wild.diverged
    assert first is not None
    assert second is not None
    tame = study.run(DGD)
    assert tame.diverged == [None, None]
    row = score(wild, study.ceiling(), study.config.task.agents)
    assert row.diverged == [first, second]
    assert row.accuracy[200][0] == 0.0


def test_all_methods_start_at_the_same_weights() -> None:
    study = Study(SMALL)
    losses = {
        round(float(study.run(Entrant(m.title, m.name, m.defaults)).loss[0, 0]), 4)
        for m in study.methods(("dgd", "dsgd", "extra", "exact-diffusion"))
    }
    assert len(losses) == 1


@pytest.mark.parametrize("preset", ["digits", "digits-star"])
def test_every_method_runs_with_its_defaults_and_learns(preset: str) -> None:
    study = Study(replace(STUDIES[preset].config, tasks=1, rounds=30))
    names = {method.name for method in study.methods()}
    assert names == {m.name for m in METHODS.values() if m.fits(study.network(0))}
    for method in study.methods():
        runs = study.run(Entrant(method.title, method.name, method.defaults))
        assert runs.diverged == [None], method.name
        assert float(runs.pooled_accuracy[0].max()) > 0.35, method.name


def test_a_server_method_is_refused_on_a_graph() -> None:
    with pytest.raises(ValueError, match="'fedavg', but it needs a server"):
        Study(SMALL).methods(("fedavg",))


def test_unknown_methods_and_settings_are_named() -> None:
    with pytest.raises(ValueError, match="methods: got 'nothing'"):
        method_named("nothing")
    with pytest.raises(ValueError, match=r"settings of dgd: got \['momentum'\]"):
        Study(SMALL).run(Entrant("DGD", "dgd", {"momentum": 0.5}))


def test_tuning_gives_every_method_the_same_trials_and_finds_the_best() -> None:
    study = Study(SMALL)
    budget = TuneConfig(trials=5, tasks=2, rounds=10)
    tuned = study.tune(method_named("dgd"), budget)
    scores = [trial.score for trial in tuned.trials]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert study.tune(method_named("dgd"), budget) == tuned


def test_a_trial_is_scored_after_a_tenth_of_the_rounds_and_in_the_end(monkeypatch) -> None:
    seen = []

    def watched(*arguments, **options):
        seen.append(run_all(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(tuning_module, "run_all", watched)
    tuned = Study(SMALL).tune(method_named("dgd"), TuneConfig(trials=1, tasks=2, rounds=20))
    (runs,) = seen
    assert runs.taken.tolist() == [2, 20]
    values = runs.pooled_accuracy.flatten().tolist()
    assert tuned.trials[0].score == pytest.approx(sum(values) / 4)


@pytest.mark.parametrize(("there", "median"), [(1, None), (2, 10.0), (3, 10.0)])
def test_when_a_share_is_reached_is_told_unless_fewer_than_half_of_the_tasks_got_there(
    there: int, median: float | None
) -> None:
    accuracy = torch.full((4, 3), 0.1)
    accuracy[:there, 1:] = 0.95
    rounds = torch.tensor([0, 10, 20]).expand(4, -1)
    runs = Trajectories("it", rounds, 8 * rounds, *[accuracy] * 5)
    found = {one.share: one for one in score(runs, torch.ones(4), 4).reached}
    assert found[0.9].tasks == there / 4
    assert found[0.9].rounds == median
    assert found[0.9].floats == (None if median is None else 8 * median / 4)
    assert found[0.99].rounds is None


def test_tuned_settings_survive_their_file(tmp_path: Path) -> None:
    study = Study(SMALL)
    tuned = study.tune(method_named("dgd"), TuneConfig(trials=3, tasks=1, rounds=5))
    write_tuned(tmp_path / "tuned.json", {"dgd": tuned}, SMALL, TuneConfig())
    assert read_tuned(tmp_path / "tuned.json") == {"dgd": tuned}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: [content], "not a file that"),
        (lambda content: {**content, "study": [1]}, "not a file that"),
        (lambda content: {**content, "methods": {"dgd": {"best": {}, "trials": []}}}, "not a file"),
        (
            lambda content: {
                **content,
                "methods": {"dgd": {**content["methods"]["dgd"], "best": {"step_size": 0.001}}},
            },
            "as the best settings of dgd, but the trial with the highest score has",
        ),
    ],
)
def test_a_tuned_file_that_was_spoilt_is_named(tmp_path: Path, capsys, spoil, message) -> None:
    study, file = Study(SMALL), tmp_path / "tuned.json"
    tuned = study.tune(method_named("dgd"), TuneConfig(trials=2, tasks=1, rounds=5))
    write_tuned(file, {"dgd": tuned}, SMALL, TuneConfig())
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    command = ["compare", "digits", "--tasks", "1", "--rounds", "2", "--methods", "dgd"]
    assert run_command([*command, "--tuned", str(file), "--folder", str(tmp_path / "study")]) == 1
    said = capsys.readouterr().err
    assert "tuned.json" in said
    assert message in said.replace("\n", "")


@pytest.mark.parametrize(
    ("method", "setting", "value", "message"),
    [
        ("dgd", "step_size", "0.1", "as the settings of dgd, which it cannot have"),
        ("dgd", "step_size", -1.0, "step_size: got -1.0, but it must be a finite number above 0"),
        ("dgd", "batch_size", 2.5, "batch_size: got 2.5, but it must be a whole number"),
        ("dfedavgm", "local_steps", 2.5, "local_steps: got 2.5, but it must be a whole number"),
    ],
)
def test_a_setting_that_a_method_cannot_have_is_named_with_its_file(
    tmp_path: Path, method: str, setting: str, value: Setting, message: str
) -> None:
    settings = {**method_named(method).defaults, setting: value}
    file = tmp_path / "tuned.json"
    write_tuned(file, {method: Tuned(method, [Trial(settings, 0.5)])}, SMALL, TuneConfig())
    with pytest.raises(FileError, match=rf"tuned.json: got .*{message}"):
        read_tuned(file)


def test_methods_that_two_processes_tune_are_both_kept(tmp_path: Path, monkeypatch) -> None:
    file, tune = tmp_path / "tuned.json", Study.tune
    command = ["tune", "digits", "--tasks", "1", "--file", str(file), "--budget.trials", "1"]
    command += ["--budget.tasks", "1", "--budget.rounds", "3", "--methods"]

    def meanwhile(study, method, *rest):
        monkeypatch.setattr(Study, "tune", tune)
        assert run_command([*command, "extra"]) == 0
        return tune(study, method, *rest)

    monkeypatch.setattr(Study, "tune", meanwhile)
    assert run_command([*command, "dgd"]) == 0
    assert set(read_tuned(file)) == {"dgd", "extra"}


def test_log_ranges_are_covered_evenly_in_the_logarithm() -> None:
    random = generator(0, "range")
    drawn = torch.tensor([LogRange(0.01, 100.0).draw(random) for _ in range(2000)])
    assert float(drawn.min()) >= 0.01
    assert float(drawn.max()) <= 100
    for edge, share in ((0.1, 0.25), (1.0, 0.5), (10.0, 0.75)):
        assert float((drawn < edge).double().mean()) == pytest.approx(share, abs=0.04)


def test_scores_count_the_rounds_until_a_share_of_the_ceiling() -> None:
    rounds = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]])
    accuracy = torch.tensor([[0.1, 0.5, 0.93, 0.96], [0.1, 0.91, 0.95, 1.0], [0.1, 0.2, 0.3, 0.4]])
    nothing = torch.zeros(3, 4)
    runs = Trajectories("m", rounds, 100 * rounds, nothing, nothing, accuracy, nothing, nothing)
    row = score(runs, torch.ones(3, dtype=torch.float64), 10, (2, 3, 5))
    assert row.accuracy[2][0] == pytest.approx((0.93 + 0.95 + 0.3) / 3)
    assert 5 not in row.accuracy
    by_share = {one.share: one for one in row.reached}
    assert (by_share[0.9].rounds, by_share[0.9].floats) == (2, 20)
    assert by_share[0.95].rounds == 3
    assert by_share[0.99].rounds is None
    assert by_share[0.99].tasks == pytest.approx(1 / 3)


@pytest.mark.parametrize("shape", [(1,), (3,), (), (2, 1)])
def test_a_ceiling_of_other_tasks_is_refused_by_name(shape: tuple[int, ...]) -> None:
    numbers = torch.zeros(2, 4)
    runs = Trajectories("m", *[numbers] * 7)
    wanted = rf"^ceiling: got shape {re.escape(str(list(shape)))}, .* 2 tasks: it must be \[2\]$"
    with pytest.raises(ValueError, match=wanted):
        score(runs, torch.ones(shape), 8, [5])


def test_recorded_steps_hold_the_start_the_first_rounds_and_the_end() -> None:
    assert recorded_steps(3) == [0, 1, 2, 3]
    steps = recorded_steps(207)
    assert steps[:21] == list(range(21))
    assert steps[-1] == 207
    assert {50, 100, 200} <= set(steps)


def test_a_study_needs_tasks_rounds_and_seeds() -> None:
    for bad, name in (
        ({"tasks": 0}, "tasks"),
        ({"rounds": 0}, "rounds"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, "seeds"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: got"):
            Study(replace(StudyConfig(), **bad))


def test_tune_and_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, folder = tmp_path / "tuned.json", tmp_path / "study"
    budget = ["--budget.trials", "2", "--budget.tasks", "1", "--budget.rounds", "5"]
    methods = ["--methods", "dgd", "extra"]
    assert run_command(["tune", "digits", "--file", str(tuned), *methods, *budget, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"dgd", "extra"}
    command = ["compare", "digits", "--folder", str(folder), "--tasks", "2", "--rounds", "20"]
    assert run_command([*command, *methods, "--tuned", str(tuned), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in report["entrants"]] == ["DGD", "EXTRA"]
    assert report["centralised"]["mean"] > 0.8
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "results.csv").read_text().startswith("method,accuracy_10")
    assert "DGD,0" in (folder / "trajectories.csv").read_text()
    last = {
        name: list(csv.DictReader((folder / name).open(encoding="utf-8")))[-1]
        for name in ("results.csv", "trajectories.csv")
    }
    assert len({row["method"] for row in last.values()}) == 1
    assert len({float(row["floats_per_agent"]) for row in last.values()}) == 1
    assert run_command([*command, *methods, "--tuned", str(tuned)]) == 0
    assert "EXTRA" in capsys.readouterr().out


def test_a_trained_optimizer_enters_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    data = ["--data.components", "8"]
    steps = ["--surf.steps", "4", "--surf.validation-tasks", "2"]
    assert run_command(["train", "smoke", "--folder", str(run), *steps]) == 0
    command = ["compare", "digits", "--methods", "dgd", "--tasks", "1", "--rounds", "10"]
    command += ["--runs", str(run)]
    assert run_command([*command, *data, "--folder", str(tmp_path / "a"), "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out[out.index("{") :])
    assert report["entrants"][0]["run"] == str(run)
    assert run_command([*command, "--folder", str(tmp_path / "b")]) == 1
    assert "the study's 32 features and 10 classes" in capsys.readouterr().err


def test_a_run_of_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    whole = preset("smoke")
    small = replace(whole.surf, steps=1, validation_tasks=2)
    experiment = Experiment(replace(whole, surf=small))
    experiment.train(tmp_path / "run")
    config = replace(SMALL, data=whole.data, tasks=1)
    entrant = Entrant("U-DGD", run=tmp_path / "run")
    Study(config, features=experiment.features).run(entrant)
    other = replace(experiment.features, train_x=2 * experiment.features.train_x)
    with pytest.raises(FileError, match="it differs in the features of its train part"):
        Study(config, features=other).run(entrant)


def test_components_that_the_backbone_does_not_have_need_not_agree(tmp_path: Path) -> None:
    whole = preset("smoke")
    pixels = replace(whole.data, backbone="none")
    small = replace(whole.surf, steps=1, validation_tasks=2)
    Experiment(replace(whole, data=pixels, surf=small)).train(tmp_path / "run")
    assert pixels.components != SMALL.data.components
    data = replace(SMALL.data, backbone="none")
    Study(replace(SMALL, data=data, tasks=1)).run(Entrant("U-DGD", run=tmp_path / "run"))


def test_faults_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = str(tmp_path / "run"), str(tmp_path / "study")
    faults = ["--network.faults.stale", "2", "--network.faults.loss", "0.2"]
    faults += ["--network.faults.weights", "kept-by-receiver"]
    steps = ["--surf.steps", "2", "--surf.validation-tasks", "2"]
    assert run_command(["train", "smoke", "--folder", run, *steps, *faults]) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["network"]["faults"]
    assert (stored["stale"], stored["loss"]) == (2, 0.2)
    command = ["compare", "digits", "--methods", "dgd", "lda", "--tasks", "1", "--rounds", "10"]
    command += ["--runs", run, "--data.components", "8", "--folder", folder, "--json"]
    ends = []
    for extra in ([], faults, [*faults, "--network.faults.leave", "0.2"], faults):
        capsys.readouterr()
        assert run_command([*command, *extra]) == 0
        rows = json.loads(capsys.readouterr().out)["entrants"]
        ends.append([row["end"] for row in rows])
    assert len(ends[0]) == 3
    assert ends[1] == ends[3]
    for one, other in ((0, 1), (1, 2)):
        assert all(left != right for left, right in zip(ends[one], ends[other], strict=True))


def test_calling_in_turn_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = str(tmp_path / "tuned.json"), str(tmp_path / "study")
    turns = ["--network.calling", "in-turn"]
    budget = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    tune = ["tune", "digits-star", "--file", file, *budget, "--methods"]
    assert run_command([*tune, "fedavg"]) == 0
    assert run_command([*tune, "fedprox", *turns]) == 1
    assert "network.calling (random there, in-turn here)" in capsys.readouterr().err
    command = ["compare", "digits-star", "--methods", "fedavg", "--tasks", "1", "--rounds", "4"]
    command += ["--tuned", file, "--folder", folder, "--json"]
    found = []
    for extra in ([], turns, ["--network.calling", "random"], turns):
        capsys.readouterr()
        assert run_command([*command, *extra]) == 0
        found.append(json.loads(capsys.readouterr().out))
    ends = [one["entrants"][0]["end"] for one in found]
    assert ends[0] == ends[2] != ends[1] == ends[3]  # and each from its own cache
    told = ["network.calling (random there, in-turn here)"]
    assert [one["tuned"]["differences"] for one in found] == [[], told, [], told]


def test_all_entrants_of_a_study_meet_the_same_faults() -> None:
    faults = FaultConfig(stale=3, loss=0.3, leave=0.1)
    network = replace(SMALL.network, faults=faults)
    study = Study(replace(SMALL, network=network))
    pattern = []
    for shift in ("metropolis", "adjacency"):  # a trained optimizer brings its own
        made = study.network(0, replace(network, shift=shift))
        made.reset(generator(0, "network", 1))
        rounds = [made.mix(torch.eye(30)) != 0 for _ in range(4)]
        pattern.append(torch.stack(rounds))
    assert torch.equal(*pattern)
    assert not pattern[0].all(0).equal(pattern[0].any(0))


def test_settings_tuned_without_faults_are_not_added_to_with_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "tuned.json")
    budget = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    command = ["tune", "digits", "--file", file, *budget]
    assert run_command([*command, "--methods", "dgd"]) == 0
    assert run_command([*command, "--methods", "dsgd", "--network.faults.loss", "0.1"]) == 1
    assert "network.faults.loss (0.0 there, 0.1 here)" in capsys.readouterr().err


def test_other_data_is_not_read_from_the_cache(tmp_path: Path) -> None:
    study = Study(SMALL, tmp_path)
    first = study.run(DGD)
    features = study.features
    other = replace(features, test_x=features.test_x.flip(1))
    assert not same(Study(SMALL, tmp_path, features=other).run(DGD), first)


def test_a_file_tuned_otherwise_is_not_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "tuned.json")
    budget = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    assert run_command(["tune", "digits", "--file", file, "--methods", "dgd", *budget]) == 0
    other = ["tune", "digits", "--file", file, "--methods", "dsgd"]
    assert run_command([*other, *budget, "--task.agents", "20"]) == 1
    assert "task.agents (30 there, 20 here)" in capsys.readouterr().err
    assert run_command([*other, *budget[:-1], "3"]) == 1
    assert "budget.rounds (2 there, 3 here)" in capsys.readouterr().err
    assert run_command([*other, *budget]) == 0
    compare = ["compare", "digits", "--folder", str(tmp_path / "study"), "--tuned", file]
    small = ["--tasks", "1", "--rounds", "2", "--methods", "extra"]
    assert run_command([*compare, *small]) == 1
    assert "a file without extra" in capsys.readouterr().err
    assert run_command(["compare", "digits-star", *compare[2:], *small[:-1], "dgd"]) == 1
    assert "tuned over a regular graph" in capsys.readouterr().err


def test_a_file_tuned_on_other_data_of_the_same_name_is_not_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = tmp_path / "own.npz", tmp_path / "tuned.json"
    given = np.random.default_rng(0).normal(size=(600, 64))
    np.savez(data, x=given, y=np.arange(600) % 10)
    small = ["--task.agents", "4", "--task.train-examples", "4", "--task.test-examples", "4"]
    budget = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    command = ["tune", "digits", "--data.source", str(data), "--file", str(file), *small, *budget]
    assert run_command([*command, "--methods", "dgd"]) == 0
    assert run_command([*command, "--methods", "dgd", "dsgd"]) == 0
    before = file.read_bytes()
    np.savez(data, x=given * np.arange(600)[:, None], y=np.arange(600) % 10)
    for methods in ("dgd", "extra", "all"):
        capsys.readouterr()
        assert run_command([*command, "--methods", methods]) == 1
        assert "tuned on other data under the same name" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_file_that_does_not_know_its_data_is_added_to(tmp_path: Path) -> None:
    file, budget = tmp_path / "tuned.json", TuneConfig(trials=1, tasks=1, rounds=2)
    tuned = {"dgd": Tuned("dgd", [Trial({"step_size": 0.3, "batch_size": None}, 0.5)])}
    write_tuned(file, tuned, STUDIES["digits"].config, budget)
    command = ["tune", "digits", "--file", str(file), "--methods", "dsgd", "--budget.trials", "1"]
    assert run_command([*command, "--budget.tasks", "1", "--budget.rounds", "2"]) == 0
    assert set(read_tuned(file)) == {"dgd", "dsgd"}


def test_an_operator_that_does_not_average_is_refused() -> None:
    study = Study(replace(SMALL, network=replace(SMALL.network, shift="laplacian")))
    with pytest.raises(
        ValueError, match=r"^network\.shift: got 'laplacian', .* dgd mixes averages"
    ):
        study.run(DGD)


def test_the_settings_of_an_entrant_are_those_that_it_runs_with() -> None:
    study = Study(replace(SMALL, seeds=(0, 1)))
    large = Entrant("DGD", "dgd", {"step_size": 0.3, "batch_size": 1000})
    assert study.settled(large).settings == {"step_size": 0.3, "batch_size": None}
    assert study.settled(DGD) == DGD
    assert same(study.run(large), study.run(DGD))


def test_a_batch_larger_than_an_agents_data_becomes_all_of_it() -> None:
    few = replace(SMALL, task=replace(SMALL.task, train_examples=4))
    wanted = Study(few).run(replace(DGD, settings={"step_size": 0.3, "batch_size": 10}))
    assert same(wanted, Study(few).run(DGD))
    assert same(Study(few).run(replace(DGD, settings={"step_size": 0.3})), Study(few).run(DGD))
    tuned = Study(few).tune(method_named("dgd"), TuneConfig(trials=2, tasks=1, rounds=2))
    assert {trial.settings["batch_size"] for trial in tuned.trials} == {None}


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({}, "nothing to run"),
        ({"method": "dgd", "pretrained": "softmax-head"}, "method and pretrained"),
        ({"run": "run", "pretrained": "softmax-head"}, "run and pretrained"),
    ],
)
def test_an_entrant_is_one_thing(given: dict[str, str], got: str) -> None:
    with pytest.raises(ValueError, match=f"entrant: got 'X' with {got}, but it must have one of"):
        Study(SMALL).run(Entrant("X", **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "dgd", "rounds": 5}, "rounds: got 5 for 'X', but only a pretrained"),
        ({"method": "dgd", "batch_size": 5}, "batch_size: got 5 for 'X', but only a pretrained"),
        ({"run": "run", "rounds": 5}, "rounds: got 5 for 'X', but only a pretrained"),
        ({"run": "run", "settings": {"a": 1}}, "settings: got {'a': 1} for 'X', but only a method"),
        (
            {"pretrained": "softmax-head", "settings": {"batch_size": 5}},
            "settings: got {'batch_size': 5} for 'X', but only a method",
        ),
    ],
)
def test_what_an_entrant_would_not_look_at_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Entrant("X", **given)  # type: ignore[arg-type]


def test_labels_of_any_length_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(replace(SMALL, tasks=1), tmp_path)
    entrants = [replace(DGD, label=letter * 300) for letter in ("x", "ß")]
    found = [study.run(entrant) for entrant in entrants]
    monkeypatch.setattr(study_module, "run_all", None)
    for entrant, runs in zip(entrants, found, strict=True):
        again = study.run(entrant)
        assert again.name == entrant.label
        assert same(again, runs)


class BreaksAt33(DGDAlgorithm):
    def step(self, state, task, network, generator):
        after = super().step(state, task, network, generator)
        return replace(after, weights=after.weights * math.nan) if after.steps == 33 else after


def test_a_shorter_run_leaves_the_columns_of_a_results_file_in_the_order_of_the_table(
    tmp_path: Path,
) -> None:
    command = ["compare", "digits", "--tasks", "1", "--rounds", "6", "--at", "2", "5"]
    command += ["--pretrained", "softmax-head", "--depths", "3", "--methods", "dgd"]
    assert run_command([*command, "--folder", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        short, long = csv.DictReader(file)
    columns = ["method", "accuracy_2", "accuracy_2_error", "accuracy_5", "accuracy_5_error"]
    assert list(short)[:5] == columns
    assert short["accuracy_2"]
    assert not short["accuracy_5"]
    assert long["accuracy_5"]


def test_one_task_and_one_round_are_said_in_the_singular(tmp_path: Path, capsys) -> None:
    command = ["compare", "digits", "--tasks", "1", "--rounds", "2", "--methods", "dgd"]
    command += ["--pretrained", "softmax-head", "--depths", "1", "2", "--folder", str(tmp_path)]
    assert run_command(command) == 0
    assert "after so many rounds; 1 task method" in " ".join(capsys.readouterr().out.split())
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        names = [row["method"] for row in csv.DictReader(file)]
    assert names == ["SURF-T, 1 round", "SURF-T, 2 rounds", "DGD"]


def test_divergence_is_told_to_the_round() -> None:
    study = Study(replace(SMALL, tasks=1))
    assert 33 not in recorded_steps(60)
    runs = study_module.run_all(
        BreaksAt33(study.model),
        study.test_tasks(0),
        study.network(0),
        60,
        record=recorded_steps(60),
    )
    assert runs.diverged == [33]
    assert int(runs.rounds[0, -1]) == 60
    every = study_module.run_all(
        BreaksAt33(study.model), study.test_tasks(0), study.network(0), 200
    )
    assert every.rounds[0].tolist() == list(range(201)), "by whole numbers, not by rounded shares"


def test_rounds_are_whole_where_one_of_the_tasks_diverged(tmp_path: Path) -> None:
    study, steps = Study(SMALL), recorded_steps(60)
    algorithms = (BreaksAt33(study.model), DGDAlgorithm(study.model))
    parts = [
        run(algorithm, task, study.network(0), 60, record=steps)
        for algorithm, task in zip(algorithms, study.test_tasks(0), strict=True)
    ]
    runs, ceiling = Trajectories.stack("DGD", parts), torch.ones(2)
    assert runs.diverged == [33, None]
    row = score(runs, ceiling, SMALL.task.agents)
    write_report(tmp_path, study, [DGD], [runs], [row], ceiling)
    with (tmp_path / "trajectories.csv").open(encoding="utf-8") as file:
        assert [float(moment["rounds"]) for moment in csv.DictReader(file)] == steps


def test_a_run_is_shown_at_its_end_wherever_that_is() -> None:
    study = Study(replace(SMALL, rounds=7))
    row = score(study.run(DGD), study.ceiling(), 30, [5])
    assert row.end[0] == 7
    assert list(row.accuracy) == [5]


def test_a_trained_optimizer_must_start_where_the_others_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    steps = ["--surf.steps", "2", "--surf.validation-tasks", "2"]
    start = ["--optimizer.initial-deviation", "0.5"]
    assert run_command(["train", "smoke", "--folder", run, *steps, *start]) == 0
    command = ["compare", "digits", "--data.components", "8", "--folder", str(tmp_path / "study")]
    assert run_command([*command, "--methods", "dgd", "--runs", run]) == 1
    assert "initial_deviation (0.5 there, 1.0 here)" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [{"trials": 0}, {"tasks": 0}, {"rounds": 0}])
def test_a_budget_must_be_positive(bad: dict[str, int]) -> None:
    budget = replace(TuneConfig(trials=1, tasks=1, rounds=1), **bad)
    with pytest.raises(ValueError, match="must be at least 1"):
        Study(SMALL).tune(method_named("dgd"), budget)


def test_the_same_study_draws_the_same_figure(tmp_path: Path) -> None:
    for name in ("a", "b"):
        command = ["compare", "digits", "--folder", str(tmp_path / name), "--methods", "dgd"]
        assert run_command([*command, "--tasks", "2", "--rounds", "5"]) == 0
    for file in ("figure.svg", "results.json", "results.csv", "trajectories.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("preset", ["digits", "digits-star"])
def test_a_pretrained_optimizer_enters_on_the_same_tasks_and_network(preset: str) -> None:
    study = Study(replace(STUDIES[preset].config, tasks=2))
    runs = study.run(Entrant("SURF-T", pretrained="softmax-head", rounds=5))
    assert runs.rounds[0].tolist() == [0, 2, 4, 5]
    again = run_all(load().on(study.model, 5), study.test_tasks(0), study.network(0), 3, seed=0)
    assert same(runs, again)
    assert runs.diverged == [None, None]
    assert float(runs.pooled_accuracy[:, -1].min()) > 0.3


def test_without_a_number_of_rounds_a_pretrained_optimizer_has_twenty() -> None:
    study = Study(replace(SMALL, tasks=1))
    runs = study.run(Entrant("SURF-T", pretrained="softmax-head"))
    assert int(runs.rounds[0, -1]) == 20


def test_results_of_other_weights_and_depths_are_not_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "optimizer.safetensors"
    small = {"optimizer": vars(load().config)}
    write_tensors(file, dict(load().named_parameters()), small)
    study = Study(replace(SMALL, tasks=1), tmp_path / "cache")
    entrant = Entrant("SURF-T", pretrained=str(file), rounds=4)
    first, deeper = study.run(entrant), study.run(replace(entrant, rounds=6))
    assert first.rounds.shape != deeper.rounds.shape
    with monkeypatch.context() as patch:
        patch.setattr(study_module, "run_all", None)
        assert same(study.run(entrant), first)
        assert same(study.run(replace(entrant, rounds=6)), deeper)
    changed = read_all_tensors(file)
    changed["graph.round_out.bias"][0] += 0.5
    write_tensors(file, changed, small)
    assert not same(study.run(entrant), first)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(FileError, match=r"optimizer\.safetensors: truncated"):
        study.run(entrant)


def test_results_of_an_older_layer_are_not_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer in a file keeps its bytes, and does something else where its layer is changed."""
    study = Study(replace(SMALL, tasks=1), tmp_path)
    entrant = Entrant("SURF-T", pretrained="softmax-head", rounds=2)
    identity = {"pretrained": digest("softmax-head"), "rounds": 2}
    with monkeypatch.context() as patch:
        patch.setattr(study, "_identity", lambda _: identity)
        patch.setattr(study, "test_tasks", lambda _: Study(SMALL).test_tasks(5)[:1])
        patch.setattr(study, "_is_as_configured", lambda: True)
        older = study.run(entrant)
    assert len(list(tmp_path.iterdir())) == 1
    found = study.run(entrant)
    assert not same(found, older)
    assert same(found, Study(replace(SMALL, tasks=1)).run(entrant))
    with monkeypatch.context() as patch:
        patch.setattr(study_module, "run_all", None)
        assert same(study.run(entrant), found)
        patch.setattr(study_module, "LAYER_VERSION", 99)
        with pytest.raises(TypeError):
            study.run(entrant)


def test_pretrained_optimizers_in_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine" / "optimizer.safetensors"
    about = {"optimizer": vars(load().config)}
    write_tensors(file, dict(load().named_parameters()), about)
    command = ["compare", "digits", "--folder", str(tmp_path / "study"), "--methods", "dgd"]
    command += ["--tasks", "1", "--rounds", "10", "--at", "5", "10"]
    entrants = ["--pretrained", "softmax-head", str(file), "--depths", "5", "10"]
    assert run_command([*command, *entrants, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["label"]: row for row in report["entrants"]}
    assert list(rows) == [
        "SURF-T, 5 rounds",
        "SURF-T, 10 rounds",
        "SURF-T (mine), 5 rounds",
        "SURF-T (mine), 10 rounds",
        "DGD",
    ]
    assert [row["pretrained"] for row in rows.values()] == [
        *["softmax-head"] * 2,
        *[str(file)] * 2,
        None,
    ]
    # The file holds the shipped weights: both are the same run.
    for depth in (5, 10):
        one, two = rows[f"SURF-T, {depth} rounds"], rows[f"SURF-T (mine), {depth} rounds"]
        assert one["end"] == two["end"]
        assert one["end"]["round"] == depth
    assert "SURF-T" in (tmp_path / "study" / "results.csv").read_text()
    assert run_command([*command, *entrants]) == 0
    assert "10 rounds" in capsys.readouterr().out
    # Files in folders of one name are told apart by their paths.
    other = tmp_path / "other" / "mine" / "optimizer.safetensors"
    write_tensors(other, dict(load().named_parameters()), about)
    twice = ["--pretrained", str(file), str(other), "--depths", "5", "--json"]
    assert run_command([*command, *twice]) == 0
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)["entrants"]]
    folders = [f"SURF-T ({one.parent}), 5 rounds" for one in (file, other)]
    assert labels == [*folders, "DGD"]
    # Files in one folder are told apart by their names.
    beside = file.with_name("beside.safetensors")
    write_tensors(beside, dict(load().named_parameters()), about)
    beside_each_other = [
        "--pretrained",
        *map(str, (file, beside, other)),
        "--depths",
        "5",
        "--json",
    ]
    assert run_command([*command, *beside_each_other]) == 0
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)["entrants"]]
    names = ("optimizer.safetensors", "beside.safetensors", "mine")
    assert labels == [*(f"SURF-T ({name}), 5 rounds" for name in names), "DGD"]
    batches = ["--pretrained", "softmax-head", "--depths", "5", "--batch-sizes", "3", "--json"]
    assert run_command([*command, *batches]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)["entrants"]}
    assert list(rows) == ["SURF-T, 5 rounds", "SURF-T, 5 rounds, batches of 3", "DGD"]
    assert [row["batch_size"] for row in rows.values()] == [None, 3, None]
    some, every = rows["SURF-T, 5 rounds, batches of 3"], rows["SURF-T, 5 rounds"]
    assert some["end"]["mean"] != every["end"]["mean"]
    assert some["floats_per_agent"] == every["floats_per_agent"]
    assert run_command([*command, "--batch-sizes", "3"]) == 1
    assert "batch_sizes: got [3], but only pretrained" in capsys.readouterr().err
    assert run_command([*command, "--pretrained", "softmax-head", "--batch-sizes", "0"]) == 1
    assert "batch_sizes: got 0" in capsys.readouterr().err
    assert run_command([*command, "--initial-deviation", "-1"]) == 1
    assert "initial_deviation: got -1.0" in capsys.readouterr().err
    assert run_command([*command, "--pretrained", "nothing"]) == 1
    assert "pretrained: got 'nothing'" in capsys.readouterr().err
    assert run_command([*command, "--at", "-3"]) == 1
    assert "at: got -3" in capsys.readouterr().err
    assert run_command([*command, "--pretrained", "softmax-head", "--depths", "0"]) == 1
    assert "depths: got 0" in capsys.readouterr().err
    assert run_command([*command, "--depths", "5", "10"]) == 1
    assert "depths: got [5, 10], but only pretrained optimizers" in capsys.readouterr().err
    assert run_command([*command, "--methods"]) == 1
    assert "methods: got none" in capsys.readouterr().err


def test_accuracy_is_shown_only_after_rounds_that_were_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "digits", "--tasks", "1", "--rounds", "27", "--json"]
    command += ["--folder", str(tmp_path / "study")]
    assert run_command([*command, "--methods", "dgd", "--at", "22"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "at: got 22, but classical methods are not looked at after that many rounds" in message
    assert message.endswith("take 20 or 25")
    assert not (tmp_path / "study").exists()
    assert run_command([*command, "--methods", "dgd", "--at", "25", "27", "28"]) == 0
    assert list(json.loads(capsys.readouterr().out)["entrants"][0]["accuracy"]) == ["25", "27"]
    # Of pretrained optimizers every step is known, also where they run longer than the others.
    longer = ["--methods", "--pretrained", "softmax-head", "--depths", "30", "--at", "22", "30"]
    assert run_command([*command, *longer]) == 0
    assert list(json.loads(capsys.readouterr().out)["entrants"][0]["accuracy"]) == ["22", "30"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["module"], "pretrained: got 'module', but it must be one of softmax-head, or"),
        (["softmax-head", "--depths", "5", "0"], "depths: got 0, but it must be between 1 and 200"),
        (["softmax-head", "--depths", "201"], "depths: got 201, but it must be between 1 and 200"),
    ],
)
def test_pretrained_optimizers_that_do_not_run_are_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    command = ["compare", "digits", "--tasks", "1", "--rounds", "2", "--methods", "dgd"]
    command += ["--folder", str(tmp_path / "study"), "--pretrained", *options]
    assert run_command(command) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "study").exists()


def test_a_figure_shows_names_as_they_are() -> None:
    runs = Study(SMALL).run(DGD)
    names = ["_old", "a $\\frac{$ b", "5 $"]
    figure = study_figure([replace(runs, name=name) for name in names], torch.tensor([0.5]), 30)
    figure.draw_without_rendering()
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [" _old", r"a \$\frac{\$ b", r"5 \$", "centralised"]


def test_the_figure_of_a_single_agent_has_no_logarithms_of_zero() -> None:
    alone = replace(SMALL, tasks=1, rounds=2, task=replace(SMALL.task, agents=1))
    study = Study(alone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = study_figure([study.run(DGD)], torch.tensor([0.5]), 1)
        figure.draw_without_rendering()
    assert figure.axes[1].get_xscale() == "linear"
    figure = study_figure([Study(SMALL).run(DGD)], torch.tensor([0.5]), 30)
    assert figure.axes[1].get_xscale() == "log"


def test_the_shift_operator_of_a_study_follows_its_graph() -> None:
    graph = STUDIES["digits"].config.network
    star = replace(graph, graph=replace(graph.graph, kind="star"), reporting=10)
    assert (
        Study(replace(SMALL, network=star)).config
        == Study(replace(STUDIES["digits-star"].config, tasks=2, rounds=6)).config
    )
    chosen = Study(replace(SMALL, network=replace(star, shift="metropolis")))
    assert chosen.config.network.shift == "metropolis"
    # The names under which results were stored before there was a choice.
    assert Study(SMALL).config.network.shift == "metropolis"
    assert Study(STUDIES["digits-star"].config).config.network.shift == "adjacency"


def test_a_star_by_override_is_the_star_of_the_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tasks", "1", "--rounds", "5", "--methods", "dgd", "--json", "--folder"]
    override = ["digits", "--network.graph.kind", "star", "--network.reporting", "10"]
    found = []
    for number, study in enumerate((override, ["digits-star"])):
        assert run_command(["compare", *study, *options, str(tmp_path / str(number))]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def compared(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict, str]:
    """What a small comparison on digits prints as JSON, and what it says besides."""
    capsys.readouterr()
    small = ["--tasks", "1", "--rounds", "3", "--json"]
    assert run_command(["compare", "digits", *small, *options]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_all_start_where_a_pretrained_optimizer_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--methods", "dgd", "--folder", str(tmp_path / "study")]
    pretrained = ["--pretrained", "softmax-head", "--depths", "3"]
    alone, _ = compared(capsys, *options)
    assert alone["study"]["initial_deviation"] == 1.0
    fair, said = compared(capsys, *options, *pretrained)
    assert fair["study"]["initial_deviation"] == 0.0
    assert "start" not in said
    zero, _ = compared(capsys, *options, *pretrained, "--initial-deviation", "0")
    assert zero == fair
    other, said = compared(capsys, *options, *pretrained, "--initial-deviation", "0.5")
    assert other["study"]["initial_deviation"] == 0.5
    note = "SURF-T starts at W = 0, the others at W_0 ~ N(0, 0.5²); with --initial-deviation 0 all"
    assert note in said
    assert any(note in one for one in other["notes"])
    assert json.loads((tmp_path / "study" / "results.json").read_text())["notes"] == other["notes"]
    # Nobody else starts anywhere.
    none, said = compared(
        capsys, "--methods", *options[2:], *pretrained, "--initial-deviation", "1"
    )
    assert (none["notes"], said) == ([], "")


def test_a_run_keeps_its_start_beside_a_pretrained_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    steps = ["--surf.steps", "2", "--surf.validation-tasks", "2"]
    assert run_command(["train", "smoke", "--folder", run, *steps]) == 0
    options = ["--data.components", "8", "--folder", str(tmp_path / "study"), "--runs", run]
    options += ["--methods", "--pretrained", "softmax-head", "--depths", "3"]
    found, said = compared(capsys, *options)
    assert found["study"]["initial_deviation"] == 1.0
    (note,) = found["notes"]
    assert note in said
    assert "the others at W_0 ~ N(0, 1²); the runs were meta-trained for theirs" in note


def test_a_study_without_a_start_has_the_papers(tmp_path: Path) -> None:
    first = Study(replace(SMALL, initial_deviation=1.0), tmp_path).run(DGD)
    assert SMALL.initial_deviation is None
    assert same(Study(SMALL, tmp_path).run(DGD), first)
    assert len(list(tmp_path.iterdir())) == 1, "the same key as when 1 was the default"


def test_settings_that_were_tuned_otherwise_are_used_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "tuned.json")
    budget = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    assert run_command(["tune", "digits", "--file", file, "--methods", "dgd", *budget]) == 0
    options = ["--methods", "dgd", "--folder", str(tmp_path / "study")]
    # Nothing differs but the sizes of the study.
    found, said = compared(capsys, *options, "--tuned", file, "--task.test-examples", "2")
    assert (found["notes"], said) == ([], "")
    assert found["tuned"] == {"file": file, "differences": []}
    for changed, told in (
        (
            ["--task.partition", "dirichlet"],
            "task.partition (class-imbalanced there, dirichlet here)",
        ),
        (["--initial-deviation", "0"], "initial_deviation (1.0 there, 0.0 here)"),
        (["--network.faults.loss", "0.1"], "network.faults.loss (0.0 there, 0.1 here)"),
        (["--network.graph.kind", "ring"], "network.graph.kind (regular there, ring here)"),
        (["--data.components", "16"], "data.components (32 there, 16 here)"),
    ):
        found, said = compared(capsys, *options, "--tuned", file, *changed)
        (note,) = found["notes"]
        assert note == (
            f"The settings of {file} were tuned on another study: {told}. "
            "`fedsurf tune` finds settings for this one."
        )
        assert note in said
        assert found["tuned"]["differences"] == [told]
    found, _ = compared(capsys, *options)
    (note,) = found["notes"]
    start = "The settings that come with fedsurf were tuned on another study: data.source ("
    assert note.startswith(f"{start}fashion-mnist-mini there, digits here), ")
    small = ["compare", "digits", "--tasks", "1", "--rounds", "3", *options]
    assert run_command(small) == 0
    assert start.split(":")[0] in " ".join(capsys.readouterr().out.split())


def test_settings_are_told_by_their_data_where_a_file_knows_it(tmp_path: Path) -> None:
    file, study = tmp_path / "tuned.json", Study(SMALL)
    tuned = {"dgd": Tuned("dgd", [Trial({"step_size": 0.3, "batch_size": None}, 0.5)])}
    data = fingerprint(study.features)
    write_tuned(file, tuned, SMALL, TuneConfig(), data)
    moved = replace(SMALL, data=replace(SMALL.data, source="elsewhere.npz"))
    assert tuned_otherwise(file, moved, data) == []
    other = fingerprint(replace(study.features, train_x=2 * study.features.train_x))
    (told,) = tuned_otherwise(file, SMALL, other)
    assert told == "the features of its train part (data of the same name)"
    (told,) = tuned_otherwise(file, moved, other)
    assert told == "data.source (digits there, elsewhere.npz here)"
    write_tuned(file, tuned, SMALL, TuneConfig())
    assert tuned_otherwise(file, moved, data) == [told]


UNEQUAL = replace(
    STUDIES["digits-star"].config,
    tasks=1,
    rounds=4,
    task=replace(SMALL.task, train_examples=16, fewest_train_examples=1, replacement=True),
)


@pytest.mark.parametrize("name", [m.name for m in METHODS.values() if "weighting" in m.options])
def test_unequal_agents_are_weighed_by_their_examples(name: str, tmp_path: Path) -> None:
    study, method = Study(UNEQUAL, tmp_path), method_named(name)
    given = Entrant(name, name)
    ways = [replace(given, settings={"weighting": one}) for one in ("uniform", "examples")]
    uniform, examples = (study.run(one) for one in ways)
    assert not same(uniform, examples)
    assert same(study.run(given), examples)
    assert study.settled(given).settings["weighting"] == "examples"
    assert study.settled(ways[0]).settings["weighting"] == "uniform"
    (trial,) = study.tune(method, TuneConfig(trials=1, tasks=1, rounds=2)).trials
    assert trial.settings["weighting"] == "examples"


def test_equal_agents_are_weighed_as_ever() -> None:
    study = Study(replace(UNEQUAL, task=replace(UNEQUAL.task, fewest_train_examples=None)))
    assert study.settled(Entrant("FedAvg", "fedavg")).settings == method_named("fedavg").defaults
    plain = study.run(Entrant("FedAvg", "fedavg"))
    assert same(study.run(Entrant("FedAvg", "fedavg", {"weighting": "uniform"})), plain)


def test_every_method_that_averages_through_a_server_can_weigh() -> None:
    weighing = {m.name for m in METHODS.values() if "weighting" in m.options}
    assert weighing == {m.name for m in METHODS.values() if m.runs_on == "server"} | {"one-shot"}
    with pytest.raises(ValueError, match=r"settings of dgd: got \['weighting'\]"):
        Study(UNEQUAL).run(Entrant("DGD", "dgd", {"weighting": "examples"}))
    with pytest.raises(ValueError, match="weighting: got 'size', but it must be 'uniform' or"):
        Study(UNEQUAL).run(Entrant("FedAvg", "fedavg", {"weighting": "size"}))


def test_unequal_agents_in_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits-star", "--tasks", "1", "--rounds", "2", "--json"]
    command += ["--methods", "fedavg", "dgd", "--folder", str(tmp_path)]
    for extra, weighting in (([], None), (["--task.fewest-train-examples", "2"], "examples")):
        assert run_command([*command, *extra]) == 0
        rows = json.loads(capsys.readouterr().out)["entrants"]
        assert [row["settings"].get("weighting") for row in rows] == [weighting, None]


def test_a_method_of_ones_own_is_tuned_and_compared_like_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fedsurf.Method(
        "own",
        "DGD of one's own",
        DGDAlgorithm,
        "any",
        {"step_size": LogRange(0.1, 1.0), "batch_size": Choice((None,))},
        {"step_size": 0.3, "batch_size": None},
    )
    monkeypatch.setitem(METHODS, "own", own)
    study, budget = Study(SMALL), TuneConfig(trials=1, tasks=1, rounds=2)
    assert own in study.methods()
    assert study.tune(own, budget).best == own.defaults
    assert same(study.run(Entrant("own", "own", own.defaults)), study.run(DGD))
    file, methods = tmp_path / "tuned.json", ["--methods", "dgd", "own"]
    sizes = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]
    assert run_command(["tune", "digits", "--file", str(file), *methods, *sizes]) == 0
    command = ["compare", "digits", "--folder", str(tmp_path), *methods, "--tasks", "1"]
    command += ["--rounds", "3", "--tuned", str(file), "--json"]
    capsys.readouterr()
    assert run_command(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in report["entrants"]] == ["DGD", "DGD of one's own"]
