"""A trained head as files: one of fedsurf, which knows its classes, and one of plain PyTorch."""

import math
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from fedsurf.common.checks import check_kind
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.text import counted, listed
from fedsurf.common.writing import json_text, write_tensors

Array = NDArray[Any]

FILE, LINEAR = "head.safetensors", "linear.safetensors"
"""What the files are called: fedsurf's own, and the state dict of an `nn.Linear`."""
_FIELDS = {"classes", "features", "label", "config"}


@dataclass(frozen=True)
class SavedClassifier:
    """A linear classifier of raw features.

    Attributes
    ----------
    weight, bias : Array
        `[classes, features]` and `[classes]`.
    classes : list
        The labels, in the order of the rows: numbers or text.
    features : list of str or None
        The names of the features, in the order of the columns, if they have any.
    label : str or None
        What the label was called, if it had a name.
    config : dict
        How it was trained.
    """

    weight: Array
    bias: Array
    classes: list[Any]
    features: list[str] | None
    label: str | None
    config: dict[str, Any]

    def __post_init__(self) -> None:
        """Raise where the parts are not those of one classifier, or no file could hold them."""
        for name in ("weight", "bias"):
            check_kind(getattr(self, name), np.ndarray, name, "an array of NumPy")
        plain = "a list of text or of Python's own numbers, as tolist() of an array is"
        _check_plain(self.classes, "classes", str | int | float, plain)
        if self.features is not None:
            _check_plain(self.features, "features", str, "a list of text, or None")
        check_kind(self.label, str | None, "label", "text, or None")
        check_kind(self.config, dict, "config", "a dict")
        try:
            json_text(self.config)
        except (TypeError, ValueError) as error:
            raise TypeError(f"config: got what cannot be written as JSON ({error})") from error
        weight, bias, rows = np.shape(self.weight), np.shape(self.bias), len(self.classes)
        if len(weight) != 2 or weight[0] != rows or bias != (rows,):
            raise ValueError(
                f"weight has shape {list(weight)} and bias {list(bias)}, but there are {rows} classes"
            )
        if self.features is not None and len(self.features) != weight[1]:
            raise ValueError(
                f"features: got {counted(len(self.features), 'name')}, but weight has shape {list(weight)}"
            )

    def probabilities(self, x: Any) -> Array:
        """Return the probability of every class for `x[rows, features]`.

        The columns of a data frame are found by their names, in any order, if the features have names.
        """
        found: Array = softmax(self._features_of(x) @ self.weight.T + self.bias, axis=1)
        return found

    def _features_of(self, x: Any) -> Array:
        try:
            given = np.asarray(x)
        except ValueError as error:
            raise ValueError(f"x: got rows that are no array ({error})") from error
        if self.features is not None and hasattr(x, "columns"):
            places = {str(name): place for place, name in enumerate(x.columns)}
            if len(places) < len(x.columns):
                raise ValueError(
                    f"x: got several columns of one name among {listed(map(str, x.columns))}, but each must "
                    "have its own"
                )
            missing = [name for name in self.features if name not in places]
            if missing:
                raise ValueError(
                    f"x: got no column {listed(missing)}, but the head was trained on it; "
                    f"there are {listed(places)}"
                )
            given = given[:, [places[name] for name in self.features]]
        if given.dtype.kind in "mMc":  # NumPy would make numbers of them
            raise ValueError(f"x: got {given.dtype}, but features must be numbers")
        try:
            given = given if given.dtype.kind == "f" else given.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"x: got features that are no numbers ({error})") from error
        if given.ndim != 2 or given.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"x: got shape {list(given.shape)}, but it must be [rows, {self.weight.shape[1]}]"
            )
        if not np.isfinite(given).all():
            raise ValueError("x: got a value that is NaN or infinite, but all must be finite")
        return given

    def write(self, folder: str | Path) -> None:
        """Write both files into a folder: the state dict in float32, as PyTorch's layers are."""
        folder = Path(folder)
        self._check_single()
        weight, bias = (torch.tensor(part.copy()) for part in (self.weight, self.bias))
        plain = {"weight": weight.float(), "bias": bias.float()}
        metadata = {name: getattr(self, name) for name in sorted(_FIELDS)}
        write_tensors(folder / LINEAR, plain, {"classes": self.classes})
        write_tensors(folder / FILE, {"weight": weight, "bias": bias}, metadata)

    def _check_single(self) -> None:
        """Raise where a weight is no number in float32, or a bias."""
        largest = np.finfo(np.float32).max
        wrong = np.argwhere(~(np.abs(self.weight) <= largest))
        if wrong.size:
            row, column = wrong[0]
            name = column if self.features is None else repr(self.features[column])
            raise ValueError(
                f"weight: got {self.weight[row, column]:.2g} for feature {name}, but {LINEAR} is in "
                f"float32, whose largest number is {largest:.2g}: give that feature in a smaller unit"
            )
        if not (np.abs(self.bias) <= largest).all():
            raise ValueError(
                f"bias: got {np.abs(self.bias).max():.2g}, but {LINEAR} is in float32, whose largest number "
                f"is {largest:.2g}: are there features that differ by next to nothing, far from 0?"
            )

    @staticmethod
    def read(path: str | Path) -> "SavedClassifier":
        """Read a head from its file, or from the folder that holds it."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        metadata, tensors = read_metadata(path), read_all_tensors(path)
        if set(metadata) != _FIELDS or set(tensors) != {"weight", "bias"}:
            raise FileError(f"{path}: does not hold a head that `fedsurf fit` wrote")
        if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in tensors.values()):
            raise FileError(f"{path}: holds weights that are neither float32 nor float64")
        weight, bias = tensors["weight"].numpy(), tensors["bias"].numpy()
        try:
            head = SavedClassifier(weight, bias, **metadata)
        except (TypeError, ValueError) as error:
            raise FileError(f"{path}: {error}") from error
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise FileError(f"{path}: damaged, it holds a weight that is no number")
        return head


def _check_plain(values: Any, argument: str, kind: type | UnionType, wanted: str) -> None:
    """Raise unless these are what JSON has words for, NumPy's numbers are not, and each is there once."""
    if not isinstance(values, list):
        raise TypeError(f"{argument}: got a {type(values).__name__}, but it must be {wanted}")
    seen = set()
    for one in values:
        infinite = isinstance(one, float) and not math.isfinite(one)
        if infinite or not isinstance(one, kind):
            raise TypeError(f"{argument}: got {one!r} among them, but it must be {wanted}")
        if one in seen:
            raise ValueError(f"{argument}: got {one!r} twice, but each must be there once")
        seen.add(one)
