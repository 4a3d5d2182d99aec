"""Experiments: run folders, resuming to the same bytes, and errors of damaged runs."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import CONFIG, features
from kill_and_resume import contents

from fedsurf.common.files import FileError, read_metadata
from fedsurf.common.writing import lock_folder, write_tensors
from fedsurf.evaluation.experiment import Experiment
from fedsurf.network import GraphConfig, NetworkConfig
from fedsurf.pretrained.config import PretrainConfig
from fedsurf.surf import DescentConfig, FixedProblems, MetaTraining
from fedsurf.surf.loop import RunFolder

HERE = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
}


class Diary:
    """An observer that keeps everything."""

    def __init__(self):
        self.starts, self.steps, self.validations = [], [], []

    def on_start(self, done, total):
        self.starts.append((done, total))

    def on_step(self, record):
        self.steps.append(record)

    def on_validation(self, record, best_by):
        self.validations.append((record, best_by))


class Stop(Exception):  # noqa: N818 - not an error
    pass


class StopAfter(Diary):
    """An observer that ends a run by an exception after a step."""

    def __init__(self, step):
        super().__init__()
        self.last = step

    def on_step(self, record):
        super().on_step(record)
        if record.step == self.last:
            raise Stop


@pytest.fixture(scope="module")
def data():
    return features()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Return a run without interruption, its observer and its best metadata."""
    path, diary = tmp_path_factory.mktemp("runs") / "whole", Diary()
    best = Experiment(CONFIG, data).train(path, observers=[diary])
    return path, diary, best


def test_a_run_folder_holds_configuration_log_best_and_state(whole):
    path, diary, best = whole
    assert sorted(file.name for file in path.iterdir()) == [
        "best.safetensors", "config.json", "data.json", "log.jsonl", "state-00000010",
    ]  # fmt: skip
    log = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [3, 6, 9, 10]
    assert [line["best_by"] for line in log] == [rule for _, rule in diary.validations]
    assert [line["loss"] for line in log] == [record.loss for record, _ in diary.validations]
    chosen = [line for line in log if line["best_by"]][-1]
    assert best["validation"]["step"] == chosen["step"]
    assert best["rule"] == chosen["best_by"]
    assert best == read_metadata(path / "best.safetensors")
    stored = json.loads((path / "config.json").read_text())
    assert stored["seed"] == 3
    assert stored["network"]["reporting"] == 2


