"""`fedsurf fit` and `fedsurf predict` as a user types them: files in, files out, errors that help."""

import csv
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from torch import nn

from fedsurf.cli.main import run
from fedsurf.common.writing import lock_folder
from fedsurf.estimator import baselines
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.columns import read_columns
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.estimator.tables_io import read_labelled
from fedsurf.tasks.dataset import split

FILES = {"head.safetensors", "linear.safetensors", "figure.png", "trajectory.csv", "config.json"}
NAMES = ("sepal length", "sepal width", "petal length", "petal width")


def rows():
    """Iris by the names of its kinds, in a mixed order, with the greenhouse of each flower."""
    data = load_iris()
    order = np.random.default_rng(0).permutation(150)
    return [
        {
            **dict(zip(NAMES, data.data[number].tolist(), strict=True)),
            "greenhouse": f"house {place % 7}",
            "kind": str(data.target_names[data.target[number]]),
        }
        for place, number in enumerate(order)
    ]


def write(path, table, columns=None):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(table[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    return path


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def iris(tmp_path):
    return write(tmp_path / "iris.csv", rows())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder that `fedsurf fit` made, and its data."""
    place = tmp_path_factory.mktemp("fit")
    data = write(place / "iris.csv", rows())
    options = ["--label", "kind", "--agent", "greenhouse", "--graph", "ring"]
    assert run(["fit", str(data), "--folder", str(place / "model"), *options]) == 0
    return place / "model", data


def failed(capsys, arguments, code=1):
    """Return what a command that fails says."""
    assert run([str(one) for one in arguments]) == code
    return capsys.readouterr().err.replace("\n", "")


def test_fit_leaves_a_complete_folder(fitted):
    folder, _ = fitted
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert config["graph"] == "ring"
    assert config["result"]["agents"] == 7
    assert config["result"]["examples"] == 120
    assert config["result"]["test_examples"] == 30
    trajectory = read(folder / "trajectory.csv")
    assert [int(row["rounds"]) for row in trajectory] == list(range(0, 21, 2))
    assert float(trajectory[-1]["test_accuracy"]) == config["result"]["test_accuracy"] > 0.8
    head = SavedClassifier.read(str(folder))
    assert head.classes == ["setosa", "versicolor", "virginica"]
    assert head.features == list(NAMES)


def test_the_head_is_that_of_the_classifier(fitted):
    folder, data = fitted
    labelled = read_labelled(data, label="kind", agent="greenhouse")
    model = FederatedClassifier(graph="ring", random_state=0)
    model.fit(labelled.x, labelled.y, agents=labelled.agents)
    head = SavedClassifier.read(folder)
    assert (head.weight == model.coef_).all()
    assert (head.bias == model.intercept_).all()
    np.testing.assert_allclose(
        head.probabilities(labelled.test_x), model.predict_proba(labelled.test_x)
    )


def test_the_linear_layer_loads_into_pytorch(fitted):
    folder, _ = fitted
    state = load_file(folder / "linear.safetensors")
    layer = nn.Linear(4, 3)
    layer.load_state_dict(state)
    assert {value.dtype for value in state.values()} == {torch.float32}
    x = torch.tensor([[row[name] for name in NAMES] for row in rows()])
    head = SavedClassifier.read(folder)
    expected = head.probabilities(x.double().numpy())
    np.testing.assert_allclose(layer(x).softmax(1).detach(), expected, atol=1e-4)


def test_fit_shows_accuracy_by_round_and_what_federation_bought(
    iris, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    options = ["--label", "kind", "--drop", "greenhouse", "--agents", "5", "--rounds", "8"]
    assert run(["fit", str(iris), "--folder", str(tmp_path / "model"), *options]) == 0
    shown = capsys.readouterr().out
    for words in ("5 agents, 120 training examples", "3 classes of 'kind'", "disagreement", "alone",
                  "scikit-learn"):  # fmt: skip
        assert words in shown


def test_fit_prints_json_and_may_hold_nothing_out(iris, tmp_path, capsys):
    options = ["--label", "kind", "--drop", "greenhouse", "--test-share", "0", "--rounds", "6"]
    options += ["--graph", "star", "--agents", "6", "--reporting", "2", "--standardize", "no"]
    options += ["--batch-size", "4"]
    folder = tmp_path / "model"
    assert run(["fit", str(iris), "--folder", str(folder), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == str(folder)
    assert result["examples"] == 150
    assert result["test_accuracy"] is result["alone"] is result["centralised"] is None
    assert [row["rounds"] for row in result["trajectory"]] == [0, 2, 4, 6]
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_server_calls_in_turn_or_as_it_is_told(iris, tmp_path, capsys):
    options = ["--label", "kind", "--drop", "greenhouse", "--test-share", "0", "--rounds", "4"]
    options += ["--graph", "star", "--agents", "8", "--reporting", "2", "--json"]
    ends = []
    for calling in ([], ["--calling", "in-turn"], ["--calling", "random"]):
        folder = tmp_path / "model"
        assert run(["fit", str(iris), "--folder", str(folder), *options, *calling]) == 0
        ends.append(json.loads(capsys.readouterr().out)["trajectory"][-1]["loss"])
        stored = json.loads((folder / "config.json").read_text())["calling"]
        assert stored == (calling[1] if calling else "in-turn")
    assert ends[0] == ends[1] != ends[2]


def test_json_tells_in_which_columns_label_and_agents_were_found(tmp_path, capsys):
    path = tmp_path / "data.csv"
    path.write_text("x,agent,last\n" + "".join(f"{n},{n % 3},{n > 9}\n" for n in range(20)))
    assert run(["fit", str(path), "--folder", str(tmp_path / "model"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["label"], result["agent"]) == ("last", "agent")


def test_fit_says_so_if_rounds_are_more_than_the_optimizer_learned_with(iris, tmp_path, capsys):
    options = ["--label", "kind", "--drop", "greenhouse", "--test-share", "0", "--rounds", "42"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(["fit", str(iris), "--folder", str(tmp_path / "model"), *options]) == 0
    assert "rounds: 42 are more than the 40" in capsys.readouterr().err


def test_predict_finds_columns_by_name(fitted, tmp_path, capsys):
    folder, data = fitted
    shuffled = write(
        tmp_path / "other.csv",
        [{**row, "note": "?"} for row in rows()],
        ["note", NAMES[3], "kind", NAMES[0], NAMES[2], NAMES[1]],
    )
    out = tmp_path / "out.csv"
    assert run(["predict", str(folder), str(shuffled), "--file", str(out)]) == 0
    found = read(out)
    x = np.array([[row[name] for name in NAMES] for row in rows()])
    head = SavedClassifier.read(folder / "head.safetensors")
    chances = head.probabilities(x)
    assert [row["label"] for row in found] == [head.classes[best] for best in chances.argmax(1)]
    table = [[float(row[f"probability_{name}"]) for name in head.classes] for row in found]
    np.testing.assert_allclose(table, chances, rtol=1e-5)
    right = np.mean([row["label"] == true["kind"] for row, true in zip(found, rows(), strict=True)])
    assert f"150 labels, {100 * right:.1f} % of them right" in capsys.readouterr().err
    assert run(["predict", str(folder), str(data), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["labels"] == [row["label"] for row in found]
    assert result["accuracy"] == pytest.approx(right)


def test_predict_without_a_file_writes_the_table_to_standard_output(fitted, tmp_path, capsys):
    folder, _ = fitted
    unlabelled = write(tmp_path / "new.csv", rows()[:3], NAMES)
    assert run(["predict", str(folder), str(unlabelled)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].startswith("label,probability_setosa")
    assert len(shown.out.splitlines()) == 4
    assert "right" not in shown.err


def test_tables_are_utf_8_whatever_the_locale(tmp_path):
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
def test_who_reads_the_table_may_stop_reading(fitted, unbuffered):
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


def test_arrays_go_in_whole_or_divided_with_their_agents(tmp_path, capsys):
    data = load_iris()
    x, y = data.data, data.target
    agents = np.arange(150) % 4
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    np.savez(whole, x=x, y=y, agents=agents)
    train, test = np.arange(150) % 3 > 0, np.arange(150) % 3 == 0
    np.savez(
        parts, train_x=x[train].astype(np.float32), train_y=data.target_names[y[train]],
        test_x=x[test].astype(np.float32), test_y=data.target_names[y[test]],
        owner=agents[train],
    )  # fmt: skip
    for path, options, examples in ((whole, [], 120), (parts, ["--agent", "owner"], 100)):
        folder = tmp_path / path.stem
        command = ["fit", str(path), "--folder", str(folder), "--rounds", "8", *options, "--json"]
        assert run(command) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["agents"], result["examples"]) == (4, examples)
        assert result["test_accuracy"] > 0.8
        assert result["centralised"] > 0.8
        assert run(["predict", str(folder), str(path), "--json"]) == 0
        predicted = json.loads(capsys.readouterr().out)
        assert predicted["accuracy"] > 0.8
        assert predicted["classes"] == (data.target_names.tolist() if options else [0, 1, 2])


def test_parquet_is_read_like_csv(fitted, tmp_path, capsys):
    import pyarrow
    from pyarrow import parquet

    _, data = fitted
    table = pyarrow.Table.from_pylist(rows())
    kinds = table.column("kind").dictionary_encode()
    table = table.set_column(table.column_names.index("kind"), "kind", kinds)
    path = tmp_path / "iris.parquet"
    parquet.write_table(table, path)
    options = {"label": "kind", "agent": "greenhouse"}
    ours, theirs = (read_labelled(one, **options) for one in (path, data))
    for name in ("x", "y", "agents", "test_x", "test_y"):
        assert (getattr(ours, name) == getattr(theirs, name)).all()
    assert ours.features == theirs.features
    holes = table.append_column("hole", pyarrow.array([None, *range(149)]))
    parquet.write_table(holes, path)
    with pytest.raises(ValueError, match="column 'hole': got no value in row 1"):
        read_labelled(path, **options)
    path.write_bytes(b"PAR1 no more")
    assert "damaged, or not a .parquet file" in failed(
        capsys, ["fit", path, "--folder", tmp_path / "model"]
    )


def test_text_that_is_stored_as_bytes_is_text(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, kinds = tmp_path / "bytes.parquet", ["ä", "b", "7"]
    columns = {
        "x": [1.0, 2.0, 3.0],
        "agent": [b"p", b"q", b"p"],
        "label": [k.encode() for k in kinds],
    }
    parquet.write_table(pyarrow.table(columns), path)
    labelled = read_labelled(path, test_share=0)
    assert labelled.y.tolist() == kinds
    assert labelled.agents is not None
    assert labelled.agents.tolist() == ["p", "q", "p"]
    columns["label"] = [b"7", b"8", b"7"]
    parquet.write_table(pyarrow.table(columns), path)
    assert read_labelled(path, test_share=0).y.tolist() == [7, 8, 7]


def test_parquet_with_a_name_twice_is_refused_in_one_line(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table([[1.0, 2.0], [3.0, 4.0], ["a", "b"]], names=["x", "x", "label"])
    parquet.write_table(table, tmp_path / "data.parquet")
    assert run(["fit", str(tmp_path / "data.parquet"), "--folder", str(tmp_path / "model")]) == 1
    said = capsys.readouterr().err
    assert said.endswith("got several columns called x, but each must have a name of its own\n")
    assert said.count("\n") == 1


def test_very_many_columns_take_no_time_to_tell_apart(tmp_path):
    names = [f"gene {number}" for number in range(30_000)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(["label", *names]) + "\n" + f"a{',1' * len(names)}\n")
    start = time.process_time()
    assert len(read_columns(path)) == 30_001
    assert time.process_time() - start < 5


@pytest.mark.parametrize("name", ["patient", None])
def test_the_index_of_a_data_frame_is_no_column_unless_it_is_asked_for(tmp_path, capsys, name):
    pandas = pytest.importorskip("pandas")
    path, folder = tmp_path / "iris.parquet", tmp_path / "model"
    frame = pandas.DataFrame(rows()).drop(columns="greenhouse")
    frame.index = pandas.Index(np.arange(150) % 5 + 100, name=name)
    frame.to_parquet(path)
    read = read_labelled(path)
    assert (read.label, read.features, read.agents) == ("kind", NAMES, None)
    command = ["fit", str(path), "--folder", str(folder), "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["features"] == 4
    assert run(["predict", str(folder), str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    if name is not None:
        assert read_labelled(path, agent=name).agents.max() == 104
        assert read_labelled(path, label=name, drop=["kind"]).y.max() == 104
        frame.rename_axis("agent").to_parquet(path)
        assert len(np.unique(read_labelled(path).agents)) == 5
        frame.rename_axis("y").to_parquet(path)
        assert read_labelled(path, label="kind").features == NAMES
        frame.reset_index().to_parquet(path)
        assert read_labelled(path).features == (name, *NAMES)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1")
    assert "fedsurf[parquet]" in failed(capsys, ["fit", path, "--folder", tmp_path / "model"])


@pytest.mark.parametrize(
    ("header", "label"),
    [("a,label,y2", "label"), ("a,y,b", "y"), ("target,a,b", "target"), ("a,b,last", "last")],
)
def test_the_label_is_found_by_its_name_or_at_the_end(tmp_path, header, label):
    path = tmp_path / "data.csv"
    path.write_text(header + "\n1,2,3\n4,5,6\n")
    found = read_labelled(path, test_share=0)
    assert found.label == label
    assert label not in found.features
    assert found.agents is None


def test_labels_are_whole_numbers_or_text(tmp_path):
    path = tmp_path / "data.csv"
    for written, expected in ((("3", "-1"), [3, -1]), (("007", "7"), ["007", "7"]),
                              (("1.5", "2"), ["1.5", "2"]), (("3.0", "-1.0"), [3, -1]),
                              (("3.0", "3"), ["3.0", "3"]), (("07.0", "7.0"), ["07.0", "7.0"]),
                              (("1.0.0", "2.0"), ["1.0.0", "2.0"]), ((" a", "b "), ["a", "b"])):  # fmt: skip
        path.write_text("x,label\n" + "".join(f"1,{one}\n" for one in written))
        assert read_labelled(path, test_share=0).y.tolist() == expected


@pytest.mark.parametrize(
    "names", [("0", "1", "2"), ("400.5", "401.5", "402.5"), ("0.25", "0.5", "0.75")]
)
def test_columns_may_be_called_by_numbers(tmp_path, names):
    path = tmp_path / "data.csv"
    path.write_text(",".join(names) + ",label\n0.1,0.2,0.3,a\n0.9,2.2,1.3,b\n")
    assert read_labelled(path, test_share=0).features == names


def test_agents_whose_rows_are_all_held_out_are_counted_aloud(tmp_path, capsys):
    table = [{**row, "agent": place} for place, row in enumerate(rows())]
    path = write(tmp_path / "iris.csv", table, [*NAMES, "agent", "kind"])
    command = ["fit", str(path), "--folder", str(tmp_path / "model"), "--json"]
    assert run(command) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["agents"] == 120
    assert "30 of 150 agents take no part, as all their rows are held out" in printed.err
    assert run([*command, "--test-share", "0"]) == 0
    assert "take no part" not in capsys.readouterr().err


def test_quotes_may_follow_a_blank(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text('"x", "label"\n1, "a, b"\n"2", "c"\n')
    labelled = read_labelled(path, test_share=0)
    assert (labelled.features, labelled.label) == (("x",), "label")
    assert (labelled.x.tolist(), labelled.y.tolist()) == ([[1.0], [2.0]], ["a, b", "c"])


def test_digits_in_groups_are_text_as_labels_and_as_names(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("1_0.5,3_000\n1,3_000\n20,2_000\n")
    labelled = read_labelled(path, test_share=0)
    assert (labelled.features, labelled.y.tolist()) == (("1_0.5",), ["3_000", "2_000"])


def test_the_configuration_says_where_label_and_agents_were_found(tmp_path):
    table = [{"x": place % 10, "y": place % 10 // 5, "agent": place % 3} for place in range(40)]
    data = write(tmp_path / "data.csv", table)
    arrays = tmp_path / "data.npz"
    x, y, agents = (np.array([row[name] for row in table]) for name in ("x", "y", "agent"))
    np.savez(arrays, x=x[:, None], y=y, agents=agents)
    for path, expected in ((data, ["y", "agent"]), (arrays, [None, "agents"])):
        folder = tmp_path / path.suffix
        assert run(["fit", str(path), "--folder", str(folder), "--rounds", "6"]) == 0
        for config in (
            json.loads((folder / "config.json").read_text()),
            SavedClassifier.read(folder).config,
        ):
            assert [config["label"], config["agent"]] == expected


def test_row_numbers_are_dropped_and_left_alone(tmp_path, capsys):
    data = tmp_path / "data.csv"
    data.write_text(",x,label\n" + "".join(f"{row},{row % 3},{row % 3}\n" for row in range(30)))
    model = tmp_path / "model"
    assert run(["fit", str(data), "--folder", str(model), "--drop", ""]) == 0
    assert SavedClassifier.read(model).features == ["x"]
    assert run(["predict", str(model), str(data)]) == 0
    assert "30 labels" in capsys.readouterr().err


def test_without_a_folder_the_model_is_called_after_the_data(iris, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["fit", str(iris), "--rounds", "5", "--agent", "greenhouse"]) == 0
    assert "Next: fedsurf predict iris-model " in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "iris-model").iterdir()} == FILES


def test_a_classifier_in_a_folder_that_nobody_named_is_not_replaced_without_a_word(
    iris, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "iris.csv", rows()[:50])
    command = ["--rounds", "5", "--drop", "greenhouse", "--json"]
    said = "iris-model: replaces the classifier of an earlier fit; --folder takes another place"
    assert run(["fit", str(iris), *command]) == 0
    assert said not in capsys.readouterr().err
    assert run(["fit", str(other), *command]) == 0
    assert said in capsys.readouterr().err
    assert run(["fit", str(other), *command, "--folder", "iris-model"]) == 0
    assert said not in capsys.readouterr().err


def test_a_column_called_agent_says_whose_rows_are(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("\ufeffx,agent,label\n1,anna,0\n2,ben,1\n", encoding="utf-8")
    found = read_labelled(path, test_share=0)
    assert found.agents.tolist() == ["anna", "ben"]
    assert found.features == ("x",)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,label\n1,a\n2,b\n", ["--label", "kind"], "label: got 'kind', but"),
        ("x,label\n1,a\n2,b\n", ["--agent", "site"], "agent: got 'site', but"),
        ("x,label\n1,a\n2,b\n", ["--drop", "z"], "drop: got 'z', but"),
        ("x,label,y\n1,a,1\n2,b,0\n", [], "label: got none, but"),
        (
            "agent,agents,x,label\n1,1,1,a\n2,1,2,b\n",
            [],
            "has the columns agent, agents: say which tells whose each row is, and drop what is no",
        ),
        ("x,label\n1,a\ntwo,b\n", [], "column 'x': got 'two' (row 2), but features must be"),
        ("x,label\n1,a\n1_000,b\n", [], "column 'x': got '1_000' (row 2), but features must be"),
        ("x,label\n1,a\n,b\n", [], "column 'x': got no value in row 2"),
        ("x,label\n1,a\nnan,b\n", [], "column 'x': got nan (row 2)"),
        ("x,label\n1,a\n2,\n", [], "column 'label': got no value in row 2"),
        ("x,agent,label\n1,,a\n2,q,b\n", [], "column 'agent': got no value in row 1"),
        (
            "x,label\n1,0\n2,NA\n3,1\n4,nan\n",
            [],
            "column 'label': got no value in row 2, where it "
            "says 'NA' (2 in all), but each row needs one",
        ),
        ("x,label\n1,0.5\n2,None\n3,1\n", [], "column 'label': got no value in row 2"),
        ("x,agent,label\n1,7,a\n2,null,b\n", [], "column 'agent': got no value in row 2"),
        ("x,agent,label\n1,NaN,a\n2,NaN,b\n", [], "column 'agent': got no value in row 1"),
        ("x,label\n1,a\n2,a\n", [], "label 'label': got one class only (a)"),
        ("x,x,label\n1,1,a\n", [], "several columns called x"),
        ("x,label\n1,a,3\n", [], "got 3 values in row 1, but the first line names 2 columns"),
        ("label\na\nb\n", [], "got the label 'label' only"),
        (",x,label\n0,1,a\n1,2,b\n", [], "column '': got no name, as of the row numbers"),
        ("Unnamed: 0,x,y\n0,1,a\n1,2,b\n", [], "features must have one: drop 'Unnamed: 0', or"),
        ("x,y,__index_level_0__\n1,a,7\n2,b,9\n", [], "column '__index_level_0__': got no name"),
        ("x;label\n1,5;a\n", [], "separated by ';', but commas must separate them"),
        ("x\tlabel\n1.5\ta\n", [], "separated by '\\t', but commas"),
        ("0.5,-1.5,a\n1,-2.5,b\n0.25,0,a\n", [], "looks like a row of numbers, but it must name"),
        ("agent\na\nb\n", [], "label: got none, but"),
        ("x,label\n", [], "no rows"),
        ("", [], "no rows"),
        ("x,label\n1,a\n2,b\n", ["--test-share", "1"], "test_share: got 1.0"),
        (
            "x,label\n1,a\n2,b\n",
            ["--test-share", "0.9999999"],
            "test_share: got 0.9999999, with which all 2 rows are held out, but there must be some",
        ),
        ("x,label\n1,a\n2,b\n", ["--agents", "9"], "agents: got 9, but it must be"),
        ("x,label\n1,a\n2,b\n", ["--optimizer", "sgd"], "optimizer: got 'sgd'"),
        (
            "x,label\n1,a\n2,b\n",
            ["--label", "x", "--drop", "x"],
            "drop: got 'x', but that is the label",
        ),
        (
            "x,q,label\n1,1,a\n",
            ["--agent", "q", "--drop", "q"],
            "drop: got 'q', but that is the agent",
        ),
        (
            "x,q,label\n1,1,a\n",
            ["--agent", "q", "--label", "q"],
            "label: got 'q', but it must be another",
        ),
        ("x,agent,label\n1,p,a\n2,q,b\n", ["--agents", "2"], "agents: got 2, but"),
        ("x,label\n1,a\n2,b\n", ["--rounds", "0"], "rounds: got 0"),
    ],
)
def test_wrong_tables_and_options_exit_with_1_and_are_named(
    tmp_path, capsys, content, options, message
):
    path = tmp_path / "data.csv"
    path.write_text(content)
    folder = tmp_path / "model"
    assert message in failed(capsys, ["fit", path, "--folder", folder, *options])
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.ones((4, 2))}, [], "got the arrays x, but it must hold"),
        ({"x": np.ones(4), "y": np.arange(4)}, [], "x: got float64 of shape [4]"),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, [], "y: got shape [3], but it must be [4]"),
        ({"x": np.full((2, 2), np.inf), "y": np.arange(2)}, [], "NaN or infinite (example 0"),
        ({"x": np.ones((2, 2)), "y": np.arange(2)}, ["--agent", "who"], "agent: got 'who'"),
        ({"x": np.ones((2, 2)), "y": np.array([1, np.inf])}, [], "'y': got inf (row 2), but labels"),
        ({"x": np.ones((2, 2)), "y": np.arange(2), "agents": np.arange(2)}, ["--agents", "2"],
         "leave that array out"),
        ({"x": np.ones((2, 2)), "y": np.arange(2)}, ["--label", "y"], "label, drop: got 'y'"),
        (
            {"x": np.ones((2, 2)), "y": np.array([None, 1], dtype=object)},
            [],
            "but it must hold numbers or text, as of np.asarray(…, dtype=str)",
        ),
        (
            {"x": np.ones((2, 2), dtype=object), "y": np.arange(2)},
            [],
            "but it must hold numbers or text, as of np.asarray(…, dtype=float)",
        ),
        (
            {"x": np.ones((2, 2)), "y": np.arange(2), "site": np.array(["p", "q"], dtype=object)},
            ["--agent", "site"],
            "site: got Python objects",
        ),
        (
            {"x": np.ones((2, 2)), "y": np.arange(2), "agent": np.arange(2), "agents": np.arange(2)},
            [],
            "agent: got none, but {path} has the arrays agent, agents: say which tells whose each",
        ),
        (
            {"x": np.ones((2, 2)), "y": np.array([b"a", "ä".encode("latin-1")])},
            [],
            r"column 'y': got b'\xe4' (row 2), but bytes must be text in UTF-8",
        ),
        (
            {"train_x": np.ones((2, 2)), "train_y": np.arange(2),
             "test_x": np.ones((2, 3)), "test_y": np.arange(2)},
            [],
            "test_x: got 3 features, but train_x has 2",
        ),
    ],
)  # fmt: skip
def test_wrong_arrays_exit_with_1_and_are_named(tmp_path, capsys, arrays, options, message):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    message = message.replace("{path}", str(path))
    assert message in failed(capsys, ["fit", path, "--folder", tmp_path / "model", *options])


def test_files_that_are_not_there_or_not_what_they_seem(fitted, tmp_path, capsys):
    folder, data = fitted
    model = tmp_path / "model"
    assert "there is no such file" in failed(capsys, ["fit", "no.csv", "--folder", model])
    assert "must be a .csv" in failed(capsys, ["fit", "no.xlsx", "--folder", model])
    parts = tmp_path / "parts.parquet"  # as Spark writes a table
    parts.mkdir()
    said = failed(capsys, ["fit", parts, "--folder", model])
    assert f"{parts}: this is a folder, but it must be one file" in said
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK no")
    assert "not a .npz file" in failed(capsys, ["fit", damaged, "--folder", model])
    latin = tmp_path / "latin.csv"
    latin.write_bytes("x,label\n1,ä\n".encode("latin-1"))
    said = failed(capsys, ["fit", latin, "--folder", model])
    assert "latin.csv: got text that is not UTF-8 (its line 2 reads '1,ä' if it is Latin-1)" in said
    assert f"iconv -f latin-1 -t utf-8 {latin} >" in said
    wide = tmp_path / "wide.csv"
    wide.write_text("x,label\n1,ä\n", encoding="utf-16")
    assert "it seems to be UTF-16" in failed(capsys, ["fit", wide, "--folder", model])
    few = write(tmp_path / "few.csv", rows(), NAMES[:3])
    assert "got no column petal width" in failed(capsys, ["predict", folder, few])
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, x=np.ones((2, 3)))
    assert "got 3 features, but the head was trained on 4" in failed(
        capsys, ["predict", folder, narrow]
    )
    assert "head.safetensors: there is no such file" in failed(capsys, ["predict", tmp_path, data])
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "foreign.safetensors")
    foreign = failed(capsys, ["predict", tmp_path / "foreign.safetensors", data])
    assert "not one that fedsurf wrote" in foreign
    linear = failed(capsys, ["predict", folder / "linear.safetensors", data])
    assert "does not hold a head" in linear


def test_a_folder_with_other_files_is_refused_and_an_earlier_fit_replaced(iris, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    command = ["fit", iris, "--label", "kind", "--drop", "greenhouse", "--rounds", "4"]
    assert "holds other files" in failed(capsys, [*command, "--folder", other])
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    model = tmp_path / "model"
    for rounds in ("4", "6"):
        assert run([str(one) for one in [*command, "--folder", model, "--rounds", rounds]]) == 0
    assert SavedClassifier.read(model).config["rounds"] == 6
    assert "which is a file" in failed(capsys, [*command, "--folder", iris])


def test_agents_alone_do_what_scikit_learn_does_with_each_ones_rows():
    data = load_iris()
    x, y = data.data, data.target
    owner = np.arange(150) % 3  # all kinds at each, in equal numbers
    found = baselines.alone_accuracy(x, y, owner, x, y)
    scaled = StandardScaler().fit_transform(x)
    alone = []
    for agent in range(3):
        own = owner == agent
        # Its bias carries no penalty there, so that the two may differ at a few flowers.
        model = LogisticRegression(max_iter=1000).fit(scaled[own], y[own])
        alone.append(accuracy_score(y, model.predict(scaled)))
    assert found == pytest.approx(np.mean(alone), abs=0.03)


def test_heads_are_judged_in_batches_like_one_by_one(monkeypatch):
    random = np.random.default_rng(0)
    x, classes = random.normal(size=(20, 3)), np.array(["a", "b", "c", "d"])
    heads = torch.tensor(random.normal(size=(7, 4, 4)))
    y = random.choice(["a", "b", "c", "d", "unseen"], 20)
    expected = np.mean(
        [classes[(x @ one[:, :-1].T + one[:, -1]).argmax(1)] == y for one in heads.numpy()]
    )
    for at_once in (1, 200, 10**6):
        monkeypatch.setattr(baselines, "AT_ONCE", at_once)
        assert baselines.heads_accuracy(heads, classes, x, y) == pytest.approx(expected)


def test_help_shows_both_commands(capsys):
    for command in ("fit", "predict"):
        with pytest.raises(SystemExit) as stop:
            run([command, "--help"])
        assert stop.value.code == 0
        assert "data" in capsys.readouterr().out.lower()


def test_a_folder_written_twice_is_the_same(iris, tmp_path):
    command = ["fit", str(iris), "--label", "kind", "--agent", "greenhouse", "--rounds", "6"]
    for name in ("first", "second"):
        assert run([*command, "--folder", str(tmp_path / name)]) == 0
    for name in sorted(FILES - {"figure.png"}):
        contents = [Path(tmp_path / one / name).read_bytes() for one in ("first", "second")]
        assert contents[0] == contents[1], name


def test_a_column_may_be_dropped_twice(iris, tmp_path):
    labelled = read_labelled(iris, label="kind", drop=("greenhouse", "greenhouse"))
    assert labelled.features == NAMES
    assert labelled.agents is None


@pytest.mark.parametrize("kind", [float, str, "S"])
def test_predict_knows_the_labels_of_arrays_as_fit_does(tmp_path, capsys, kind):
    data = load_iris()
    np.savez(tmp_path / "iris.npz", x=data.data, y=data.target.astype(kind))
    model = tmp_path / "model"
    assert run(["fit", str(tmp_path / "iris.npz"), "--folder", str(model)]) == 0
    assert SavedClassifier.read(model).classes == [0, 1, 2]
    command = ["predict", str(model), str(tmp_path / "iris.npz"), "--json"]
    capsys.readouterr()
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    np.savez(tmp_path / "iris.npz", x=data.data, y=data.target[:-1])
    assert "y: got shape [149], but it must be [150]" in failed(capsys, command)


@pytest.mark.parametrize(
    ("test_kind", "classes"), [(np.uint8, [0, 1, 2]), (float, [0, 1, 2]), ("U8", ["0", "1", "2"])]
)
def test_labels_of_both_parts_are_of_one_kind(tmp_path, test_kind, classes):
    data = load_iris()
    test_y = data.target.astype(test_kind)
    if test_kind == "U8":
        test_y[0] = "unknown"
    np.savez(
        tmp_path / "iris.npz",
        train_x=data.data,
        train_y=data.target,
        test_x=data.data,
        test_y=test_y,
    )
    labelled = read_labelled(tmp_path / "iris.npz")
    assert np.unique(labelled.y).tolist() == classes
    assert np.mean(labelled.y == labelled.test_y) == (149 / 150 if test_kind == "U8" else 1)


def test_rows_without_a_label_are_predicted_and_not_judged(fitted, tmp_path, capsys):
    folder, data = fitted
    table = read(data)
    for count, said in ((149, "% of the 149 with a known label right"), (0, "150 labels\n")):
        for place, row in enumerate(table):
            row["kind"] = row["kind"] if place < count else ""
        target = tmp_path / "labels.csv"
        command = ["predict", folder, write(tmp_path / "some.csv", table), "--file", target]
        assert run([str(one) for one in command]) == 0
        error = capsys.readouterr().err
        assert said in error or said.strip() + ";" in error
        assert len(read(target)) == 150


@pytest.mark.parametrize("none", [np.nan, "NA"])
def test_examples_of_arrays_without_a_label_are_predicted_and_not_judged(tmp_path, capsys, none):
    data = load_iris()
    np.savez(tmp_path / "iris.npz", x=data.data, y=data.target)
    model = tmp_path / "model"
    assert run(["fit", str(tmp_path / "iris.npz"), "--folder", str(model)]) == 0
    some = data.target.astype(type(none))
    some[:7] = none
    np.savez(tmp_path / "some.npz", x=data.data, y=some)
    target = tmp_path / "labels.csv"
    assert run(["predict", str(model), str(tmp_path / "some.npz"), "--file", str(target)]) == 0
    assert "% of the 143 with a known label right" in capsys.readouterr().err
    assert len(read(target)) == 150


@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_to_the_nanosecond_are_called_as_coarser_ones(tmp_path, kind):
    names = []
    for unit in ("us", "ns"):
        times = (
            np.array([10**9, 2 * 10**9, 3 * 10**9]).astype(f"{kind}[us]").astype(f"{kind}[{unit}]")
        )
        np.savez(tmp_path / "a.npz", x=np.eye(3), y=times, agents=times)
        labelled = read_labelled(tmp_path / "a.npz", test_share=0)
        assert labelled.y.tolist() == labelled.agents.tolist()
        names.append(labelled.y.tolist())
    assert names[0] == names[1]
    assert names[0][0] == {"M8": "1970-01-01 00:16:40", "m8": "0:16:40"}[kind]
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=times + np.timedelta64(1, "ns"))
    finest = read_labelled(tmp_path / "a.npz", test_share=0).y.tolist()
    first = {"M8": "1970-01-01T00:16:40.000000001", "m8": "1000000000001 nanoseconds"}
    assert finest[0] == first[kind]
    # What a time is called does not depend on the others.
    times[2] += np.timedelta64(1, "ns")
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=times)
    assert read_labelled(tmp_path / "a.npz", test_share=0).y.tolist()[:2] == names[0][:2]


def test_a_word_for_no_label_among_numbers_is_none_to_predict_and_among_words_a_class(
    tmp_path, capsys
):
    table = [{"size": place % 10, "kind": place % 10 // 5} for place in range(40)]
    model = tmp_path / "model"
    assert run(["fit", str(write(tmp_path / "old.csv", table)), "--folder", str(model)]) == 0
    assert "is taken for" not in capsys.readouterr().err
    table[0]["kind"] = table[1]["kind"] = "NA"
    new = write(tmp_path / "new.csv", table)
    assert run(["predict", str(model), str(new), "--file", str(tmp_path / "labels.csv")]) == 0
    assert "of the 38 with a known label right" in capsys.readouterr().err
    for row in table:
        row["kind"] = {0: "small", 1: "large"}.get(row["kind"], row["kind"])
    words = write(tmp_path / "words.csv", table)
    assert run(["fit", str(words), "--folder", str(tmp_path / "words")]) == 0
    assert "NA is taken for the name of a class; where it" in capsys.readouterr().err


def test_numbers_too_large_for_whole_ones_stay_apart_as_text(tmp_path):
    large = np.array([1e19, 2e19, 3.0])
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=large, agents=-large)
    labelled = read_labelled(tmp_path / "a.npz", test_share=0)
    assert labelled.y.tolist() == ["1e+19", "2e+19", "3.0"]
    assert labelled.agents.tolist() == ["-1e+19", "-2e+19", "-3.0"]


def test_fractions_in_single_precision_are_called_as_in_a_table_of_text(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"x": [1, 2, 3], "label": np.array([0.1, 0.7, 2.0], dtype=np.float32)})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    names = [
        read_labelled(tmp_path / name, test_share=0).y.tolist() for name in ("a.parquet", "a.csv")
    ]
    assert names == [["0.1", "0.7", "2.0"]] * 2


def test_one_of_a_kind_is_said_in_the_singular(tmp_path, capsys):
    table = [{"size": place % 10, "kind": "ab"[place % 10 > 4]} for place in range(15)]
    data, folder = write(tmp_path / "data.csv", table), tmp_path / "model"
    assert run(["fit", str(data), "--folder", str(folder), "--test-share", "0"]) == 0
    assert "1 agent, 15 training examples, 1 feature, 2 classes" in capsys.readouterr().out
    table[0]["kind"] = "c"
    new = write(tmp_path / "new.csv", table[:1])
    assert run(["predict", str(folder), str(new)]) == 0
    assert "1 label, 0.0 % of them right (1 has a label" in capsys.readouterr().err
    wide = tmp_path / "wide.npz"
    np.savez(wide, x=np.ones((2, 3)))
    said = failed(capsys, ["predict", folder, wide])
    assert "got 3 features, but the head was trained on 1" in said


def test_one_agent_whose_rows_are_all_held_out_takes_no_part(tmp_path, capsys):
    held = split(np.array([row["kind"] for row in rows()]), 0.2).argmax()
    table = [{**row, "agent": "ab"[int(place == held)]} for place, row in enumerate(rows())]
    path = write(tmp_path / "iris.csv", table, [*NAMES, "agent", "kind"])
    assert run(["fit", str(path), "--folder", str(tmp_path / "model")]) == 0
    assert "1 of 2 agents takes no part, as all its rows are held out" in capsys.readouterr().err


def test_weights_that_are_no_numbers_in_float32_are_named_and_nothing_is_written(tmp_path, capsys):
    table = rows()
    for row in table:
        row[NAMES[2]] *= 1e-60
    path, folder = write(tmp_path / "iris.csv", table, [*NAMES, "kind"]), tmp_path / "model"
    said = failed(capsys, ["fit", path, "--folder", folder])
    assert "for feature 'petal length', but linear.safetensors is in float32" in said
    assert not folder.exists()
    head = SavedClassifier(np.eye(2), np.array([0.0, 1e39]), [0, 1], None, None, {})
    with pytest.raises(ValueError, match=r"^bias: got 1e\+39, but linear"):
        head.write(folder)
    head = SavedClassifier(np.full((2, 2), np.nan), np.zeros(2), [0, 1], None, None, {})
    with pytest.raises(ValueError, match=r"^weight: got nan for feature 0, but linear"):
        head.write(folder)


def test_labels_that_the_head_does_not_know_are_counted_aloud(fitted, tmp_path, capsys):
    folder, data = fitted
    table = read(data)
    target = str(tmp_path / "labels.csv")
    for count in (0, 3, 150):
        for row in table[:count]:
            row["kind"] = "tulip"
        new = write(tmp_path / "new.csv", table)
        assert run(["predict", str(folder), str(new), "--file", target]) == 0
        said = f"right ({count} have a label that is none of the head's classes);"
        assert (said if count else "right;") in capsys.readouterr().err
        assert run(["predict", str(folder), str(new), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["unknown_labels"] == count
    new = write(tmp_path / "new.csv", table, NAMES)
    assert run(["predict", str(folder), str(new), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown_labels"] is None


def test_whole_labels_are_judged_alike_where_a_gap_made_them_floats(tmp_path, capsys):
    data = load_iris()
    table = [
        {**dict(zip(NAMES, x, strict=True)), "label": int(y)}
        for x, y in zip(data.data.tolist(), data.target, strict=True)
    ]
    model = tmp_path / "model"
    assert run(["fit", str(write(tmp_path / "iris.csv", table)), "--folder", str(model)]) == 0
    for place, row in enumerate(table):
        row["label"] = f"{row['label']}.0" if place else ""
    capsys.readouterr()
    assert run(["predict", str(model), str(write(tmp_path / "new.csv", table)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("grades", "new"),
    [(("1.0", "1.5", "2.0"), ("1.0", None, "2.0")), (("1", "2", "3"), ("1.0", "2.5", "3.0"))],
)
def test_whole_labels_are_judged_alike_among_fractions_and_without(tmp_path, capsys, grades, new):
    data = load_iris()

    def table(names):
        chosen = [place for place, y in enumerate(data.target) if names[y] is not None]
        return [
            {
                **dict(zip(NAMES, data.data[place].tolist(), strict=True)),
                "grade": names[data.target[place]],
            }
            for place in chosen
        ]

    model = tmp_path / "model"
    old = write(tmp_path / "old.csv", table(grades))
    assert run(["fit", str(old), "--folder", str(model)]) == 0
    capsys.readouterr()
    assert run(["predict", str(model), str(write(tmp_path / "new.csv", table(new))), "--json"]) == 0
    least = 0.6 if "2.5" in new else 0.9  # nothing is called 2.5 there
    assert least < json.loads(capsys.readouterr().out)["accuracy"] <= least + 0.1


def test_whole_test_labels_are_spelled_as_among_the_fractions_of_the_training_part(tmp_path):
    x, kinds = load_iris(return_X_y=True)
    y = np.array([0.5, 1.0, 2.0])[kinds]
    whole = y != 0.5
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, test_x=x[whole], test_y=y[whole])
    labelled = read_labelled(tmp_path / "a.npz")
    assert labelled.test_y.tolist() == labelled.y[whole].tolist()


def test_predict_overwrites_neither_its_data_nor_anything_but_a_table(fitted, tmp_path, capsys):
    folder, data = fitted
    before = data.read_bytes()
    said = failed(capsys, ["predict", folder, data, "--file", data])
    assert "file: got" in said
    assert "which would be lost" in said
    assert data.read_bytes() == before
    said = failed(capsys, ["predict", folder, data, "--file", tmp_path / "labels.parquet"])
    assert "must be a .csv file" in said


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_fit_leaves_what_was_there(iris, tmp_path, capsys, monkeypatch, again):
    model = tmp_path / "model"
    command = ["fit", str(iris), "--label", "kind", "--drop", "greenhouse", "--folder", str(model)]
    if again:
        assert run(command) == 0
        before = {path.name: path.read_bytes() for path in model.iterdir()}

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SavedClassifier, "write", interrupt)
        assert run([*command, "--rounds", "6"]) == 130
    assert "interrupted" in capsys.readouterr().err
    if again:
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    else:
        assert not model.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert run([*command, "--rounds", "6"]) == 0
    assert {path.name for path in model.iterdir()} == FILES


def test_a_folder_that_another_process_writes_is_refused_before_the_work(
    iris, tmp_path, capsys, monkeypatch
):
    def work(*_, **__):
        raise AssertionError("the data was read")

    monkeypatch.setattr("fedsurf.cli.fit.read_labelled", work)
    folder = tmp_path / "model"
    with lock_folder(folder):
        said = failed(capsys, ["fit", iris, "--folder", folder])
        assert "model: another process is writing into this folder" in said
    assert not folder.exists()  # nothing came into it


def test_a_fit_that_fails_leaves_no_folders_that_it_made(iris, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    folder = tmp_path / "mine" / "models" / "wine"
    assert "no such file" in failed(capsys, ["fit", tmp_path / "no.csv", "--folder", folder])
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == []
    command = ["fit", iris, "--label", "kind", "--drop", "greenhouse", "--rounds", "2"]
    assert run([str(one) for one in [*command, "--folder", folder]]) == 0
    assert {path.name for path in folder.iterdir()} == FILES


def test_what_a_killed_fit_left_is_no_obstacle(iris, tmp_path):
    folder = tmp_path / "model"
    (folder / ".new.abc.tmp").mkdir(parents=True)
    assert (
        run(["fit", str(iris), "--folder", str(folder), "--label", "kind", "--drop", "greenhouse"])
        == 0
    )


def test_paths_are_no_markup(tmp_path, capsys):
    data = write(tmp_path / "a [b] [/c].csv".replace("/", "-"), rows())
    model = tmp_path / "m [bold]"
    command = ["fit", str(data), "--label", "kind", "--agent", "greenhouse", "--folder", str(model)]
    assert run([*command, "--rounds", "4"]) == 0
    assert f"fedsurf predict '{model}' '{data}'" in capsys.readouterr().out


def test_dates_and_lists_in_a_table_are_no_features(tmp_path, capsys):
    import pyarrow
    from pyarrow import parquet

    def table(extra):
        path = tmp_path / "data.parquet"
        columns = {"x": [1.0, 2.0], "extra": extra, "label": ["a", "b"]}
        parquet.write_table(pyarrow.table(columns), path)
        return ["fit", path, "--folder", tmp_path / "model"]

    dates = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[us]")
    assert "column 'extra': got" in (said := failed(capsys, table(dates)))
    assert "features must be numbers" in said
    dates[1] = "NaT"
    assert "column 'extra': got no value in row 2" in failed(capsys, table(dates))
    assert "features must be numbers" in failed(capsys, table([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
def test_true_and_false_are_1_and_0_in_text_too(tmp_path, yes, no):
    random = np.random.default_rng(0)
    truth = random.random(60) < 0.5
    kinds = [f"kind {int(one)}" for one in truth]
    path = tmp_path / "data.csv"
    lines = [f"{yes if one else no},{kind}" for one, kind in zip(truth, kinds, strict=True)]
    path.write_text("\n".join(["open,label", *lines]))
    found = read_labelled(path, test_share=0)
    assert found.x[:, 0].tolist() == truth.astype(float).tolist()
    pq = tmp_path / "data.parquet"
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"open": truth, "label": kinds}).to_parquet(pq)
    assert np.array_equal(read_labelled(pq, test_share=0).x, found.x)


def test_true_among_numbers_is_no_number(tmp_path, capsys):
    path = tmp_path / "data.csv"
    path.write_text("x,label\n1,a\ntrue,b\n")
    said = failed(capsys, ["fit", path, "--folder", tmp_path / "model"])
    assert "column 'x': got 'true' (row 2), but features must be numbers, or all True or" in said


def test_predictions_that_cannot_be_written_are_named_before_the_work(fitted, tmp_path, capsys):
    folder, data = fitted
    file = data / "labels.csv"
    said = failed(capsys, ["predict", folder, data, "--file", file])
    assert f"file: got '{file}', but {data} is a file" in said


@pytest.mark.parametrize(("classes", "noted"), [(40, True), (3, False)])
def test_many_classes_are_noted_in_own_words(tmp_path, capsys, classes, noted):
    random = np.random.default_rng(0)
    lines = [f"{random.normal()},{number % classes}" for number in range(60)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["x,price", *lines]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(["fit", str(path), "--folder", str(tmp_path / "model"), "--rounds", "4"]) == 0
    said = "label 'price': 40 classes in 60 training examples; is it a number to be estimated"
    assert (said in capsys.readouterr().err) == noted
