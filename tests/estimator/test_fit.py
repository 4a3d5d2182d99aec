"""The Python calls behind `fedsurf fit` and `fedsurf predict`: what they return and write."""

import json

import networkx as nx
import numpy as np
import pytest
import torch
from flowers import NAMES, read, rows, write
from safetensors.torch import load_file
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from torch import nn

from fedsurf.cli.main import run
from fedsurf.estimator import fit as fitting
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.fit import fit_table, predict_table
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.estimator.tables import read_labelled

FILES = {"head.safetensors", "linear.safetensors", "figure.png", "trajectory.csv", "config.json"}
ITS_COLUMNS = {"label": "kind", "agent": "greenhouse"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "iris.csv", rows())


@pytest.fixture(scope="module")
def result(data):
    return fit_table(data, **ITS_COLUMNS, graph="ring", random_state=0)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "iris"
    result.write(folder)
    return folder


def test_a_fit_leaves_a_complete_folder(folder):
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert config["graph"] == "ring"
    sizes = [config["result"][name] for name in ("agents", "examples", "test_examples")]
    assert sizes == [7, 120, 30]
    trajectory = read(folder / "trajectory.csv")
    assert [int(row["rounds"]) for row in trajectory] == list(range(0, 21, 2))
    assert float(trajectory[-1]["test_accuracy"]) == config["result"]["test_accuracy"] > 0.8
    saved = SavedClassifier.read(folder)
    assert saved.classes == ["setosa", "versicolor", "virginica"]
    assert saved.features == list(NAMES)
    assert {**saved.config, "result": config["result"]} == config


def test_the_command_does_what_the_calls_do(data, result, folder, tmp_path, capsys):
    options = ["--label", "kind", "--agent", "greenhouse", "--graph", "ring", "--json"]
    assert run(["fit", str(data), "--folder", str(tmp_path / "model"), *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"folder": str(tmp_path / "model"), **result.to_dict()}
    for name in FILES - {"figure.png"}:
        assert (tmp_path / "model" / name).read_bytes() == (folder / name).read_bytes(), name
    found = predict_table(folder, data)
    assert run(["predict", str(folder), str(data), "--file", str(tmp_path / "command.csv")]) == 0
    found.write(tmp_path / "call.csv")
    assert (tmp_path / "command.csv").read_bytes() == (tmp_path / "call.csv").read_bytes()
    assert run(["predict", str(folder), str(data), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["labels"], printed["accuracy"]) == (found.labels, found.accuracy)
    assert printed["probabilities"] == found.probabilities.tolist()


def test_the_saved_classifier_is_the_estimators(data, folder):
    table = read_labelled(data, **ITS_COLUMNS)
    model = FederatedClassifier(graph="ring").fit(table.x, table.y, agents=table.agents)
    saved = SavedClassifier.read(folder)
    assert (saved.weight == model.coef_).all()
    assert (saved.bias == model.intercept_).all()
    expected = model.predict_proba(table.test_x)
    np.testing.assert_allclose(saved.probabilities(table.test_x), expected)


def test_the_linear_layer_loads_into_pytorch(folder):
    state = load_file(folder / "linear.safetensors")
    layer = nn.Linear(4, 3)
    layer.load_state_dict(state)
    assert {value.dtype for value in state.values()} == {torch.float32}
    x = torch.tensor([[row[name] for name in NAMES] for row in rows()])
    expected = SavedClassifier.read(folder).probabilities(x.double().numpy())
    np.testing.assert_allclose(layer(x).softmax(1).detach(), expected, atol=1e-4)


def test_a_custom_graph_and_no_test_examples(data, tmp_path):
    graph = nx.path_graph([f"house {number}" for number in range(7)])
    result = fit_table(data, **ITS_COLUMNS, graph=graph, test_share=0, rounds=6)
    assert result.numbers["examples"] == 150
    names = ("test_accuracy", "agents_test_accuracy", "alone", "centralised")
    assert [result.numbers[name] for name in names] == [None] * 4
    assert [row["test_accuracy"] for row in result.trajectory] == [None] * 4
    result.write(tmp_path / "model")
    assert SavedClassifier.read(tmp_path / "model").config["graph"] == str(graph)


def test_a_folder_with_other_files_is_refused(result, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"folder: got .*, which holds other files"):
        result.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_agents_alone_do_what_scikit_learn_does_with_the_rows_of_each():
    x, y = load_iris(return_X_y=True)
    owner = np.arange(150) % 3  # all kinds at each, in equal numbers
    found = fitting.alone_accuracy(x, y, owner, x, y)
    scaled = StandardScaler().fit_transform(x)
    alone = []
    for agent in range(3):
        own = owner == agent
        # Its bias has no penalty there, so that the two may differ at a few flowers.
        model = LogisticRegression(max_iter=1000).fit(scaled[own], y[own])
        alone.append(accuracy_score(y, model.predict(scaled)))
    assert found == pytest.approx(np.mean(alone), abs=0.03)


def test_labels_that_no_head_knows_are_never_right():
    random = np.random.default_rng(0)
    x, classes = random.normal(size=(20, 3)), np.array(["a", "b", "c", "d"])
    heads = torch.tensor(random.normal(size=(7, 4, 4)))
    y = random.choice(["a", "b", "c", "d", "unseen"], 20)
    expected = np.mean(
        [classes[(x @ head[:, :-1].T + head[:, -1]).argmax(1)] == y for head in heads.numpy()]
    )
    assert fitting.heads_accuracy(heads, classes, x, y) == pytest.approx(expected)


def test_rows_without_a_known_label_are_not_judged(folder, data, tmp_path):
    table = read(data)
    for row in table[:10]:
        row["kind"] = ""
    for row in table[10:13]:
        row["kind"] = "tulip"
    found = predict_table(folder, write(tmp_path / "new.csv", table))
    assert (len(found.labels), found.known, found.unknown_labels) == (150, 140, 3)
    right = [a == b["kind"] for a, b in zip(found.labels, table, strict=True)][10:]
    assert found.accuracy == np.mean(right)
    unlabelled = predict_table(folder, write(tmp_path / "bare.csv", table, NAMES))
    assert (unlabelled.accuracy, unlabelled.known, unlabelled.unknown_labels) == (None, 0, None)


@pytest.mark.parametrize(
    ("old", "new", "accuracy"),
    [
        (("0", "1", "2"), ("0.0", "1.0", "2.0"), 1.0),
        (("1.0", "1.5", "2.0"), ("1", None, "2"), 1.0),
        (("1", "2", "3"), ("1.0", "2.5", "3.0"), 2 / 3),
    ],
)
def test_whole_labels_are_judged_alike_with_and_without_a_point(tmp_path, old, new, accuracy):
    x, kinds = load_iris(return_X_y=True)

    def table(names):
        return [
            {**dict(zip(NAMES, row, strict=True)), "grade": names[kind]}
            for row, kind in zip(x.tolist(), kinds, strict=True)
            if names[kind] is not None
        ]

    fit_table(write(tmp_path / "old.csv", table(old)), rounds=8).write(tmp_path / "model")
    found = predict_table(tmp_path / "model", write(tmp_path / "new.csv", table(new)))
    assert found.accuracy == pytest.approx(accuracy, abs=0.1)