def test_the_log_of_a_single_validation_task_has_null_for_its_infinite_errors(data, tmp_path):
    config = replace(CONFIG, surf=replace(CONFIG.surf, steps=2, validation_tasks=1))
    Experiment(config, data).train(tmp_path)
    assert "Infinity" not in (tmp_path / "log.jsonl").read_text()
    assert json.loads((tmp_path / "log.jsonl").read_text())["slack_error"] == [None, None]
    (state,) = tmp_path.glob("state-*")
    assert json.loads((state / "progress.json").read_text())["validations"][0]["slack_error"] == [
        None,
        None,
    ]
    assert read_metadata(tmp_path / "best.safetensors")["validation"]["slack_error"] == [None] * 2
    before = contents(tmp_path)
    Experiment(config, data).train(tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_observers_get_every_step_and_validation(whole):
    _, diary, _ = whole
    assert diary.starts == [(0, 10)]
    assert [record.step for record in diary.steps] == list(range(1, 11))
    assert [record.step for record, _ in diary.validations] == [3, 6, 9, 10]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(whole, data, tmp_path):
    path, _, _ = whole
    Experiment(CONFIG, data).train(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(path)
    Experiment(replace(CONFIG, seed=4), data).train(tmp_path / "other")
    assert contents(tmp_path / "other")["best.safetensors"] != contents(path)["best.safetensors"]


def test_each_training_of_an_experiment_starts_from_the_same_parameters(whole, data, tmp_path):
    experiment = Experiment(CONFIG, data)
    for name in ("one", "two"):
        experiment.train(tmp_path / name)
        assert contents(tmp_path / name) == contents(whole[0])


def test_no_global_generator_is_touched(data, tmp_path):
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    experiment = Experiment(replace(CONFIG, network=NetworkConfig(GraphConfig("regular"))), data)
    experiment.train(tmp_path / "run")
    experiment.test_tasks(2)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


SWINGING = replace(
    CONFIG,
    surf=replace(
        CONFIG.surf,
        steps=8,
        learning_rate=0.2,
        final_learning_rate=None,
        validate_every=1,
        descent=DescentConfig(constrained=False),
    ),
)


def test_the_best_optimizer_is_kept_if_later_ones_are_worse(data, tmp_path):
    path = tmp_path / "swinging"
    experiment = Experiment(SWINGING, data)
    best = experiment.train(path)
    log = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log]
    records = [loss for place, loss in enumerate(losses) if loss < min([*losses[:place], math.inf])]
    assert [line["loss"] for line in log if line["best_by"]] == records
    assert losses[-1] > min(losses) < losses[0]
    assert best["validation"]["loss"] == min(losses)
    again = Experiment(SWINGING, data)
    problems = FixedProblems(again.tasks, again.network, SWINGING.surf.tasks, 3)
    training = MetaTraining(again.optimizer, problems, SWINGING.surf, seed=3)
    for _ in range(best["validation"]["step"]):
        training.step()
    for found, expected in zip(
        experiment.optimizer.parameters(), again.optimizer.parameters(), strict=True
    ):
        assert torch.equal(found, expected)
    with pytest.raises(Stop):
        Experiment(SWINGING, data).train(tmp_path / "run", observers=[StopAfter(7)])
    Experiment(SWINGING, data).train(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(path)


@pytest.mark.parametrize("last", [1, 3, 4, 10])
def test_a_stopped_run_resumes_to_the_same_bytes(whole, data, tmp_path, last):
    with pytest.raises(Stop):
        Experiment(CONFIG, data).train(tmp_path / "run", observers=[StopAfter(last)])
    diary = Diary()
    best = Experiment(CONFIG, data).train(tmp_path / "run", resume=True, observers=[diary])
    assert diary.starts == [((last - 1) // 3 * 3, 10)]
    assert contents(tmp_path / "run") == contents(whole[0])
    assert best == whole[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_run_that_is_killed_at_any_file_operation_resumes_to_the_same_bytes(tmp_path):
    finished = subprocess.run(
        [sys.executable, HERE / "kill_and_resume.py", tmp_path],
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    whole, *resumed = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(resumed) > 30
    for run in resumed:
        assert run["files"] == whole["files"], f"killed at operation {run['point']}"


def test_a_finished_run_is_only_read(whole, data):
    path, _, best = whole
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    diary = Diary()
    assert Experiment(CONFIG, data).train(path, resume=True, observers=[diary]) == best
    assert diary.starts == [(10, 10)]
    assert diary.steps == []
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == times


def test_a_folder_with_files_is_refused_unless_resuming(whole, data, tmp_path):
    with pytest.raises(FileExistsError, match=r"whole: the folder is not empty"):
        Experiment(CONFIG, data).train(whole[0])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"the folder is not empty"):
        Experiment(CONFIG, data).train(tmp_path)
    with pytest.raises(FileError, match=r"config\.json: there is no such file"):
        Experiment(CONFIG, data).train(tmp_path, resume=True)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("resume", [False, True])
def test_an_empty_folder_is_like_a_new_one(whole, data, tmp_path, resume):
    Experiment(CONFIG, data).train(tmp_path, resume=resume)
    assert contents(tmp_path) == contents(whole[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, r"differs in seed \(3 there, 4 here\)"),
        ({"surf": replace(CONFIG.surf, steps=11)}, r"surf\.steps \(10 there, 11 here\)"),
        (
            {"surf": replace(CONFIG.surf, descent=DescentConfig(epsilon=0.5))},
            r"surf\.descent\.epsilon \(0\.01 there, 0\.5 here\)",
        ),
        (
            {"network": NetworkConfig()},
            r"network\.graph\.kind .*, network\.reporting \(2 there, None",
        ),
    ],
)
def test_resuming_with_another_configuration_names_what_differs(whole, data, change, message):
    before = contents(whole[0])
    with pytest.raises(ValueError, match=rf"whole: holds a run with another .*{message}"):
        Experiment(replace(CONFIG, **change), data).train(whole[0], resume=True)
    assert contents(whole[0]) == before


def test_a_loaded_run_has_the_best_parameters_and_its_configuration(whole, data):
    loaded = Experiment.load(whole[0], data)
    assert loaded.config == CONFIG
    trained = Experiment(CONFIG, data)
    trained.train(whole[0], resume=True)
    untrained = Experiment(CONFIG, data).optimizer
    for found, best, drawn in zip(
        loaded.optimizer.parameters(),
        trained.optimizer.parameters(),
        untrained.parameters(),
        strict=True,
    ):
        assert torch.equal(found, best)
        assert not torch.equal(found, drawn)


def test_folders_may_be_text(whole, data, tmp_path):
    short = replace(CONFIG, surf=replace(CONFIG.surf, steps=1))
    Experiment(short, data).train(str(tmp_path / "run"))
    assert Experiment.load(str(tmp_path / "run"), data).config == short
    assert Experiment.load(str(whole[0]), data).config == CONFIG


def test_a_folder_of_pretraining_is_named_as_such(tmp_path):
    folder = RunFolder(tmp_path / "pretrained")
    folder.begin(PretrainConfig(), resume=False)
    with pytest.raises(
        FileError, match=r"pretrained: made by a pretraining command, so it stores no"
    ):
        Experiment.load(folder.path)


def test_a_damaged_run_is_an_error_that_names_the_file(whole, data, tmp_path):
    with pytest.raises(FileError, match=r"nowhere: there is no such run folder"):
        Experiment.load(tmp_path / "nowhere", data)
    with pytest.raises(FileError, match=r"config\.json: there is no such file"):
        Experiment.load(tmp_path, data)

    def damaged(name, damage):
        copy = tmp_path / name
        shutil.copytree(whole[0], copy)
        damage(copy)
        return copy

    def change_config(**changes):
        def change(folder):
            content = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**content, **changes}))

        return change

    def truncate(name):
        return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:1000])

    no_best = damaged("no-best", lambda folder: (folder / "best.safetensors").unlink())
    with pytest.raises(FileError, match=r"no-best/best\.safetensors: there is no such file"):
        Experiment.load(no_best, data)
    half_best = damaged("half-best", truncate("best.safetensors"))
    with pytest.raises(FileError, match=r"half-best/best\.safetensors: truncated"):
        Experiment.load(half_best, data)
    half_config = damaged("half-config", truncate("config.json"))
    with pytest.raises(FileError, match=r"half-config/config\.json: truncated, damaged"):
        Experiment.load(half_config, data)
    unknown = damaged("unknown", change_config(colour="red"))
    for act in (
        lambda: Experiment.load(unknown, data),
        lambda: Experiment(CONFIG, data).train(unknown, resume=True),
    ):
        with pytest.raises(FileError, match=r"unknown: configuration: .*\['colour'\]"):
            act()
    other = {
        "optimizer": {
            **json.loads((whole[0] / "config.json").read_text())["optimizer"],
            "layers": 3,
        }
    }
    deeper = damaged("deeper", change_config(**other))
    with pytest.raises(FileError, match=r"deeper: best\.safetensors was .* optimizer\.layers"):
        Experiment.load(deeper, data)
    half_state = damaged("half-state", truncate("state-00000010/first_moments.safetensors"))
    with pytest.raises(FileError, match=r"first_moments\.safetensors: truncated"):
        Experiment(CONFIG, data).train(half_state, resume=True)
    no_progress = damaged(
        "no-progress", lambda folder: (folder / "state-00000010" / "progress.json").unlink()
    )
    with pytest.raises(FileError, match=r"progress\.json: there is no such file"):
        Experiment(CONFIG, data).train(no_progress, resume=True)


