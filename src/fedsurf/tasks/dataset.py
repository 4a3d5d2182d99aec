"""A dataset: what a source holds, as raw labelled arrays with a training and a test part."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsurf.common.text import counted
from fedsurf.tasks.config import TEST_FRACTION

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled arrays, checked when made.

    Attributes
    ----------
    name : str
        What the data is called.
    version : str
        Tells one content from another; it enters the key of cached features.
    train_x, test_x : Array
        Images as uint8 `[examples, height, width, channels]` with 1 or 3 channels, or features as
        float32 `[examples, features]`.
    train_y, test_y : Array
        Labels as int64 `[examples]`.
    classes : int
        The number of classes; labels are `0 … classes − 1`.
    """

    name: str
    version: str
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ValueError(f"classes: got {self.classes}, but a dataset has at least one class")
        for part, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            _check_examples(f"{part}_x", x)
            _check_labels(f"{part}_y", y, len(x), self.classes)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"test_x: got examples of shape {list(self.test_x.shape[1:])}, "
                f"but train_x has examples of shape {list(self.train_x.shape[1:])}"
            )

    @property
    def images(self) -> bool:
        """Whether the examples are images; otherwise they are features already."""
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

        Parameters
        ----------
        train_x, test_x : Array or Tensor
            Integers between 0 and 255 of shape `[examples, height, width]` or
            `[examples, height, width, channels]` are images; anything of shape
            `[examples, features]` is features. Without a test part, `split` divides the training
            part.
        train_y, test_y : Array or Tensor
            Whole numbers from 0 on.
        name : str
            What the data is called.
        classes : int, optional
            The number of classes; by default the largest label and one.
        test_fraction : float
            The share of each class that becomes the test part where none is given.
        argument_names : (str, str)
            The names of the training examples and their labels in errors.
        """
        if (test_x is None) != (test_y is None):
            given, lacking = ("test_y", "test_x") if test_x is None else ("test_x", "test_y")
            raise ValueError(f"{lacking}: got none, but it must be given together with {given}")
        x_name, y_name = argument_names
        x, y = _examples(x_name, train_x), _labels(y_name, train_y)
        whole = test_x is None or test_y is None
        if whole and len(x) != len(y):
            raise ValueError(
                f"{y_name}: got {counted(len(y), 'label')}, but {x_name} has "
                f"{counted(len(x), 'example')}"
            )
        other_x = x[:0] if test_x is None else _examples("test_x", test_x)
        other_y = y[:0] if test_y is None else _labels("test_y", test_y)
        if classes is None:
            known = np.union1d(y, other_y)
            classes = 1 + max(known.tolist(), default=0)
            if y.size and known.min() >= 0 and len(known) < classes:
                missing = int(np.flatnonzero(known != np.arange(len(known)))[0])
                raise ValueError(
                    f"{y_name}: got labels up to {classes - 1}, but no example has the label {missing}: "
                    "number the classes from 0 on without gaps, or give classes"
                )
        classes = max(classes, 1)
        if whole:
            # Now, while the examples have the numbers that the caller knows.
            _check_examples(x_name, x)
            _check_labels(y_name, y, len(x), classes)
            for_test = split(y, test_fraction)
            x, other_x, y, other_y = x[~for_test], x[for_test], y[~for_test], y[for_test]
            if not (len(x) and len(other_x)):
                raise ValueError(
                    f"{x_name}: got {counted(len(for_test), 'example')}, of which with {test_fraction:g} of "
                    f"each class {len(x)} are to train with and {len(other_x)} to test by, but there must "
                    "be at least one example of either"
                )
        return Dataset(name, checksum(x, y, other_x, other_y), x, y, other_x, other_y, classes)


def split(labels: Array, test_fraction: float) -> Array:
    """Choose a test part without randomness: of each class, examples at even distances.

    Of the first k examples of a class, `floor(k · test_fraction)` are in the test part. The same
    labels always give the same parts, on every machine.

    Returns
    -------
    Array
        True where an example belongs to the test part, `[examples]`.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"test_fraction: got {test_fraction}, but it must be between 0 and 1, both excluded"
        )
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
    array = _array(name, values)
    if array.ndim == 2:
        _check_finite(name, array)
        with np.errstate(over="ignore"):  # what is too large for float32 is named below
            single = array.astype(np.float32)
        _check_range(name, array, single)
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
    if array.dtype.kind == "f":
        _check_finite(name, array)
        fractional = array[array != np.floor(array)]
        if fractional.size:
            raise ValueError(
                f"{name}: got the label {fractional.flat[0]}, but labels must be whole numbers"
            )
    return array.astype(np.int64)


def _check_finite(name: str, array: Array) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        example = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ValueError(
            f"{name}: got a value that is NaN or infinite (example {example}), "
            "but all values must be finite"
        )


def _check_range(name: str, array: Array, single: Array) -> None:
    """Raise where a finite number is none in float32."""
    wrong = np.argwhere(~np.isfinite(single))
    if wrong.size:
        example, feature = wrong[0]
        raise ValueError(
            f"{name}: got {array[example, feature]} (example {example}, feature {feature}), but features "
            f"are held in float32, whose largest number is {np.finfo(np.float32).max:.2g}: give that "
            "feature a larger unit, or standardise it"
        )


def _check_examples(name: str, x: Array) -> None:
    images = x.dtype == np.uint8 and x.ndim == 4
    features = x.dtype == np.float32 and x.ndim == 2
    if not images and not features:
        raise ValueError(
            f"{name}: got {x.dtype} of shape {list(x.shape)}, but it must be "
            "uint8 [examples, height, width, channels] or float32 [examples, features]"
        )
    if x.size == 0:
        raise ValueError(
            f"{name}: got shape {list(x.shape)}, but there must be at least one example"
        )
    if images and x.shape[3] not in (1, 3):
        raise ValueError(
            f"{name}: got images of shape {list(x.shape[1:])}, "
            "but the last dimension must be the channels, 1 (grey) or 3 (colour)"
        )
    _check_finite(name, x)


def _check_labels(name: str, y: Array, examples: int, classes: int) -> None:
    if y.dtype != np.int64 or y.shape != (examples,):
        raise ValueError(
            f"{name}: got {y.dtype} of shape {list(y.shape)}, "
            f"but it must be int64 of shape [{examples}], a label for each example"
        )
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size:
        raise ValueError(
            f"{name}: got the label {y[wrong[0]]} (example {wrong[0]}), "
            f"but labels must be between 0 and {classes - 1}"
        )
