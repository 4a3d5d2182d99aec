"""A trained classifier as files: one of fedsurf, with its classes, and one of plain PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.utils.validation import check_array

from fedsurf.common.checks import check_kind
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.text import counted, listed
from fedsurf.common.writing import write_tensors
from fedsurf.estimator.federations import Array, check_features

FILE, LINEAR = "head.safetensors", "linear.safetensors"
"""Names of the files: fedsurf's own, and the state dict of an `nn.Linear`."""
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
        The name of the label's column, if it has one.
    config : dict
        The settings of training.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> saved = SavedClassifier(np.array([[0.0], [1.0]]), np.zeros(2), ["no", "yes"], ["size"], None, {})
    >>> with TemporaryDirectory() as folder:
    ...     saved.write(folder)
    ...     SavedClassifier.read(folder).probabilities([[0.0], [50.0]]).round(2).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """

    weight: Array
    bias: Array
    classes: list[Any]
    features: list[str] | None
    label: str | None
    config: dict[str, Any]

    def __post_init__(self) -> None:
        _check_names(self.classes, "classes", str | int | float, "text or numbers")
        if self.features is not None:
            _check_names(self.features, "features", str, "text")
        check_kind(self.label, str | None, "label", "text, or None")
        check_kind(self.config, dict, "config", "a table of settings")
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

        The columns of a data frame are found by name, in any order, if the features have names.
        """
        found: Array = softmax(self._numbers(x) @ self.weight.T + self.bias, axis=1)
        return found

    def _numbers(self, x: Any) -> Array:
        if self.features is not None and hasattr(x, "columns"):
            columns = [str(name) for name in x.columns]
            if not set(self.features) <= set(columns) or len(set(columns)) < len(columns):
                raise ValueError(
                    f"x: got the columns {listed(columns)}, but the classifier needs "
                    f"{listed(self.features)}, each once"
                )
            x = np.asarray(x)[:, [columns.index(name) for name in self.features]]
        check_features(x)
        given: Array = check_array(x, dtype=(np.float64, np.float32), input_name="x")
        if given.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"x: got shape {list(given.shape)}, but it must be [rows, {self.weight.shape[1]}]"
            )
        return given

    def write(self, folder: str | Path) -> None:
        """Write both files into a folder: the state dict in float32, as PyTorch's layers are."""
        folder = Path(folder)
        weight, bias = (torch.tensor(part.copy()) for part in (self.weight, self.bias))
        single = {"weight": weight.float(), "bias": bias.float()}
        for name, part in single.items():
            if not part.isfinite().all():
                raise ValueError(
                    f"{name}: got numbers that are too large, but {LINEAR} is in float32: "
                    "give tiny features another unit"
                )
        write_tensors(folder / LINEAR, single, {"classes": self.classes})
        self.write_file(folder / FILE)

    def write_file(self, path: Path) -> None:
        """Write fedsurf's own file only."""
        weight, bias = (torch.tensor(part.copy()) for part in (self.weight, self.bias))
        metadata = {name: getattr(self, name) for name in sorted(_FIELDS)}
        write_tensors(path, {"weight": weight, "bias": bias}, metadata)

    @staticmethod
    def read(path: str | Path) -> "SavedClassifier":
        """Read a classifier from its file, or from the folder that holds it."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        metadata, tensors = read_metadata(path), read_all_tensors(path)
        if set(metadata) != _FIELDS or set(tensors) != {"weight", "bias"}:
            raise FileError(f"{path}: does not hold a classifier that `fedsurf fit` wrote")
        for name, tensor in tensors.items():
            if tensor.dtype not in (torch.float32, torch.float64) or not tensor.isfinite().all():
                raise FileError(f"{path}: damaged, {name} must be finite, in float32 or float64")
        try:
            return SavedClassifier(tensors["weight"].numpy(), tensors["bias"].numpy(), **metadata)
        except (TypeError, ValueError) as error:
            raise FileError(f"{path}: {error}") from error


def _check_names(names: list[Any], argument: str, kind: type | UnionType, wanted: str) -> None:
    """Raise unless names are a list of different values of one kind."""
    check_kind(names, list, argument, f"a list of {wanted}")
    for place, name in enumerate(names):
        check_kind(name, kind, f"{argument}[{place}]", wanted)
    if len(set(names)) < len(names):
        raise ValueError(f"{argument}: got {listed(names)}, but each must be different")
