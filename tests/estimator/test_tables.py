"""Labelled examples from .csv, .parquet and .npz files: chosen columns, labels, features, and errors."""

import re
import sys
import time

import numpy as np
import pandas as pd
import pytest
from flowers import NAMES, rows, write
from sklearn.datasets import load_iris

from fedsurf.common.files import FileError, column_names, read_columns
from fedsurf.estimator.tables import read_features, read_labelled


def csv_of(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8")
    return path


def npz_of(tmp_path, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return path


def labels_of(values, tmp_path):
    rows = "".join(f"1,{value}\n" for value in values)
    return read_labelled(csv_of(tmp_path, f"x,label\n{rows}"), test_share=0).y.tolist()


@pytest.mark.parametrize(
    ("header", "label"),
    [("a,label,y2", "label"), ("a,y,b", "y"), ("target,a,b", "target"), ("a,b,last", "last")],
)
def test_the_label_is_found_by_name_or_is_the_last_column(tmp_path, header, label):
    found = read_labelled(csv_of(tmp_path, f"{header}\n1,2,3\n4,5,6\n"), test_share=0)
    assert found.label == label
    assert label not in found.features
    assert found.agents is None


def test_a_column_called_agent_holds_the_agents(tmp_path):
    path = csv_of(tmp_path, "\ufeffx,agent,label\n1,anna,0\n2,ben,1\n")
    found = read_labelled(path, test_share=0)
    assert found.agents.tolist() == ["anna", "ben"]
    assert (found.features, found.agent) == (("x",), "agent")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (("3", "-1"), [3, -1]),
        (("007", "7"), ["007", "7"]),
        (("1.5", "2"), ["1.5", "2"]),
        (("3.0", "-1.0"), [3, -1]),
        (("3.0", "3"), [3, 3]),
        (("07.0", "7.0"), ["07.0", "7"]),
        (("1.0.0", "2.0"), ["1.0.0", "2"]),
        ((" a", "b "), ["a", "b"]),
        (("True", "False"), ["True", "False"]),
        (('"a, b"', "1_000"), ["a, b", "1_000"]),
    ],
)
def test_labels_are_whole_numbers_or_text(tmp_path, written, expected):
    assert labels_of(written, tmp_path) == expected


def test_agents_are_whole_numbers_or_text(tmp_path):
    path = csv_of(tmp_path, "x,agent,label\n1,007,a\n2,7,b\n")
    assert read_labelled(path, test_share=0).agents.tolist() == ["007", "7"]


def test_a_share_of_each_class_is_held_out(tmp_path):
    table = [{**row, "agent": place} for place, row in enumerate(rows())]
    path = write(tmp_path / "iris.csv", table, [*NAMES, "agent", "kind"])
    found = read_labelled(path, test_share=0.2)
    assert [np.sum(found.test_y == kind) for kind in np.unique(found.y)] == [10, 10, 10]
    assert (len(found.y), len(found.agents), found.agents_held_out) == (120, 120, 30)
    whole = read_labelled(path, test_share=0)
    assert (len(whole.y), len(whole.test_y), whole.agents_held_out) == (150, 0, 0)


def test_dropped_columns_are_not_features(tmp_path):
    path = write(tmp_path / "iris.csv", rows())
    found = read_labelled(path, label="kind", drop=("greenhouse", "greenhouse"))
    assert found.features == NAMES
    assert found.agents is None


@pytest.mark.parametrize("names", [("0", "1", "2"), ("400.5", "401.5", "402.5")])
def test_columns_called_by_numbers_are_features(tmp_path, names):
    path = csv_of(tmp_path, ",".join(names) + ",label\n0.1,0.2,0.3,a\n0.9,2.2,1.3,b\n")
    assert read_labelled(path, test_share=0).features == names


@pytest.mark.parametrize("header", ["a,b,y", "0,1,2"])
def test_a_label_may_be_called_like_its_column(tmp_path, header):
    name = header[-1]
    path = csv_of(tmp_path, f"{header}\n1,2,{name}\n4,5,0\n")
    assert name in read_labelled(path, test_share=0).y.astype(str)


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
def test_true_and_false_are_one_and_zero(tmp_path, yes, no):
    path = csv_of(tmp_path, f"open,label\n{yes},a\n{no},b\n")
    assert read_labelled(path, test_share=0).x.tolist() == [[1.0], [0.0]]


