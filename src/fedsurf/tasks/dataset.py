"""Datasets: labelled arrays with a training and a test part, before any features are extracted."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsurf.common.checks import check_count, check_fraction
from fedsurf.common.text import counted
from fedsurf.tasks.config import TEST_FRACTION

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled arrays, which `from_arrays` makes.

    Examples are images as uint8 `[examples, height, width, channels]` with 1 or 3 channels, or features as
    float32 `[examples, features]`; labels are `0 … classes − 1` as int64, `[examples]`.
    """

    name: str
    version: str
    """A checksum of the content, which enters the key of cached features."""
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int

    def __post_init__(self) -> None:
        check_count(self.classes, "classes")
        _check_part(self.train_x, self.train_y, self.classes, ("train_x", "train_y"))
        _check_part(self.test_x, self.test_y, self.classes, ("test_x", "test_y"))
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"test_x: got examples of shape {list(self.test_x.shape[1:])}, "
                f"but train_x has examples of shape {list(self.train_x.shape[1:])}"
            )

    @property
    def images(self) -> bool:
        """Whether the examples are images, not features."""
        return self.train_x.ndim == 4

    @staticmethod
    def from_arrays(
        train_x: Array | Tensor,
        train_y: Array | Tensor,
        test_x: Array | Tensor | None = None,
        test_y: Array | Tensor | None = None,
        *,
        name: str = "arrays",
        classes: int | None = None,
        test_fraction: float = TEST_FRACTION,
        argument_names: tuple[str, str] = ("train_x", "train_y"),
    ) -> "Dataset":
        """Make a dataset of arrays or tensors of any integer or floating type.

        Integers between 0 and 255 of shape `[examples, height, width]` or
        `[examples, height, width, channels]` are images; arrays of shape `[examples, features]` are
        features. Labels are whole numbers from 0 on, by default all up to the largest. Without a test
        part, `test_fraction` of each class becomes one; see `split`. `argument_names` are the names of
        the training examples and their labels in errors.

        Examples
        --------
        >>> dataset = Dataset.from_arrays(np.eye(10), np.arange(10) % 2, test_fraction=0.4)
        >>> dataset.train_x.shape, dataset.test_x.shape, dataset.classes
        ((6, 10), (4, 10), 2)
        """
        if (test_x is None) != (test_y is None):
            given, missing = ("test_y", "test_x") if test_x is None else ("test_x", "test_y")
            raise ValueError(f"{missing}: got None, but it must be given together with {given}")
        x, y = _examples(argument_names[0], train_x), _labels(argument_names[1], train_y)
        other_x = x[:0] if test_x is None else _examples("test_x", test_x)
        other_y = y[:0] if test_y is None else _labels("test_y", test_y)
        if classes is None:
            classes = _count_classes(argument_names[1], np.union1d(y, other_y))
        if test_x is None:
            _check_part(x, y, classes, argument_names)  # before the split, which renumbers examples
            for_test = split(y, test_fraction)
            x, other_x, y, other_y = x[~for_test], x[for_test], y[~for_test], y[for_test]
            if not (len(x) and len(other_x)):
                raise ValueError(
                    f"{argument_names[0]}: got {counted(len(for_test), 'example')}; with a test_fraction of "
                    f"{test_fraction:g}, {len(x)} are for training and {len(other_x)} for test, but there "
                    "must be at least one example of either"
                )
        return Dataset(name, checksum(x, y, other_x, other_y), x, y, other_x, other_y, classes)


def split(labels: Array, test_fraction: float) -> Array:
    """Choose a test part without randomness: of each class, examples at equal distances.

    Of the first k examples of a class, `floor(k · test_fraction)` are in the test part, on every machine.
    The result is True where an example belongs to the test part, `[examples]`.

    Examples
    --------
    >>> split(np.zeros(5), 0.4).tolist()
    [False, False, True, False, True]
    """
    check_fraction(test_fraction, "test_fraction")
    unit = 10**6  # whole numbers, so that no rounding depends on the machine
    share = round(test_fraction * unit)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        rank = np.arange(len(positions), dtype=np.int64)
        chosen[positions] = (rank + 1) * share // unit > rank * share // unit
    return chosen


