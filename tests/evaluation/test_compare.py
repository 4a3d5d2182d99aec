"""Comparisons: the command is the Python call, labels, notes on fairness, files."""

import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from studies import BUDGET, DGD, ONE_TASK, SMALL, STAR, UNEQUAL

from fedsurf.cli.main import run as run_command
from fedsurf.common.writing import write_tensors
from fedsurf.evaluation.compare import Comparison, compare
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.plots import study_figure
from fedsurf.evaluation.presets import preset
from fedsurf.evaluation.study import Study
from fedsurf.evaluation.tuning import tune
from fedsurf.network import FaultConfig
from fedsurf.pretrained import load

FILES = ("results.json", "results.csv", "trajectories.csv", "figure.svg")


def with_network(config: StudyConfig, **changes: Any) -> StudyConfig:
    return replace(config, network=replace(config.network, **changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, path = preset("smoke"), tmp_path_factory.mktemp("runs") / "run"
    surf = replace(config.surf, steps=1, validation_tasks=2)
    Experiment(replace(config, surf=surf)).train(path)
    return path


def test_the_command_writes_and_prints_what_the_python_call_returns(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(ONE_TASK, data=preset("smoke").data, tasks=2)
    found = compare(
        config,
        methods=["dgd", "extra"],
        runs=[trained],
        pretrained=["softmax-head"],
        depths=[3],
        at=[2, 3],
    )
    found.write(tmp_path / "python")
    command = ["compare", "digits", "--data.components", "8", "--tasks", "2", "--rounds", "3"]
    command += ["--methods", "dgd", "extra", "--runs", str(trained), "--at", "2", "3"]
    command += ["--pretrained", "softmax-head", "--depths", "3"]
    folder = ["--folder", str(tmp_path / "command")]
    assert run_command([*command, *folder, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads(json.dumps(found.to_dict()))
    assert all(note in printed.err for note in found.notes)
    for name in FILES:
        written = [(tmp_path / place / name).read_bytes() for place in ("python", "command")]
        assert written[0] == written[1], name
    assert (tmp_path / "python" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert run_command([*command, *folder]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    labels = ["SURF-T, 3 rounds", "run", "DGD", "EXTRA"]
    assert [score.label for score in found.scores] == labels
    assert all(text in shown for text in [*labels, *(note.split(":")[0] for note in found.notes)])


def test_files_have_all_entrants_and_count_floats_per_agent(tmp_path: Path) -> None:
    compare(
        ONE_TASK,
        methods=["dgd"],
        pretrained=["softmax-head"],
        depths=[1, 2],
        at=[1, 3],
    ).write(tmp_path)
    rows, moments = (
        list(csv.DictReader((tmp_path / name).open(encoding="utf-8")))
        for name in ("results.csv", "trajectories.csv")
    )
    names = ["SURF-T, 1 round", "SURF-T, 2 rounds", "DGD"]
    assert [row["method"] for row in rows] == names
    columns = ["method", "accuracy_1", "accuracy_1_error", "accuracy_3", "accuracy_3_error"]
    assert list(rows[0])[:5] == columns
    assert rows[0]["accuracy_1"]
    assert [bool(row["accuracy_3"]) for row in rows] == [False, False, True]
    for count in ("floats_per_agent", "bytes_per_agent"):
        assert float(moments[-1][count]) == float(rows[-1][count]) > 0
    assert [moment["rounds"] for moment in moments if moment["method"] == "DGD"] == list("0123")


def test_pretrained_optimizers_are_told_apart_by_name_folder_rounds_and_batches(
    tmp_path: Path,
) -> None:
    metadata = {"optimizer": vars(load().config)}
    mine, other = tmp_path / "mine" / "a.safetensors", tmp_path / "b" / "mine" / "a.safetensors"
    neighbour = mine.with_name("b.safetensors")
    for file in (mine, other, neighbour):
        write_tensors(file, dict(load().named_parameters()), metadata)

    def labels(*files: object, **options: Any) -> list[str]:
        names = [str(file) for file in files]
        found = compare(ONE_TASK, methods=[], pretrained=names, **{"depths": [2], **options})
        # The files hold the shipped weights.
        assert len({score.end for score in found.scores if "batches" not in score.label}) == 1
        return [score.label for score in found.scores]

    assert labels("softmax-head", mine) == ["SURF-T, 2 rounds", "SURF-T (mine), 2 rounds"]
    assert labels(mine, other) == [f"SURF-T ({f.parent}), 2 rounds" for f in (mine, other)]
    places = ("a.safetensors", "b.safetensors", "mine")
    assert labels(mine, neighbour, other) == [f"SURF-T ({place}), 2 rounds" for place in places]
    both = ["SURF-T, 2 rounds", "SURF-T, 2 rounds, batches of 3"]
    assert labels("softmax-head", batch_sizes=[3]) == both


def notes(config: StudyConfig, **options: Any) -> list[str]:
    return compare(config, **options).notes


def test_all_start_at_0_with_a_pretrained_optimizer_unless_the_study_decides(trained: Path) -> None:
    pretrained: dict[str, Any] = {"pretrained": ["softmax-head"], "depths": [2]}
    fair = compare(ONE_TASK, methods=["dgd"], **pretrained)
    assert fair.config.initial_deviation == 0.0
    assert not any("start" in note for note in fair.notes)
    zero = compare(replace(ONE_TASK, initial_deviation=0.0), methods=["dgd"], **pretrained)
    assert zero.to_dict() == fair.to_dict()
    other = replace(ONE_TASK, initial_deviation=0.5)
    (note, *_) = notes(other, methods=["dgd"], **pretrained)
    assert "W_0 ~ N(0, 0.5²); with --initial-deviation 0 all start" in note
    assert notes(other, methods=[], **pretrained) == [], "no other entrant starts elsewhere"
    assert compare(ONE_TASK, methods=["dgd"]).config.initial_deviation == 1.0
    with_run = replace(ONE_TASK, data=preset("smoke").data)
    (note,) = notes(with_run, methods=[], runs=[trained], **pretrained)
    assert "the others at W_0 ~ N(0, 1²); the runs were meta-trained for theirs" in note


def test_settings_of_another_study_are_used_with_a_note(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    tune(Study(ONE_TASK), file, methods=["dgd"], budget=BUDGET)
    assert notes(ONE_TASK, methods=["dgd"], tuned=file) == []
    ring = with_network(ONE_TASK, graph=replace(ONE_TASK.network.graph, kind="ring"))
    found = compare(ring, methods=["dgd"], tuned=file)
    told = "network.graph.kind (regular there, ring here)"
    assert found.tuned == {"file": str(file), "differences": [told]}
    assert found.notes == [
        f"The settings of {file} were tuned on another study: {told}. "
        "`fedsurf tune` finds settings for this one."
    ]
    (note,) = notes(ONE_TASK, methods=["dgd"])
    start = "The settings that come with fedsurf were tuned on another study: data.source ("
    assert note.startswith(f"{start}fashion-mnist-mini there, digits here), ")
    with pytest.raises(ValueError, match="a file without extra"):
        compare(ONE_TASK, methods=["extra"], tuned=file)
    with pytest.raises(ValueError, match="tuned over a regular graph, but the study is a star"):
        compare(STAR, methods=["dgd"], tuned=file)


def test_faults_and_callings_change_all_results_and_have_cache_entries_of_their_own(
    tmp_path: Path,
) -> None:
    faults = FaultConfig(stale=2, loss=0.2, weights="kept-by-receiver")
    configs = [ONE_TASK, with_network(ONE_TASK, faults=faults)]
    configs += [with_network(ONE_TASK, faults=replace(faults, leave=0.2))]
    ends = [
        [score.end for score in compare(config, methods=["dgd", "lda"], cache=tmp_path).scores]
        for config in [*configs, configs[1]]
    ]
    assert ends[1] == ends[3]
    for method in range(2):
        assert len({found[method] for found in ends}) == 3
    ends = [
        [score.end for score in compare(config, methods=["fedavg"], cache=tmp_path).scores]
        for config in (STAR, with_network(STAR, calling="in-turn"), STAR)
    ]
    assert ends[0] == ends[2] != ends[1]


def test_a_comparison_shows_the_weighting_of_unequal_agents() -> None:
    for config, weighting in ((STAR, None), (UNEQUAL, "examples")):
        found = compare(config, methods=["fedavg", "dgd"])
        settings = [entrant.settings.get("weighting") for entrant in found.entrants]
        assert settings == [weighting, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": []}, "methods: got none"),
        ({"batch_sizes": [3]}, r"batch_sizes: got \[3\], but only pretrained"),
        ({"depths": [5, 10]}, r"depths: got \[5, 10\], but only pretrained optimizers"),
        ({"pretrained": ["softmax-head"], "batch_sizes": [0]}, "batch_sizes: got 0"),
        ({"pretrained": ["softmax-head"], "depths": [5, 0]}, "depths: got 0, but it must be betw"),
        ({"pretrained": ["softmax-head"], "depths": [201]}, "depths: got 201, but it must be"),
        ({"pretrained": ["module"]}, "pretrained: got 'module', but it must be one of softmax-h"),
        ({"at": [-3]}, "at: got -3"),
        ({"at": [22]}, "at: got 22, but classical methods are not recorded .* take 20 or 25"),
    ],
)
def test_impossible_options_are_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(Study, "run_algorithm", lambda *_, **__: pytest.fail("the work began"))
    with pytest.raises(ValueError, match=f"^{message}"):
        compare(replace(ONE_TASK, rounds=27), **{"methods": ["dgd"], **options})


def test_accuracy_is_shown_after_recorded_rounds_only() -> None:
    config = replace(ONE_TASK, rounds=27)
    (row,) = compare(config, methods=["dgd"], at=[25, 27, 28]).scores
    assert list(row.accuracy) == [25, 27]
    # Every step of a pretrained optimizer is recorded.
    pretrained: dict[str, Any] = {"pretrained": ["softmax-head"], "depths": [30]}
    (row,) = compare(config, methods=[], at=[22, 30], **pretrained).scores
    assert list(row.accuracy) == [22, 30]


def test_figures_show_labels_literally_and_a_single_agent() -> None:
    runs = Study(SMALL).run(DGD)
    names = ["_old", "a $\\frac{$ b", "5 $"]
    figure = study_figure([replace(runs, name=name) for name in names], torch.tensor([0.5]), 30)
    figure.draw_without_rendering()
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [" _old", r"a \$\frac{\$ b", r"5 \$", "centralised"]
    assert figure.axes[1].get_xscale() == "log"
    alone = Study(replace(ONE_TASK, task=replace(SMALL.task, agents=1))).run(DGD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = study_figure([alone], torch.tensor([0.5]), 1)
        figure.draw_without_rendering()
    assert figure.axes[1].get_xscale() == "linear", "there are no floats to take logarithms of"


def test_a_comparison_is_the_same_each_time(tmp_path: Path) -> None:
    found: list[Comparison] = []
    for name in ("a", "b"):
        found.append(compare(ONE_TASK, methods=["dgd"], cache=tmp_path / "cache"))
        found[-1].write(tmp_path / name)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