@pytest.mark.parametrize("content", [None, 5, [], {}, {"validations": [5]}])
def test_files_of_a_run_with_other_content_are_errors_that_name_them(
    whole, data, tmp_path, content
):
    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy)
    (copy / "state-00000010" / "progress.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"progress\.json: .*damaged"):
        Experiment(CONFIG, data).train(copy, resume=True)
    (copy / "data.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"data\.json: .*damaged"):
        Experiment(CONFIG, data).check_data(RunFolder(copy))
    write_tensors(copy / "best.safetensors", {}, {})
    with pytest.raises(FileError, match=r"best\.safetensors: .*damaged"):
        Experiment.load(copy, data)
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"config\.json: damaged|copy: configuration: lacks"):
        Experiment.load(copy, data)


@pytest.mark.parametrize("name", ["layers", "filter_order", "batch_size"])
def test_an_optimizer_larger_than_its_file_is_not_built(whole, data, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy)
    content = json.loads((copy / "config.json").read_text())
    content["optimizer"][name] = 10**12
    (copy / "config.json").write_text(json.dumps(content))
    write_tensors(copy / "best.safetensors", {}, {"config": content})
    with pytest.raises(FileError, match=rf"best\.safetensors: {name}: got {10**12}, but the file"):
        Experiment.load(copy, data)


def test_the_data_of_a_run_may_move_and_its_settings_may_not_change(whole, data, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy)
    content = json.loads((copy / "config.json").read_text())
    content["data"]["folder"] = str(tmp_path / "elsewhere")
    (copy / "config.json").write_text(json.dumps(content))
    Experiment.load(copy, data)
    content["optimizer"]["activation"] = "identity"
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"copy: best\.safetensors was .* optimizer\.activation"):
        Experiment.load(copy, data)


