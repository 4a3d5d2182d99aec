"""Datasets: accepted arrays, errors, and the division into parts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.tasks.dataset import Dataset, checksum, split

IMAGES = np.arange(10 * 4 * 4, dtype=np.uint8).reshape(10, 4, 4, 1)
LABELS = np.arange(10) % 2


def dataset(**changes):
    parts = {
        "train_x": IMAGES,
        "train_y": LABELS.astype(np.int64),
        "test_x": IMAGES[:4],
        "test_y": LABELS[:4].astype(np.int64),
    }
    return Dataset(**{"name": "toy", "version": "1", "classes": 2, **parts, **changes})


def test_images_and_features_are_distinguished():
    assert dataset().images
    features = np.zeros((10, 3), np.float32)
    assert not dataset(train_x=features, test_x=features[:4]).images


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 0}, "classes: got 0"),
        (
            {"test_x": IMAGES[:0], "test_y": np.zeros(0, np.int64)},
            "test_x: .* there must be an example",
        ),
        ({"train_x": np.zeros((10, 3, 4, 4), np.uint8)}, "the last dimension must be the channels"),
        ({"train_y": np.zeros(9, np.int64)}, r"train_y: got shape \[9\], but it must be \[10\]"),
        ({"test_y": np.array([0, 1, 2, 0])}, r"test_y: got the label 2 \(example 2\)"),
        ({"train_y": np.full(10, -1)}, "train_y: got the label -1"),
        ({"test_x": np.zeros((4, 5, 5, 1), np.uint8)}, "test_x: got examples of shape"),
    ],
)
def test_wrong_parts_are_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        dataset(**changes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_tables_of_any_number_type_become_float32_features(dtype):
    found = Dataset.from_arrays(np.eye(10, 3).astype(dtype), LABELS, np.eye(4, 3), LABELS[:4])
    assert found.train_x.dtype == np.float32
    np.testing.assert_array_equal(found.train_x, np.eye(10, 3))


def test_tensors_give_the_same_dataset_as_arrays():
    by_tensor = Dataset.from_arrays(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    by_array = Dataset.from_arrays(IMAGES, LABELS)
    assert by_tensor.version == by_array.version


def test_integer_images_without_channels_become_grey_images():
    found = Dataset.from_arrays(IMAGES[..., 0].astype(np.int64), LABELS)
    assert found.train_x.dtype == np.uint8
    assert found.train_x.shape[1:] == (4, 4, 1)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (IMAGES / 255, LABELS, "train_x: got float64 .* images must be whole numbers"),
        (IMAGES.astype(int) * 2, LABELS, "train_x: got values from 0 to 318"),
        (np.zeros(10), LABELS, r"train_x: got shape \[10\]"),
        (np.diag([0] * 7 + [np.nan]), LABELS[:8], r"NaN or infinite \(example 7\)"),
        (np.full((10, 2), 1e300), LABELS, r"infinite \(example 0\), .* finite float32 numbers"),
        (np.array([["a"]] * 10), LABELS, "train_x: got an array of type"),
        (np.array([[None]] * 10), LABELS, "train_x: got an array of type object"),
        (np.eye(10), LABELS + 0.5, r"train_y: got the label 0\.5"),
        (np.eye(10), np.full(10, np.nan), "train_y: .* NaN"),
        (
            np.eye(10),
            LABELS[:9],
            r"train_y: got shape \[9\], .* \[10\], a label for each example of train_x",
        ),
        (np.eye(10), LABELS - 1, "train_y: got the label -1"),
    ],
)
def test_wrong_arrays_are_refused_by_name(x, y, words):
    with pytest.raises(ValueError, match=words):
        Dataset.from_arrays(x, y)


def test_a_test_part_needs_its_labels():
    with pytest.raises(ValueError, match="test_y: got None"):
        Dataset.from_arrays(IMAGES, LABELS, IMAGES)


def test_whole_numbers_written_as_floats_are_labels():
    assert Dataset.from_arrays(IMAGES, LABELS.astype(float)).train_y.dtype == np.int64


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0.01, 0.99), st.integers(0, 9)
)
def test_the_split_takes_the_stated_share_of_every_class(labels, fraction, extra):
    labels = np.array(labels)
    chosen = split(labels, fraction)
    for label in np.unique(labels):
        size = int((labels == label).sum())
        assert chosen[labels == label].sum() == size * round(fraction * 10**6) // 10**6
    # The choice among the first examples does not depend on later ones.
    longer = split(np.append(labels, [extra]), fraction)
    np.testing.assert_array_equal(longer[:-1], chosen)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2])
def test_a_share_outside_the_unit_interval_is_refused(fraction):
    with pytest.raises(ValueError, match="test_fraction: got"):
        split(LABELS, fraction)


def test_the_checksum_depends_on_type_shape_and_content():
    base = np.arange(6, dtype=np.int32)
    others = [base.astype(np.uint32), base.reshape(2, 3), base[::-1]]
    assert len({checksum(array) for array in [base, *others]}) == 4
    assert checksum(base) == checksum(base.copy())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3)[[0, 1, 2, 0]], r"train_y: got shape \[4, 3\], but it must be \[examples\]"),
        (np.array(3), r"train_y: got shape \[\], but"),
        (np.array([1, 2, 3, 1]), r"train_y: got labels up to 3, but no example has the label 0"),
        (np.array([0, 1, 10**6, 0]), r"labels up to 1000000, but no example has the label 2"),
    ],
)
def test_labels_that_are_not_numbers_of_classes_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_arrays(np.zeros((4, 2)), labels)
    if labels.shape == (4,) and labels.max() < 10:
        x = np.zeros((4, 2))
        assert Dataset.from_arrays(x, labels, x, labels, classes=5).classes == 5
