"""The commands as a user types them, in this process: exit codes, output, files."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

import fedsurf
from fedsurf.cli.main import run

TINY = ["--surf.steps", "6", "--surf.validate-every", "3", "--surf.validation-tasks", "3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert run(["train", "smoke", "--folder", str(folder), *TINY]) == 0
    return folder


def test_all_that_the_package_exports_is_there() -> None:
    for name in fedsurf.__all__:
        assert getattr(fedsurf, name) is not None
        assert name in dir(fedsurf)
    with pytest.raises(AttributeError, match="attribute Nothing"):
        _ = fedsurf.Nothing


def test_the_package_imports_what_is_asked_for_only() -> None:
    code = (
        "import sys, fedsurf; print('torch' in sys.modules); import fedsurf.cli.audit; "
        "print(callable(fedsurf.audit), fedsurf.models.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True", "fedsurf.models"]


def test_a_wrong_command_line_exits_with_2() -> None:
    with pytest.raises(SystemExit) as stop:
        run(["train", "smoke", "--no-such-option"])
    assert stop.value.code == 2


def test_train_leaves_a_complete_run_folder(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    # Other tests may have written their evaluation there before.
    assert names - {"evaluation.json"} == {
        "config.json",
        "data.json",
        "log.jsonl",
        "best.safetensors",
        "state-00000006",
    }
    config = json.loads((trained / "config.json").read_text())
    assert config["surf"]["steps"] == 6
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [3, 6]
    assert any(line["best_by"] for line in log)


def test_train_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run")
    assert run(["train", "smoke", "--folder", folder, *TINY, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == folder
    assert result["validation"]["step"] in (3, 6)


def test_a_folder_with_blanks_and_colons_is_shown_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one = ["--surf.steps", "1", "--surf.validation-tasks", "1"]
    assert run(["train", "smoke", "--folder", "my run:ok:", *one]) == 0
    assert capsys.readouterr().out.endswith("Next: fedsurf evaluate 'my run:ok:'\n")


def test_json_is_valid_even_where_an_error_is_infinite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    one = ["--surf.steps", "2", "--surf.validation-tasks", "1"]
    assert run(["train", "smoke", "--folder", folder, *one, "--json"]) == 0
    assert "Infinity" not in capsys.readouterr().out
    assert run(["evaluate", folder, "--tasks", "1", "--rounds", "2", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["unrolled"]["layers"][1]["loss_error"] is None
    assert "Infinity" not in (tmp_path / "run" / "evaluation.json").read_text()
    # One task does not tell whether a constraint holds.
    assert [row["constraint_holds"] for row in result["unrolled"]["layers"][1:]] == [None] * 3
    assert run(["evaluate", folder, "--tasks", "1", "--rounds", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no constraint is judged" in shown
    assert "Accuracy on 1 meta-test task (" in shown
    assert "inf" not in shown
    assert "yes" not in shown
    assert "NO" not in shown


def test_a_used_folder_is_refused_without_resume(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "smoke", "--folder", str(trained), *TINY]) == 1
    assert "resume" in capsys.readouterr().err


def test_resuming_with_another_configuration_names_the_field(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["train", "smoke", "--folder", str(trained), *TINY, "--resume"]
    assert run([*again, "--seed", "1"]) == 1
    assert "seed (0 there, 1 here)" in capsys.readouterr().err
    assert run(again) == 0


def test_evaluate_prints_tables_numbers_and_a_figure(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "figure.svg"
    options = ["--tasks", "3", "--rounds", "4", "27"]
    assert run(["evaluate", str(trained), *options, "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "U-DGD" in shown
    assert "centralised" in shown
    assert figure.read_text().lstrip().startswith("<?xml")
    assert run(["evaluate", str(trained), *options, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    by_python = fedsurf.evaluate(fedsurf.Experiment.load(trained), tasks=3, rounds=(4, 27))
    assert result == {"run": str(trained), **json.loads(json.dumps(by_python.to_dict()))}
    assert result["tasks"] == 3
    assert [row["rounds"] for row in result["unrolled"]["layers"]] == [0, 2, 4, 6]
    assert [len(runs["rounds"]) for runs in result["classical"]] == [5, 23]
    for runs in result["classical"]:
        assert all(row["step"] == row["rounds"] for row in runs["rounds"])
    assert [row["step"] for row in result["classical"][1]["rounds"][20:]] == [20, 25, 27]
    layers = result["unrolled"]["layers"]
    kept = 1 - fedsurf.preset("smoke").surf.descent.epsilon
    for before, row in itertools.pairwise(layers):
        fallen = row["constraint_norm"] - kept * before["constraint_norm"]
        assert row["slack"] == pytest.approx(fallen, abs=1e-6)
        assert isinstance(row["constraint_holds"], bool)
    assert json.loads((trained / "evaluation.json").read_text())["tasks"] == 3


def test_ablation_shows_both_optimizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ablation"
    command = ["ablation", "smoke", "--folder", str(folder), *TINY, "--tasks", "3", "--json"]
    assert run(command) == 0
    both = json.loads(capsys.readouterr().out)
    assert [Path(one["run"]).name for one in both] == ["with-constraints", "without-constraints"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert run(command) == 0, "finished runs are used again"
    assert json.loads(capsys.readouterr().out) == both


def test_data_list_shows_which_sources_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["digits"]["status"] == "included"
    assert run(["data", "list"]) == 0
    assert "cifar10" in capsys.readouterr().out


def test_missing_data_exits_with_3_and_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    assert run(["train", "mnist", "--folder", str(tmp_path / "run")]) == 3
    assert "fedsurf data get mnist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--network.graph.degree", "0"], "degree: got 0"),
        (
            ["--network.graph.kind", "erdos-renyi", "--network.graph.probability", "0"],
            "probability",
        ),
        (["--optimizer.batch-size", "50"], "batch_size: got 50"),
        (["--task.agents", "2000"], "pool: got"),
        (["--surf.descent.epsilon", "2"], "epsilon: got 2"),
        (["--data.source", "nothing"], "nothing"),
        (["--network.reporting", "3"], "reporting: got 3"),
        (["--network.calling", "in-turn"], "calling: got 'in-turn' with a regular graph"),
    ],
)
def test_bad_settings_exit_with_1_and_name_the_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["train", "smoke", "--folder", str(tmp_path / "run"), *TINY, *options]) == 1
    assert message in capsys.readouterr().err


def test_divergence_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "smoke", "--folder", str(tmp_path / "run"), "--surf.steps", "50"]
    assert run([*command, "--surf.learning-rate", "1e30"]) == 4
    assert "diverged" in capsys.readouterr().err


def test_damaged_and_foreign_checkpoints_exit_with_1_and_name_the_file(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text((trained / "config.json").read_text())
    content = (trained / "best.safetensors").read_bytes()
    best = copy / "best.safetensors"
    best.write_bytes(content[: len(content) // 2])
    assert run(["evaluate", str(copy)]) == 1
    assert "best.safetensors: truncated" in capsys.readouterr().err.replace("\n", "")
    save_file({"other": zeros(3)}, best)
    assert run(["evaluate", str(copy)]) == 1
    assert "not one that fedsurf wrote" in capsys.readouterr().err.replace("\n", " ")
    assert run(["evaluate", str(tmp_path / "nowhere")]) == 1
    assert "there is no such run folder" in capsys.readouterr().err


def test_escape_codes_of_a_file_do_not_reach_the_terminal(trained, tmp_path, capsys):
    content = json.loads((trained / "config.json").read_text())
    content["data"]["folder"] = "\x1b[31mred"
    for name in ("config.json", "best.safetensors", "data.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert run(["evaluate", str(tmp_path)]) == 1
    assert r"folder: got \x1b[31mred" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["star", "ring", "complete"])
def test_every_kind_of_network_trains(tmp_path: Path, kind: str) -> None:
    options = ["--network.graph.kind", kind, "--optimizer.filter-order", "1"]
    if kind == "star":
        options += ["--network.reporting", "4", "--network.calling", "in-turn"]
    assert run(["train", "smoke", "--folder", str(tmp_path / "run"), *TINY, *options]) == 0


def test_a_single_agent_without_communication_trains(tmp_path: Path) -> None:
    options = ["--task.agents", "1", "--optimizer.filter-order", "0"]
    assert run(["train", "smoke", "--folder", str(tmp_path / "run"), *TINY, *options]) == 0


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("fit", "DATA"),
        ("predict", "MODEL DATA"),
        ("evaluate", "RUN [RUN ...]"),
        ("audit", "RUN"),
        ("certify", "RUN"),
        ("data get", "NAME"),
    ],
)
def test_help_names_what_has_no_option(capsys, command, named):
    with pytest.raises(SystemExit):
        run([*command.split(), "--help"])
    assert f" {named}" in capsys.readouterr().out.splitlines()[0]


def test_help_tells_of_the_version(capsys):
    with pytest.raises(SystemExit):
        run(["--help"])
    assert "`fedsurf --version`" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [["evaluate"], ["evaluate", "run", "--rounds"]])
def test_nothing_to_evaluate_is_a_wrong_command_line(arguments, capsys):
    assert run(arguments) == 2
    assert ": got none, but " in capsys.readouterr().err


PLACES = [
    (["fit", "{data}", "--folder"], "folder"),
    (["train", "smoke", "--folder"], "folder"),
    (["ablation", "smoke", "--folder"], "folder"),
    (["demo", "--folder"], "folder"),
    (["compare", "digits", "--folder"], "folder"),
    (["tune", "digits", "--file"], "file"),
    (["audit", "softmax-head", "--folder"], "folder"),
    (["audit", "softmax-head", "--figure"], "figure"),
    (["pretrain", "--folder"], "folder"),
    (["pretrain-modules", "--folder"], "folder"),
    (["reproduce", "all", "--preset", "smoke", "--folder"], "folder"),
    (["data", "get", "mnist", "--folder"], "folder"),
]
"""Commands that write, and the option that says where."""


@pytest.mark.parametrize(("command", "option"), PLACES)
def test_a_place_that_cannot_be_written_is_named_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch, command, option
) -> None:
    for module in (
        "estimator.classifier.FederatedClassifier.fit",
        "evaluation.study.Study.run",
        "evaluation.study.Study.tune",
    ):
        monkeypatch.setattr(f"fedsurf.{module}", lambda *_, **__: pytest.fail("the work began"))
    (tmp_path / "data.csv").write_text("x,label\n1,a\n2,b\n3,a\n4,b\n")
    (tmp_path / "taken").write_text("mine")
    given = [part.format(data=tmp_path / "data.csv") for part in command]
    inside = tmp_path / "taken" / "inside.png"
    assert run([*given, str(inside)]) == 1
    said = capsys.readouterr().err
    assert f"{option}: got '{inside}', but {tmp_path / 'taken'} is a file" in said

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    place = tmp_path / "no.png"
    assert run([*given, str(place)]) == 1
    said = capsys.readouterr().err
    assert f"{option}: got '{place}', but nothing can be written into {tmp_path} (Perm" in said
    assert {path.name for path in tmp_path.iterdir()} == {"data.csv", "taken"}


def test_a_folder_in_the_place_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "digits", "--file", str(tmp_path)]) == 1
    assert "file: got" in (said := capsys.readouterr().err)
    assert "which is a folder, but it must be a file" in said