def test_two_processes_do_not_write_the_same_run(tmp_path, data):
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(FileExistsError, match=r"run: another process is writing"),
    ):
        Experiment(CONFIG, data).train(tmp_path / "run")
    Experiment(CONFIG, data).train(tmp_path / "run")


def test_a_run_does_not_resume_with_other_data_under_the_same_name(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 6)).astype(np.float32), np.arange(400) % 3
    source = tmp_path / "mine.npz"
    data = replace(CONFIG.data, source=str(source), backbone="none", components=None)
    config = replace(CONFIG, data=data)

    def save(x, y):
        np.savez(source, x=x, y=y)

    save(x, y)
    with pytest.raises(Stop):
        Experiment(config).train(tmp_path / "run", observers=[StopAfter(4)])
    loud = x.copy()
    loud[y == 1] *= 1.01
    others = {
        "the number of features, 5 instead of 6": (x[:, :5], y),
        "the examples of each class in its train part": (x[:-30], y[:-30]),
        "the features of its train part": (loud, y),
        "the signs, the order or the means of the features of its train part": (-x, y),
    }
    for found, other in others.items():
        save(*other)
        for attempt in (
            lambda: Experiment(config).train(tmp_path / "run", resume=True),
            lambda: Experiment.load(tmp_path / "run"),
        ):
            with pytest.raises(FileError, match=f"mine.npz, is not what .* in {found}"):
                attempt()
    save(x * np.float32(1 + 1e-6), y)  # another machine's rounding
    Experiment(config).train(tmp_path / "run", resume=True)
    Experiment.load(tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()
    with pytest.raises(FileError, match=r"data\.json: there is no such file"):
        Experiment.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["batch_size", "gradient_batch_size"])
def test_mini_batches_larger_than_the_smallest_possible_agent_are_refused(tmp_path, data, name):
    task = replace(CONFIG.task, train_examples=50, fewest_train_examples=2)
    part = "optimizer" if name == "batch_size" else "surf"
    config = replace(CONFIG, task=task, **{part: replace(getattr(CONFIG, part), **{name: 3})})
    with pytest.raises(ValueError, match=f"^{name}: got 3, but it must be between 1 and 2, "):
        Experiment(config, data).train(tmp_path / "run")
    assert not (tmp_path / "run").exists()