def test_thirty_thousand_columns_are_read_in_seconds(tmp_path):
    names = [f"gene {number}" for number in range(30_000)]
    path = csv_of(tmp_path, ",".join(["label", *names]) + "\n" + f"a{',1' * len(names)}\n")
    start = time.process_time()
    assert read_columns(path, column_names(path)).shape == (1, 30_001)
    assert read_labelled(path, test_share=0).x.shape == (1, 30_000)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,label\n1,a\n2,b\n", {"label": "kind"}, "label: got 'kind', but"),
        ("x,label\n1,a\n2,b\n", {"agent": "site"}, "agent: got 'site', but"),
        ("x,label\n1,a\n2,b\n", {"drop": ["z"]}, "drop: got z, but"),
        ("x,label\n1,a\n2,b\n", {"label": "x", "drop": ["x"]}, "drop: got x, but"),
        ("x,q,label\n1,1,a\n", {"agent": "q", "drop": ["q"]}, "drop: got q, but"),
        ("x,q,label\n1,1,a\n", {"agent": "q", "label": "q"}, "agent: got 'q', but"),
        ("x,label,y\n1,a,1\n2,b,0\n", {}, "label: got None, but .* has label, y: choose one"),
        (
            "agent,agents,x,y\n1,1,1,a\n",
            {},
            "agent: got None, but .* has agent, agents: choose one",
        ),
        ("x,label\n1,a\ntwo,b\n", {}, r"column 'x': got 'two' \(row 2\), but features must be"),
        ("x,label\n1,a\n1_000,b\n", {}, r"column 'x': got '1_000' \(row 2\), but features must be"),
        ("x,label\n1,a\ntrue,b\n", {}, r"column 'x': got 'true' \(row 2\), but features must be"),
        ("x,label\n1,a\n2020-01-01,b\n", {}, r"column 'x': got '2020-01-01' \(row 2\), but"),
        ("x,label\n1,a\n,b\n", {}, "column 'x': got no value in row 2"),
        ("x,label\n1,a\nnan,b\n", {}, "column 'x': got no value in row 2"),
        ("x,label\n1,a\ninf,b\n", {}, "column 'x': got inf in row 2"),
        ("x,label\n1,a\n2,\n", {}, "column 'label': got no value in row 2"),
        ("x,label\n1,0\n2,NA\n3,1\n4,nan\n", {}, r"'label': got no value in row 2 \(2 in all\)"),
        ("x,agent,label\n1,,a\n2,q,b\n", {}, "column 'agent': got no value in row 1"),
        ("x,label\n1,a,3\n", {}, "Length of header"),
        ("x,label\n1,a\n2,b,3\n", {}, "Expected 2 fields in line 3, saw 3"),
        ("label\na\nb\n", {}, "got label, but there must be a label and a feature"),
        ("agent\na\nb\n", {}, "got agent, but there must be a label and a feature"),
        (",x,label\n0,1,a\n1,2,b\n", {}, "column 'Unnamed: 0': got no name, like row numbers"),
        ("x;label\n1,5;a\n", {}, "got the first line 'x;label', but commas must separate"),
        ("x\tlabel\n1.5\ta\n", {}, "but commas must separate"),
        ("0.5,-1.5,a\n1,-2.5,b\n0.25,0,a\n", {}, "first line 0.5, -1.5, a, but it must name"),
        ("x,label\n", {}, "got no rows"),
        ("", {}, "No columns"),
        ("x,label\n1,a\n2,b\n", {"test_share": 1.0}, "test_share: got 1.0"),
        ("x,label\n1,a\n2,b\n", {"test_share": 0.9999999}, "test_share: .* must be for training"),
    ],
)
def test_wrong_tables_are_named(tmp_path, content, options, message):
    with pytest.raises(ValueError, match=message):
        read_labelled(csv_of(tmp_path, content), **options)