def checksum(*arrays: Array) -> str:
    """Return a short checksum of the arrays' types, shapes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _array(name: str, values: Array | Tensor) -> Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise ValueError(
            f"{name}: got an array of type {array.dtype}, but it must hold integers or floats"
        )
    return array


def _examples(name: str, values: Array | Tensor) -> Array:
    """Convert examples to float32 features or uint8 images."""
    array = _array(name, values)
    if array.ndim == 2:
        with np.errstate(over="ignore"):  # `_check_finite` reports numbers too large for float32
            single = array.astype(np.float32)
        _check_finite(name, single)
        return single
    if array.ndim not in (3, 4):
        raise ValueError(
            f"{name}: got shape {list(array.shape)}, but it must be [examples, features], "
            "[examples, height, width] or [examples, height, width, channels]"
        )
    if array.dtype.kind == "f":
        raise ValueError(
            f"{name}: got {array.dtype} of shape {list(array.shape)}, but images must be whole "
            "numbers between 0 and 255 (uint8), and features must be [examples, features]"
        )
    if array.size and not (array.min() >= 0 and array.max() <= 255):
        raise ValueError(
            f"{name}: got values from {array.min()} to {array.max()}, "
            "but the values of images must be between 0 and 255"
        )
    images = array.astype(np.uint8)
    return images[..., None] if images.ndim == 3 else images


def _labels(name: str, values: Array | Tensor) -> Array:
    array = _array(name, values)
    if array.ndim != 1:
        raise ValueError(
            f"{name}: got shape {list(array.shape)}, but it must be [examples], a whole number for each"
        )
    _check_finite(name, array)
    fractional = array[array != np.floor(array)] if array.dtype.kind == "f" else array[:0]
    if fractional.size:
        raise ValueError(f"{name}: got the label {fractional[0]}, but labels must be whole numbers")
    return array.astype(np.int64)


def _count_classes(name: str, labels: Array) -> int:
    """Return the largest of the sorted labels plus 1; all smaller labels must be present."""
    if not labels.size or labels[0] < 0:  # reported by `_check_part`
        return max(1, 1 + max(labels.tolist(), default=0))
    classes = int(labels[-1]) + 1
    if len(labels) < classes:
        missing = int(np.flatnonzero(labels != np.arange(len(labels)))[0])
        raise ValueError(
            f"{name}: got labels up to {classes - 1}, but no example has the label {missing}: "
            "number the classes from 0 on without gaps, or give classes"
        )
    return classes


def _check_finite(name: str, array: Array) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        example = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ValueError(
            f"{name}: got a value that is NaN or infinite (example {example}), "
            f"but all values must be finite {array.dtype} numbers"
        )


def _check_part(x: Array, y: Array, classes: int, names: tuple[str, str]) -> None:
    """Raise unless a part has examples, and a label of its classes for each."""
    if x.size == 0:
        raise ValueError(f"{names[0]}: got shape {list(x.shape)}, but there must be an example")
    if x.ndim == 4 and x.shape[3] not in (1, 3):
        raise ValueError(
            f"{names[0]}: got images of shape {list(x.shape[1:])}, "
            "but the last dimension must be the channels, 1 (grey) or 3 (colour)"
        )
    if y.shape != x.shape[:1]:
        raise ValueError(
            f"{names[1]}: got shape {list(y.shape)}, but it must be [{len(x)}], "
            f"a label for each example of {names[0]}"
        )
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size:
        raise ValueError(
            f"{names[1]}: got the label {y[wrong[0]]} (example {wrong[0]}), "
            f"but labels must be between 0 and {classes - 1}"
        )
