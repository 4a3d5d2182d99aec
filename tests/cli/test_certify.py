"""`fedsurf certify`: tables, files and errors."""

import csv
import json
import shutil

import pytest

from fedsurf import certify
from fedsurf.cli.main import run

TINY = ["--surf.steps", "6", "--surf.validate-every", "3", "--surf.validation-tasks", "3"]
FILES = {f"certificate.{ending}" for ending in ("json", "csv", "png", "svg")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certify") / "run"
    assert run(["train", "smoke", "--folder", str(folder), *TINY]) == 0
    return folder


def test_certify_prints_tables_and_the_sentence_and_writes_files(trained, tmp_path, capsys):
    before = {path.name for path in trained.iterdir()}
    place = tmp_path / "new" / "folder"
    assert run(["certify", str(trained), "--tasks", "3", "--out", str(place)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = certify(trained, tasks=3)
    assert " ".join(found.sentence.split()) in shown
    assert "on 3 meta-test tasks" in shown
    assert "…" not in shown, "nothing is cut off, however narrow the terminal"
    assert {path.name for path in place.iterdir()} == FILES
    assert {path.name for path in trained.iterdir()} == before
    content = json.loads((place / "certificate.json").read_text())
    assert content == json.loads(json.dumps(found.to_dict()))
    with (place / "certificate.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.layers)
    assert float(rows[1]["slack"]) == found.layers["slack"][1]
    assert rows[0]["slack"] == ""
    assert float(rows[1]["in_mean_bound"]) == found.in_mean.values[1]


def test_files_go_into_the_run_by_default_and_json_is_printed(trained, capsys):
    arguments = ["--tasks", "2", "--confidence", "0.8", "--gradient-examples", "all", "--json"]
    assert run(["certify", str(trained), *arguments]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["confidence"] == 0.8
    assert content["gradient"].endswith("all training examples")
    assert content == json.loads((trained / "certificate.json").read_text())
    assert {path.name for path in trained.iterdir()} >= FILES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such run folder"),
        (["softmax-head"], "softmax-head: there is no such run folder"),
        (["RUN", "--tasks", "1"], "tasks: got 1, but it must be at least 2"),
        (["RUN", "--confidence", "95"], "confidence: got 95.0"),
        (["RUN", "--training-tasks", "1"], "training_tasks: got 1"),
    ],
)
def test_errors_name_the_argument_and_leave_no_files(trained, arguments, message, tmp_path, capsys):
    words = [str(trained) if word == "RUN" else word for word in arguments]
    assert run(["certify", *words, "--out", str(tmp_path / "out")]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_truncated_optimizer_is_refused(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "copy")
    best = folder / "best.safetensors"
    best.write_bytes(best.read_bytes()[:-100])
    assert run(["certify", str(folder), "--tasks", "2"]) == 1
    assert "best.safetensors: truncated, damaged" in " ".join(capsys.readouterr().err.split())


def test_help_lists_the_options(capsys):
    with pytest.raises(SystemExit) as stop:
        run(["certify", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--tasks", "--confidence", "--out", "vacuous"))
