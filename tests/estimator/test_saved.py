"""A saved classifier: features by their names, and files that can be read again."""

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
    """Wines as a data frame, a classifier that was fitted to it, and its saved."""
    pytest.importorskip("pandas")
    frame, kinds = load_wine(return_X_y=True, as_frame=True)
    model = FederatedClassifier(rounds=6).fit(frame, kinds)
    names = model.feature_names_in_.tolist()
    return frame, model, SavedClassifier(model.coef_, model.intercept_, [0, 1, 2], names, None, {})


def test_columns_of_a_data_frame_are_found_by_their_names(wine, tmp_path):
    frame, model, saved = wine
    saved.write(tmp_path)
    again = SavedClassifier.read(tmp_path)
    expected = model.predict_proba(frame)
    assert np.array_equal(again.probabilities(frame), expected)
    assert np.array_equal(again.probabilities(frame[list(frame)[::-1]]), expected)
    assert np.array_equal(again.probabilities(frame.assign(grower="anna")), expected)
    assert np.array_equal(again.probabilities(frame.astype("Float64")), expected)
    with pytest.raises(
        ValueError,
        match=r"^x: got the columns alcohol, malic_acid, alcal.*needs .*, ash, .*each once",
    ):
        again.probabilities(frame.drop(columns="ash"))
    with pytest.raises(ValueError, match=r"^x: got the columns ash, malic_acid, ash, .* each once"):
        again.probabilities(frame.set_axis(["ash", *list(frame)[1:]], axis=1))


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_rows_without_names_are_taken_by_position(wine, kind):
    frame, model, saved = wine
    rows = kind(frame.to_numpy().tolist())
    np.testing.assert_allclose(saved.probabilities(rows), model.predict_proba(frame), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0], "Expected 2D array, got 1D array"),
        (lambda x: x[:, :3], r"^x: got shape \[178, 3\], but it must be \[rows, 13\]"),
        (lambda x: x.astype(str)[:, :1] + "?", "could not convert string to float"),
        (lambda x: x * np.nan, "Input x contains NaN"),
        (lambda x: x.astype("M8[D]"), "got features of type datetime64"),
        (lambda x: x * 1j, "Complex data not supported"),
        (lambda x: [x[0], x[0][:2]], "inhomogeneous shape"),
    ],
)
def test_rows_that_do_not_fit_are_refused(wine, change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wine[2].probabilities(change(wine[0].to_numpy()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": np.arange(3)}, "^classes: got ndarray, but it must be a list of text or num"),
        ({"features": ["a"]}, r"^features: got 1 name, but weight has shape \[3, 2\]"),
        ({"classes": [[1], {}, None]}, r"^classes\[0\]: got list, but it must be text or numbers"),
        ({"classes": [1, 1, 1]}, "^classes: got 1, 1, 1, but each must be different"),
        ({"features": [[1], "a"]}, r"^features\[0\]: got list, but it must be text"),
        ({"label": ["a"]}, "^label: got list, but it must be text, or None"),
        ({"config": 5}, "^config: got 5, but it must be a table of settings"),
        ({"classes": ["a", "b"]}, r"^weight has shape \[3, 2\] and bias \[3\], but there are 2"),
        ({"bias": np.ones((3, 1))}, r"^weight has shape \[3, 2\] and bias \[3, 1\], but there"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change, message):
    parts = {"weight": np.ones((3, 2)), "bias": np.ones(3), "classes": [0, 1, 2], "features": None}
    with pytest.raises((TypeError, ValueError), match=message):
        SavedClassifier(**{**parts, "label": None, "config": {}, **change})


def test_rows_of_weights_may_be_in_another_order_than_in_memory(tmp_path):
    weight, bias = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    SavedClassifier(weight[::-1], bias[::-1], [2, 1, 0], None, None, {}).write(tmp_path)
    again = SavedClassifier.read(tmp_path)
    assert again.weight.tolist() == weight[::-1].tolist()
    assert again.bias.tolist() == bias[::-1].tolist()


def test_files_of_another_kind_are_named(tmp_path):
    tensors = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    metadata = {"classes": [0, 1], "features": None, "label": None, "config": {}}
    write_tensors(tmp_path / FILE, tensors, metadata)
    with pytest.raises(FileError, match=rf"{FILE}: weight has shape \[3, 2\] and bias"):
        SavedClassifier.read(tmp_path)
    write_tensors(tmp_path / FILE, tensors, {**metadata, "classes": 3})
    with pytest.raises(FileError, match=rf"{FILE}: classes: got 3, but it must be a list"):
        SavedClassifier.read(tmp_path)
    assert not (tmp_path / LINEAR).exists()