def test_text_that_is_not_utf_8_is_refused_with_advice(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("x,label\n1,ä\n".encode("latin-1"))
    with pytest.raises(FileError, match=r"latin\.csv: got text that is not UTF-8; .* iconv -f lat"):
        read_labelled(path)


def test_parquet_is_read_like_csv(tmp_path):
    frame = pd.DataFrame(rows()).astype({"kind": "category"})
    frame.to_parquet(tmp_path / "iris.parquet")
    frame.to_csv(tmp_path / "iris.csv", index=False)
    ours, theirs = (
        read_labelled(tmp_path / name, label="kind", agent="greenhouse")
        for name in ("iris.parquet", "iris.csv")
    )
    for name in ("x", "y", "agents", "test_x", "test_y"):
        assert (getattr(ours, name) == getattr(theirs, name)).all()
    assert ours.features == theirs.features


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.to_datetime(["2020-01-01", "2021-01-01"]), "column 'extra': got '2020-01-01 00:00:00'"),
        (pd.to_timedelta([1, 2]), "column 'extra': got"),
        ([[1.0, 2.0], [3.0, 4.0]], "column 'extra': got"),
        ([None, 1.0], "column 'extra': got no value in row 1"),
    ],
)
def test_columns_of_parquet_that_are_not_numbers_are_named(tmp_path, column, message):
    path = tmp_path / "data.parquet"
    pd.DataFrame({"extra": column, "label": ["a", "b"]}).to_parquet(path)
    with pytest.raises(FileError, match=message):
        read_labelled(path)


def test_fractions_in_single_precision_are_spelled_as_in_csv(tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3], "label": np.array([0.1, 0.7, 2.0], dtype=np.float32)})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_labelled(tmp_path / "a.parquet", test_share=0).y.tolist() == ["0.1", "0.7", "2"]


@pytest.mark.parametrize("name", ["patient", None])
def test_the_index_of_a_data_frame_is_a_column_only_if_it_is_asked_for(tmp_path, name):
    path = tmp_path / "iris.parquet"
    frame = pd.DataFrame(rows()).drop(columns="greenhouse")
    frame.index = pd.Index(np.arange(150) % 5 + 100, name=name)
    frame.to_parquet(path)
    found = read_labelled(path)
    assert (found.label, found.features, found.agents) == ("kind", NAMES, None)
    if name is not None:
        assert read_labelled(path, agent=name).agents.max() == 104
        assert read_labelled(path, label=name, drop=["kind"]).y.max() == 104
        frame.rename_axis("agent").to_parquet(path)
        assert len(np.unique(read_labelled(path).agents)) == 5


def test_parquet_with_a_name_twice_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table([[1.0, 2.0], [3.0, 4.0], ["a", "b"]], names=["x", "x", "label"])
    parquet.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(FileError, match=r"data\.parquet: got several columns of one name"):
        read_labelled(tmp_path / "data.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"fedsurf\[parquet\]"):
        read_labelled(path)


def test_arrays_are_divided_or_come_in_two_parts(tmp_path):
    x, y = load_iris(return_X_y=True)
    whole = read_labelled(npz_of(tmp_path, x=x, y=y, agents=np.arange(150) % 4))
    assert (whole.x.shape, whole.test_x.shape, whole.agent) == ((120, 4), (30, 4), "agents")
    parts = {"train_x": x[:100].astype(np.float32), "train_y": y[:100]}
    parts |= {"test_x": x[100:].astype(np.float32), "test_y": y[100:], "owner": y[:100]}
    found = read_labelled(npz_of(tmp_path, **parts), agent="owner")
    assert (found.x.shape, found.test_x.shape, found.agents.max()) == ((100, 4), (50, 4), 1)
    assert found.x.dtype == np.float32


@pytest.mark.parametrize(
    ("test_kind", "classes"), [(np.uint8, [0, 1, 2]), (float, [0, 1, 2]), ("U8", ["0", "1", "2"])]
)
def test_labels_of_both_parts_are_of_one_kind(tmp_path, test_kind, classes):
    x, y = load_iris(return_X_y=True)
    test_y = y.astype(test_kind)
    if test_kind == "U8":
        test_y[0] = "unknown"
    found = read_labelled(npz_of(tmp_path, train_x=x, train_y=y, test_x=x, test_y=test_y))
    assert np.unique(found.y).tolist() == classes
    assert np.mean(found.y == found.test_y) == (149 / 150 if test_kind == "U8" else 1)


def test_whole_test_labels_are_those_among_fractions_of_the_training_part(tmp_path):
    x, kinds = load_iris(return_X_y=True)
    y = np.array([0.5, 1.0, 2.0])[kinds]
    whole = y != 0.5
    path = npz_of(tmp_path, train_x=x, train_y=y, test_x=x[whole], test_y=y[whole])
    found = read_labelled(path)
    assert found.test_y.tolist() == found.y[whole].tolist()


def test_numbers_too_large_for_64_bits_stay_apart_as_text(tmp_path):
    large = np.array([1e19, 2e19, 3.0])
    found = read_labelled(npz_of(tmp_path, x=np.eye(3), y=large), test_share=0)
    assert found.y.tolist() == ["1e+19", "2e+19", "3"]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.ones((4, 2))}, {}, "got the arrays x, but it must hold"),
        ({"x": np.ones(4), "y": np.arange(4)}, {}, r"x: got float64 of shape \[4\]"),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, {}, r"y: got int64 of shape \[3\], .* \[4\]"),
        ({"x": np.ones((2, 2)), "y": np.arange(2) * 1j}, {}, "y: got complex128"),
        ({"x": np.ones((2, 2)), "y": np.array([b"a", b"b"])}, {}, r"y: got \|S1 of shape"),
        ({"x": np.full((2, 2), np.inf), "y": np.arange(2)}, {}, "x, feature 0: got inf in row 1"),
        ({"x": np.ones((2, 2)), "y": np.array([1, np.inf])}, {}, "'y': got inf in row 2"),
        ({"x": np.ones((2, 2)), "y": np.arange(2)}, {"agent": "who"}, "agent: got 'who'"),
        ({"x": np.ones((2, 2)), "y": np.arange(2)}, {"label": "y"}, "label, drop: got names"),
        ({"x": np.ones((2, 2)), "y": np.array([None, 1])}, {}, r"y: got Python objects, .*dtype=str"),
        (
            {"x": np.ones((2, 2), dtype=object), "y": np.arange(2)},
            {},
            r"x: got Python objects, .*dtype=float",
        ),
        (
            {"x": np.ones((2, 2)), "y": np.arange(2), "agent": np.arange(2), "agents": np.ones(2)},
            {},
            "agent: got None, but .* has agent, agents: choose one",
        ),
        (
            {"train_x": np.ones((2, 2)), "train_y": [0, 1], "test_x": np.ones((2, 3)), "test_y": [0, 1]},
            {},
            "test_x: got 3 features, but train_x has 2",
        ),
    ],
)  # fmt: skip
def test_wrong_arrays_are_named(tmp_path, arrays, options, message):
    with pytest.raises(ValueError, match=message):
        read_labelled(npz_of(tmp_path, **arrays), **options)


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileError, match=r"no\.csv: there is no such file"):
        read_labelled(tmp_path / "no.csv")
    with pytest.raises(ValueError, match=r"must be a \.csv, \.parquet or \.npz file"):
        read_labelled(tmp_path / "no.xlsx")
    (tmp_path / "parts.parquet").mkdir()  # as Spark writes a table
    with pytest.raises(FileError, match=r"parts\.parquet: this is a folder, but it must be a file"):
        read_labelled(tmp_path / "parts.parquet")


