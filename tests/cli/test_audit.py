"""`fedsurf audit`: tables, files and errors."""

import csv
import json
from importlib.resources import files

import pytest

from fedsurf import pretrained
from fedsurf.cli.main import run

TINY = ["--surf.steps", "6", "--surf.validate-every", "3", "--surf.validation-tasks", "3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit") / "run"
    assert run(["train", "smoke", "--folder", str(folder), *TINY]) == 0
    return folder


def test_auditing_a_run_writes_numbers_and_a_figure(trained, tmp_path, capsys):
    figure, folder = tmp_path / "figure.svg", tmp_path / "audit"
    command = ["audit", str(trained), "--tasks", "3", "--agents", "4"]
    assert run([*command, "--figure", str(figure), "--folder", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "name other data" in shown
    assert figure.read_text().lstrip().startswith("<?xml")
    written = json.loads((folder / "audit.json").read_text())
    assert written["sentence"] in shown
    assert written["tasks"] == 3
    rows = list(csv.DictReader((folder / "audit.csv").open()))
    assert [row["name"] for row in rows] == [row["name"] for row in written["rows"]]
    assert float(rows[1]["accuracy"]) == written["rows"][1]["accuracy"]


def test_a_pretrained_optimizer_is_audited_by_name_and_by_file(capsys):
    options = ["--tasks", "2", "--rounds", "6", "--agents", "10", "--json"]
    assert run(["audit", "softmax-head", *options]) == 0
    named = json.loads(capsys.readouterr().out)
    inside = files(pretrained) / "softmax-head.safetensors"
    assert run(["audit", str(inside), *options]) == 0
    assert json.loads(capsys.readouterr().out) == named
    assert named["verdict"] == "learned to learn"
    assert named["study"]["data"]["source"] == "digits"
    assert "did not have" in named["rows"][5]["note"]


def test_a_run_can_be_audited_on_another_study_that_fits(trained, capsys):
    assert run(["audit", str(trained), "--study", "digits", "--tasks", "2"]) == 1
    assert "got 32 features and 10 classes" in capsys.readouterr().err
    assert run(["audit", str(trained), "--study", "digits-star", "--tasks", "2"]) == 1
    assert "must be over a graph" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "run: got 'nowhere'"),
        (["nowhere.safetensors"], "nowhere.safetensors: there is no such file"),
        (["softmax-head", "--study", "nothing"], "study: got 'nothing'"),
        (["softmax-head", "--tasks", "1"], "tasks: got 1"),
        (["softmax-head", "--rounds", "0"], "rounds: got 0"),
        (["softmax-head", "--other", "nothing"], "other: got 'nothing'"),
    ],
)
def test_invalid_options_exit_with_1_and_name_the_argument(options, message, capsys):
    assert run(["audit", *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_takes_no_rounds(trained, capsys):
    assert run(["audit", str(trained), "--rounds", "5"]) == 1
    assert "rounds: got 5" in capsys.readouterr().err


def test_a_checkpoint_of_a_run_is_refused(trained, capsys):
    assert run(["audit", str(trained / "best.safetensors")]) == 1
    assert "does not hold an optimizer of softmax heads" in " ".join(
        capsys.readouterr().err.split()
    )
