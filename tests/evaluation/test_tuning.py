"""Tuning: equal budgets, and files of settings that only equal tuning extends."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import BUDGET, ONE_TASK, SMALL, STAR

from fedsurf.cli.main import run as run_command
from fedsurf.common.files import FileError
from fedsurf.evaluation import tuning
from fedsurf.evaluation.config import StudyConfig, TuneConfig
from fedsurf.evaluation.methods import Setting, method_named
from fedsurf.evaluation.run import run_all
from fedsurf.evaluation.study import Study, resolved
from fedsurf.evaluation.tuning import Trial, Tuned, TunedSettings, tune
from fedsurf.network import FaultConfig
from fedsurf.tasks.features import fingerprint

COMMAND = ["--budget.trials", "1", "--budget.tasks", "1", "--budget.rounds", "2"]


def tuned_dgd(study: Study, budget: TuneConfig = BUDGET) -> TunedSettings:
    settings: dict[str, Setting] = {"step_size": 0.3, "batch_size": None}
    return TunedSettings.of(study, budget, Tuned("dgd", [Trial(settings, 0.5)]))


def test_trials_are_sorted_by_score_and_a_function_of_the_seed() -> None:
    study, budget = Study(SMALL), TuneConfig(trials=5, tasks=2, rounds=10)
    tuned = study.tune(method_named("dgd"), budget)
    scores = [trial.score for trial in tuned.trials]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert study.tune(method_named("dgd"), budget) == tuned


def test_a_trial_is_scored_after_a_tenth_of_the_rounds_and_at_the_end(monkeypatch) -> None:
    seen = []

    def watched(*arguments, **options):
        seen.append(run_all(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(tuning, "run_all", watched)
    tuned = Study(SMALL).tune(method_named("dgd"), TuneConfig(trials=1, tasks=2, rounds=20))
    (runs,) = seen
    assert runs.taken.tolist() == [2, 20]
    values = runs.pooled_accuracy.flatten().tolist()
    assert tuned.trials[0].score == pytest.approx(sum(values) / 4)


def test_of_a_grid_the_first_of_equally_good_settings_is_the_best() -> None:
    budget = replace(BUDGET, rounds=6)
    grid = [{"step_size": size, "batch_size": None} for size in (1e38, 0.3, 0.3, 2e38)]
    tuned = Study(SMALL).tune(method_named("dgd"), budget, settings=grid)
    assert [trial.settings["step_size"] for trial in tuned.trials] == [0.3, 0.3, 1e38, 2e38]
    assert [trial.score for trial in tuned.trials[2:]] == [0.0, 0.0], "both diverged"


@pytest.mark.parametrize("name", ["trials", "tasks", "rounds"])
def test_a_budget_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: got 0, but it must be at least 1"):
        Study(SMALL).tune(method_named("dgd"), replace(BUDGET, **{name: 0}))


def test_the_command_writes_what_the_python_call_returns(tmp_path: Path, capsys) -> None:
    file, methods = tmp_path / "tuned.json", ["dgd", "extra"]
    command = ["tune", "digits", "--file", str(file), *COMMAND, "--methods", *methods]
    assert run_command([*command, "--json"]) == 0
    found = tune(Study(ONE_TASK), methods=methods, budget=BUDGET)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {name: tuned.to_dict() for name, tuned in found.methods.items()}
    assert TunedSettings.read(file).methods == found.methods
    assert run_command(command) == 0
    assert "EXTRA" not in (shown := capsys.readouterr().out)
    assert "extra" in shown


def test_methods_in_a_file_are_kept_unless_they_are_named(tmp_path: Path, monkeypatch) -> None:
    study, file = Study(ONE_TASK), tmp_path / "tuned.json"
    tuned_dgd(study).write(file)
    tuned, done = Study.tune, []

    def watched(self, method, *rest):
        done.append(method.name)
        return tuned(self, method, *rest)

    monkeypatch.setattr(Study, "tune", watched)
    found = tune(study, file, methods=["all"], budget=BUDGET)
    assert "dgd" not in done
    assert found == TunedSettings.read(file)
    assert found.methods["dgd"] == tuned_dgd(study).methods["dgd"]
    done.clear()
    tune(study, file, methods=["dgd"], budget=BUDGET)
    assert done == ["dgd"]


def test_methods_that_two_processes_tune_at_once_are_both_kept(tmp_path: Path, monkeypatch) -> None:
    file, study, tuned = tmp_path / "tuned.json", Study(ONE_TASK), Study.tune

    def meanwhile(self, method, *rest):
        monkeypatch.setattr(Study, "tune", tuned)
        tune(study, file, methods=["extra"], budget=BUDGET)
        return tuned(self, method, *rest)

    monkeypatch.setattr(Study, "tune", meanwhile)
    found = tune(study, file, methods=["dgd"], budget=BUDGET)
    assert set(found.methods) == set(TunedSettings.read(file).methods) == {"dgd", "extra"}


FAULTY = replace(SMALL.network, faults=FaultConfig(loss=0.1))


@pytest.mark.parametrize(
    ("config", "budget", "message"),
    [
        (replace(ONE_TASK, seeds=(3,)), BUDGET, r"seeds\.0 \(0 there, 3 here\)"),
        (
            replace(ONE_TASK, task=replace(SMALL.task, agents=20)),
            BUDGET,
            r"task\.agents \(30 there, 20",
        ),
        (
            replace(ONE_TASK, network=FAULTY),
            BUDGET,
            r"network\.faults\.loss \(0\.0 there, 0\.1 here",
        ),
        (ONE_TASK, replace(BUDGET, rounds=3), r"budget\.rounds \(2 there, 3 here\)"),
    ],
)
def test_a_file_of_other_tuning_is_not_extended(
    tmp_path: Path, config: StudyConfig, budget: TuneConfig, message: str
) -> None:
    file = tmp_path / "tuned.json"
    tuned_dgd(Study(ONE_TASK)).write(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=f"tuned.json: .*{message}"):
        tune(Study(config), file, methods=["dsgd"], budget=budget)
    assert file.read_bytes() == before
    longer = replace(ONE_TASK, tasks=5, rounds=7, seeds=(0, 1))
    assert set(tuned_dgd(Study(longer)).extended(file).methods) == {"dgd"}


def test_a_file_of_other_data_under_the_same_name_is_not_extended(tmp_path: Path) -> None:
    data, file = tmp_path / "own.npz", tmp_path / "tuned.json"
    x, y = np.random.default_rng(0).normal(size=(600, 64)), np.arange(600) % 10
    features = replace(SMALL.data, source=str(data))
    task = replace(SMALL.task, agents=4, train_examples=4, test_examples=4)
    config = replace(ONE_TASK, data=features, task=task)
    np.savez(data, x=x, y=y)
    tune(Study(config), file, methods=["dgd"], budget=BUDGET)
    tune(Study(config), file, methods=["dsgd"], budget=BUDGET)
    np.savez(data, x=x * np.arange(600)[:, None], y=y)
    with pytest.raises(ValueError, match="other data under the same name"):
        tune(Study(config), file, methods=["extra"], budget=BUDGET)


def test_settings_survive_their_file(tmp_path: Path) -> None:
    found = tune(
        Study(STAR), methods=["fedavg", "moon"], budget=TuneConfig(trials=3, tasks=1, rounds=2)
    )
    found.write(tmp_path / "tuned.json")
    assert TunedSettings.read(tmp_path / "tuned.json") == found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: [content],
        lambda content: {**content, "study": [1]},
        lambda content: {**content, "methods": {"dgd": []}},
        lambda content: {**content, "methods": {"dgd": [{"step_size": 0.1}]}},
        lambda content: {**content, "methods": {"dgd": [{"score": 1.0, "step_size": [1]}]}},
        lambda content: {**content, "methods": {"dgd": [{"score": 1.0, "batch_size": "a"}]}},
        lambda content: {**content, "study": {**content["study"], "seeds": []}},
        lambda content: {**content, "data": {}},
        lambda content: {**content, "data": {**content["data"], "train": 5}},
    ],
)
def test_a_damaged_file_of_settings_is_named(tmp_path: Path, spoil) -> None:
    file = tmp_path / "tuned.json"
    tuned_dgd(Study(SMALL)).write(file)
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    with pytest.raises(FileError, match=r"tuned\.json: not a file that"):
        TunedSettings.read(file)


def test_settings_know_in_what_their_study_differs_from_another() -> None:
    study = Study(SMALL)
    settings, data = tuned_dgd(study), fingerprint(study.features)
    size = replace(SMALL, tasks=7, rounds=9, seeds=(1,), task=replace(SMALL.task, test_examples=2))
    assert settings.differences_from(resolved(size), data) == []
    moved = replace(SMALL, data=replace(SMALL.data, source="elsewhere.npz"))
    assert settings.differences_from(resolved(moved), data) == [], (
        "the same data under another name"
    )
    other = fingerprint(replace(study.features, train_x=2 * study.features.train_x))
    (found,) = settings.differences_from(study.config, other)
    assert found == "the features of its train part (data of the same name)"
    (found,) = settings.differences_from(resolved(moved), other)
    assert found == "data.source (digits there, elsewhere.npz here)"
    for config, found in (
        (replace(SMALL, network=FAULTY), "network.faults.loss (0.0 there, 0.1 here)"),
        (replace(SMALL, initial_deviation=0.0), "initial_deviation (1.0 there, 0.0 here)"),
        (
            replace(SMALL, task=replace(SMALL.task, partition="dirichlet")),
            "task.partition (class-imbalanced there, dirichlet here)",
        ),
    ):
        assert settings.differences_from(resolved(config), data) == [found]


def test_settings_are_shipped_for_every_method() -> None:
    for server in (False, True):
        settings = TunedSettings.shipped(server=server)
        study = Study(STAR if server else SMALL)
        assert set(settings.methods) == {method.name for method in study.methods()}