def test_features_are_found_by_name_in_any_order(tmp_path):
    path = csv_of(tmp_path, "note,b,label,a\n?,1,yes,2\n!,3,,4\n")
    x, y = read_features(path, ["a", "b"], 2, "label")
    assert x.tolist() == [[2, 1], [4, 3]]
    assert y.tolist() == ["yes", None]
    with pytest.raises(FileError, match="got no column c, but the classifier was trained on it"):
        read_features(path, ["a", "c"], 2, "label")


def test_features_without_names_are_all_columns_but_the_label(tmp_path):
    path = csv_of(tmp_path, "b,y,a\n1,7,2\n3,8,4\n")
    x, y = read_features(path, None, 2, None)
    assert (x.tolist(), y.tolist()) == ([[1, 2], [3, 4]], [7, 8])
    with pytest.raises(FileError, match="got 2 features, but the classifier was trained on 3"):
        read_features(path, None, 3, None)


@pytest.mark.parametrize("kind", [float, str])
def test_arrays_are_labelled_completely_partly_or_not_at_all(tmp_path, kind):
    x = np.eye(3)
    found = read_features(npz_of(tmp_path, x=x, y=np.arange(3).astype(kind)), None, 3, None)
    assert found[1].tolist() == [0, 1, 2]
    assert read_features(npz_of(tmp_path, x=x), None, 3, None)[1] is None
    partly = npz_of(tmp_path, x=x, y=np.array([0.0, np.nan, 2.0]))
    assert read_features(partly, None, 3, None)[1].tolist() == [0, None, 2]
    none = npz_of(tmp_path, x=x, y=np.full(3, np.nan))
    assert read_features(none, None, 3, None)[1] is None


def test_errors_name_the_file(tmp_path):
    with pytest.raises(FileError, match=f"^{re.escape(str(tmp_path))}"):
        read_labelled(csv_of(tmp_path, "x,label\nz,a\n"))
