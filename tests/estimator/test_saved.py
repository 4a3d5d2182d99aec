"""A trained head in another program: rows by the names of their features, and files that can be read again."""

import datetime

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from fedsurf.common.files import FileError
from fedsurf.common.writing import write_tensors
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.saved import FILE, LINEAR, SavedClassifier


@pytest.fixture(scope="module")
def wine():
    """Wines as a data frame, a classifier that was fitted to it, and its head."""
    pytest.importorskip("pandas")
    frame, kinds = load_wine(return_X_y=True, as_frame=True)
    model = FederatedClassifier(rounds=6).fit(frame, kinds)
    names = model.feature_names_in_.tolist()
    return frame, model, SavedClassifier(model.coef_, model.intercept_, [0, 1, 2], names, None, {})


def test_columns_of_a_data_frame_are_found_by_their_names(wine, tmp_path):
    frame, model, head = wine
    head.write(tmp_path)
    again = SavedClassifier.read(tmp_path)
    expected = model.predict_proba(frame)
    assert np.array_equal(again.probabilities(frame), expected)
    assert np.array_equal(again.probabilities(frame[list(frame)[::-1]]), expected)
    assert np.array_equal(again.probabilities(frame.assign(grower="anna")), expected)
    assert np.array_equal(again.probabilities(frame.astype("Float64")), expected)
    with pytest.raises(
        ValueError, match=r"^x: got no column ash, but the head was trained on it; th"
    ):
        again.probabilities(frame.drop(columns="ash"))
    with pytest.raises(
        ValueError, match=r"^x: got several columns of one name among ash, malic_ac"
    ):
        again.probabilities(frame.set_axis(["ash", *list(frame)[1:]], axis=1))


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_rows_without_names_are_taken_by_position(wine, kind):
    frame, model, head = wine
    rows = kind(frame.to_numpy().tolist())
    np.testing.assert_allclose(head.probabilities(rows), model.predict_proba(frame), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0], r"^x: got shape \[13\], but it must be \[rows, 13\]"),
        (lambda x: x[:, :3], r"^x: got shape \[178, 3\], but it must be \[rows, 13\]"),
        (lambda x: x.astype(str)[:, :1] + "?", "^x: got features that are no numbers .could not"),
        (lambda x: x * np.nan, "^x: got a value that is NaN or infinite"),
        (lambda x: x.astype("M8[D]"), r"^x: got datetime64\[D\], but features must be numbers"),
        (lambda x: x * 1j, "^x: got complex128, but features must be numbers"),
        (lambda x: [x[0], x[0][:2]], "^x: got rows that are no array"),
    ],
)
def test_rows_that_are_none_of_its_features_are_refused(wine, change, message):
    with pytest.raises(ValueError, match=message):
        wine[2].probabilities(change(wine[0].to_numpy()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": np.arange(3)}, "^classes: got a ndarray, but it must be a list of text or"),
        (
            {"classes": list(np.arange(3))},
            r"^classes: got np.int64\(0\) among them, but it must be",
        ),
        (
            {"classes": [datetime.date(2020, 1, 1)] * 3},
            r"^classes: got datetime.date\(2020, 1, 1\)",
        ),
        ({"features": np.array(["a", "b"])}, "^features: got a ndarray, but it must be a list"),
        (
            {"features": [0, 1]},
            "^features: got 0 among them, but it must be a list of text, or None",
        ),
        ({"features": ["a", "a"]}, "^features: got 'a' twice, but each must be there once"),
        ({"classes": [0, 1, 1]}, "^classes: got 1 twice, but each must be there once"),
        ({"classes": [0.5, 1.5, np.nan]}, "^classes: got nan among them, but it must be a list"),
        ({"label": 5}, "^label: got 5, but it must be text, or None"),
        ({"config": None}, "^config: got None, but it must be a dict"),
        (
            {"config": {"rounds": {3}}},
            "^config: got what cannot be written as JSON .Object of",
        ),
        ({"weight": [[1.0, 1.0]] * 3}, "^weight: got list, but it must be an array of NumPy"),
        ({"bias": torch.ones(3)}, "^bias: got Tensor, but it must be an array of NumPy"),
        ({"features": ["a"]}, r"^features: got 1 name, but weight has shape \[3, 2\]"),
        (
            {"classes": ["a", "b"]},
            r"^weight has shape \[3, 2\] and bias \[3\], but there are 2 clas",
        ),
        (
            {"weight": np.ones((2, 3))},
            r"^weight has shape \[2, 3\] and bias \[3\], but there are 3",
        ),
        (
            {"bias": np.ones((3, 1))},
            r"^weight has shape \[3, 2\] and bias \[3, 1\], but there are 3",
        ),
    ],
)
def test_what_could_not_be_read_again_is_no_head(tmp_path, change, message):
    parts = {"weight": np.ones((3, 2)), "bias": np.ones(3), "classes": [0, 1, 2], "features": None}
    with pytest.raises((TypeError, ValueError), match=message):
        SavedClassifier(**{**parts, "label": None, "config": {}, **change}).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_rows_of_weights_may_be_in_another_order_than_in_memory(tmp_path):
    weight, bias = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    SavedClassifier(weight[::-1], bias[::-1], [2, 1, 0], None, None, {}).write(tmp_path)
    again = SavedClassifier.read(tmp_path)
    assert again.weight.tolist() == weight[::-1].tolist()
    assert again.bias.tolist() == bias[::-1].tolist()


def test_files_of_no_head_are_named(tmp_path):
    tensors = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    metadata = {"classes": [0, 1], "features": None, "label": None, "config": {}}
    write_tensors(tmp_path / FILE, tensors, metadata)
    with pytest.raises(FileError, match=rf"{FILE}: weight has shape \[3, 2\] and bias"):
        SavedClassifier.read(tmp_path)
    write_tensors(tmp_path / FILE, tensors, {**metadata, "classes": 3})
    with pytest.raises(FileError, match=rf"{FILE}: classes: got a int, but it must be a list"):
        SavedClassifier.read(tmp_path)
    assert not (tmp_path / LINEAR).exists()
