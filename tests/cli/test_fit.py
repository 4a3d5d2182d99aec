"""`fedsurf fit` and `fedsurf predict` as a user types them: files in, files out, errors that help."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from flowers import NAMES, read, rows, write
from safetensors.torch import save_file
from sklearn.datasets import load_iris

from fedsurf.cli.main import run
from fedsurf.common.writing import lock_folder
from fedsurf.estimator.saved import SavedClassifier

FILES = {"head.safetensors", "linear.safetensors", "figure.png", "trajectory.csv", "config.json"}
QUICK = ["--label", "kind", "--drop", "greenhouse", "--rounds", "6"]


@pytest.fixture
def iris(tmp_path):
    return write(tmp_path / "iris.csv", rows())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder that `fedsurf fit` wrote, and its data."""
    place = tmp_path_factory.mktemp("fit")
    data = write(place / "iris.csv", rows())
    options = ["--label", "kind", "--agent", "greenhouse", "--graph", "ring"]
    assert run(["fit", str(data), "--folder", str(place / "model"), *options]) == 0
    return place / "model", data


def failed(capsys, arguments, code=1):
    """Return the message of a command that fails."""
    assert run([str(argument) for argument in arguments]) == code
    return capsys.readouterr().err.replace("\n", "")


def test_fit_shows_accuracy_by_round_and_the_gain_of_federation(
    iris, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["fit", str(iris), "--folder", str(tmp_path / "m"), *QUICK, "--agents", "5"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "5 agents, 120 training examples",
        "3 classes of 'kind'",
        "disagreement",
        "alone",
        "scikit-learn",
        f"Next: fedsurf predict {tmp_path / 'm'} {iris}",
    ):
        assert words in shown


def test_options_reach_the_classifier(iris, tmp_path, capsys):
    options = [*QUICK, "--test-share", "0", "--graph", "star", "--agents", "6", "--reporting", "2"]
    options += ["--standardize", "no", "--batch-size", "4", "--calling", "random", "--seed", "3"]
    folder = tmp_path / "model"
    assert run(["fit", str(iris), "--folder", str(folder), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["folder"], result["label"], result["agent"]) == (str(folder), "kind", None)
    assert (result["agents"], result["examples"], result["test_accuracy"]) == (6, 150, None)
    config = json.loads((folder / "config.json").read_text())
    expected = {"graph": "star", "n_agents": 6, "reporting": 2, "standardize": False}
    expected |= {"batch_size": 4, "calling": "random", "random_state": 3, "rounds": 6}
    assert {name: config[name] for name in expected} == expected


def test_predict_writes_a_table_to_a_file_or_to_standard_output(fitted, tmp_path, capsys):
    folder, _ = fitted
    columns = ["note", NAMES[3], "kind", NAMES[0], NAMES[2], NAMES[1]]
    shuffled = write(tmp_path / "other.csv", [{**row, "note": "?"} for row in rows()], columns)
    out = tmp_path / "out.csv"
    assert run(["predict", str(folder), str(shuffled), "--file", str(out)]) == 0
    found, expected = read(out), SavedClassifier.read(folder)
    x = np.array([[row[name] for name in NAMES] for row in rows()])
    table = [[float(row[f"probability_{name}"]) for name in expected.classes] for row in found]
    np.testing.assert_allclose(table, expected.probabilities(x), rtol=1e-5)
    right = np.mean([row["label"] == true["kind"] for row, true in zip(found, rows(), strict=True)])
    said = f"150 labels, {100 * right:.1f} % of them right; they are in {out}"
    assert said in capsys.readouterr().err
    assert run(["predict", str(folder), str(shuffled)]) == 0
    shown = capsys.readouterr()
    assert shown.out == out.read_text()
    assert "of them right" in shown.err


def test_labels_that_are_missing_or_unknown_are_counted(fitted, tmp_path, capsys):
    folder, data = fitted
    table = read(data)
    table[0]["kind"], table[1]["kind"] = "", "tulip"
    assert run(["predict", str(folder), str(write(tmp_path / "new.csv", table))]) == 0
    said = capsys.readouterr().err
    assert "of the 149 with a known label right (1 has a label that is not among the cl" in said
    assert run(["predict", str(folder), str(write(tmp_path / "bare.csv", table[:1], NAMES))]) == 0
    assert capsys.readouterr().err == "1 label\n"


def test_class_names_with_terminal_codes_are_shown_escaped(tmp_path, capsys):
    table = [
        {"x": place % 10, "kind": "a\x1b[31m" if place % 10 > 4 else "=b"} for place in range(40)
    ]
    data, folder = write(tmp_path / "data.csv", table), tmp_path / "model"
    assert run(["fit", str(data), "--folder", str(folder)]) == 0
    assert run(["predict", str(folder), str(data)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown
    assert r"a\x1b[31m" in shown
    assert "'=b" in shown


def test_tables_are_utf_8_in_any_locale(tmp_path):
    table = [f"{place % 10},{'øæ'[place % 10 > 4]}\n" for place in range(40)]
    data = tmp_path / "data.csv"
    data.write_text("Größe,kind\n" + "".join(table), "utf-8")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in (
        ["fit", data, "--folder", tmp_path / "model"],
        ["predict", tmp_path / "model", data, "--file", tmp_path / "labels.csv"],
    ):
        subprocess.run([sys.executable, "-m", "fedsurf", *command], env=ascii_only, check=True)
    first, *rest = (tmp_path / "labels.csv").read_text("utf-8").splitlines()
    assert first == "label,probability_æ,probability_ø"
    assert len(rest) == 40


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_of_the_table_may_stop_reading(fitted, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "fedsurf", "predict", *map(str, fitted)],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert "pipe" not in done.stderr


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,label\n1,a\ntwo,b\n", [], "column 'x': got 'two' (row 2), but features must be"),
        ("x,label\n1,a\n2,a\n", [], "label 'label': got one class only (a)"),
        (
            "x,label\n1,a\n2,b\n",
            ["--agents", "9"],
            "n_agents: got 9, but it must be between 1 and 2",
        ),
        ("x,agent,label\n1,p,a\n2,q,b\n", ["--agents", "2"], "agents: got 2, but"),
        ("x,label\n1,a\n2,b\n", ["--optimizer", "sgd"], "optimizer: got 'sgd'"),
        ("x,label\n1,a\n2,b\n", ["--rounds", "0"], "rounds: got 0"),
    ],
)
def test_a_fit_that_fails_names_the_reason_and_leaves_no_folder(
    tmp_path, capsys, content, options, message
):
    path = tmp_path / "data.csv"
    path.write_text(content)
    folder = tmp_path / "models" / "wine"
    assert message in failed(capsys, ["fit", path, "--folder", folder, *options])
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_files_of_another_kind_are_named(fitted, tmp_path, capsys):
    folder, data = fitted
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK no")
    said = failed(capsys, ["fit", damaged, "--folder", tmp_path / "model"])
    assert "damaged.npz: truncated, damaged or not a .npz file" in said
    few = write(tmp_path / "few.csv", rows(), NAMES[:3])
    assert "got no column petal width" in failed(capsys, ["predict", folder, few])
    assert "head.safetensors: there is no such file" in failed(capsys, ["predict", tmp_path, data])
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "foreign.safetensors")
    foreign = failed(capsys, ["predict", tmp_path / "foreign.safetensors", data])
    assert "not one that fedsurf wrote" in foreign
    linear = failed(capsys, ["predict", folder / "linear.safetensors", data])
    assert "does not hold a classifier" in linear


def test_the_default_folder_is_named_after_the_data_and_replaced_with_a_note(
    iris, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    said = "iris-model: replaces the classifier of an earlier fit; --folder takes another place"
    for folder, noted in (([], False), ([], True), (["--folder", "iris-model"], False)):
        assert run(["fit", str(iris), *QUICK, *folder]) == 0
        shown = capsys.readouterr()
        assert "Next: fedsurf predict iris-model " in shown.out
        assert (said in shown.err) == noted
    assert {path.name for path in (tmp_path / "iris-model").iterdir()} == FILES


def test_a_folder_with_other_files_is_refused_and_an_earlier_fit_replaced(iris, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    assert "holds other files" in failed(capsys, ["fit", iris, *QUICK, "--folder", other])
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    model = tmp_path / "model"
    (model / ".new.abc.tmp").mkdir(parents=True)  # of a killed fit
    for seed in ("0", "1"):
        assert run(["fit", str(iris), *QUICK, "--folder", str(model), "--seed", seed]) == 0
    assert SavedClassifier.read(model).config["random_state"] == 1
    assert "which is a file" in failed(capsys, ["fit", iris, *QUICK, "--folder", iris])


def test_predict_overwrites_neither_its_data_nor_other_kinds_of_files(fitted, tmp_path, capsys):
    folder, data = fitted
    before = data.read_bytes()
    said = failed(capsys, ["predict", folder, data, "--file", data])
    assert "which would be lost" in said
    assert data.read_bytes() == before
    said = failed(capsys, ["predict", folder, data, "--file", tmp_path / "labels.parquet"])
    assert "must be a .csv file" in said
    said = failed(capsys, ["predict", folder, data, "--file", data / "labels.csv"])
    assert f"but {data} is a file" in said


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_fit_leaves_the_earlier_files(iris, tmp_path, capsys, monkeypatch, again):
    model = tmp_path / "model"
    command = ["fit", str(iris), *QUICK, "--folder", str(model)]
    if again:
        assert run(command) == 0
        before = {path.name: path.read_bytes() for path in model.iterdir()}

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SavedClassifier, "write", interrupt)
        assert run([*command, "--seed", "1"]) == 130
    assert "interrupted" in capsys.readouterr().err
    if again:
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    else:
        assert not model.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert run(command) == 0
    assert {path.name for path in model.iterdir()} == FILES


def test_a_folder_that_another_process_writes_is_refused_before_the_work(iris, tmp_path, capsys):
    folder = tmp_path / "model"
    with lock_folder(folder):
        said = failed(capsys, ["fit", tmp_path / "no.csv", "--folder", folder])
        assert "model: another process is writing into this folder" in said
    assert not folder.exists()  # it stayed empty


def test_paths_with_brackets_are_shown_as_they_are(tmp_path, capsys):
    data = write(tmp_path / "a [b] [-c].csv", rows())
    model = tmp_path / "m [bold]"
    assert run(["fit", str(data), *QUICK, "--folder", str(model)]) == 0
    assert f"fedsurf predict '{model}' '{data}'" in capsys.readouterr().out


def test_weights_beyond_float32_are_named_and_nothing_is_written(tmp_path, capsys):
    table = rows()
    for row in table:
        row[NAMES[2]] *= 1e-60
    path, folder = write(tmp_path / "iris.csv", table, [*NAMES, "kind"]), tmp_path / "model"
    said = failed(capsys, ["fit", path, "--folder", folder])
    assert "linear.safetensors is in float32" in said
    assert not folder.exists()


@pytest.mark.parametrize(
    ("kinds", "options", "note"),
    [
        (
            40,
            [],
            "label 'price': 40 classes in 60 training examples; is it a number to be estimated",
        ),
        (3, [], None),
        (3, ["--rounds", "42"], "rounds: 42 are more than the 40"),
    ],
)
def test_odd_data_and_settings_are_noted_without_warnings(tmp_path, capsys, kinds, options, note):
    random = np.random.default_rng(0)
    lines = [f"{random.normal()},{number % kinds}" for number in range(60)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["x,price", *lines]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        command = ["fit", str(path), "--folder", str(tmp_path / "model"), "--rounds", "4", *options]
        assert run(command) == 0
    said = capsys.readouterr().err
    assert said == "" if note is None else note in said


def test_agents_without_training_rows_are_noted(tmp_path, capsys):
    table = [{**row, "agent": place} for place, row in enumerate(rows())]
    path = write(tmp_path / "iris.csv", table, [*NAMES, "agent", "kind"])
    assert run(["fit", str(path), "--folder", str(tmp_path / "model"), "--rounds", "4"]) == 0
    noted = "30 of 150 agents take no part, as all their rows are held out"
    assert noted in capsys.readouterr().err


def test_predict_reads_arrays(tmp_path, capsys):
    x, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "iris.npz", x=x, y=y)
    model = tmp_path / "model"
    assert run(["fit", str(tmp_path / "iris.npz"), "--folder", str(model)]) == 0
    capsys.readouterr()
    assert run(["predict", str(model), str(tmp_path / "iris.npz"), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["accuracy"] > 0.9
    assert predicted["classes"] == [0, 1, 2]


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_help_shows_the_options(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run([command, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out
