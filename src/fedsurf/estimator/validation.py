"""Input validation with user-facing messages, for `FederatedClassifier`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets

from fedsurf.common.checks import is_out_of_memory
from fedsurf.network import Network
from fedsurf.unrolled.transferable.local import FeatureRangeError

Array = NDArray[Any]


def check_features(x: Any) -> None:
    """Raise if features are masked, or dates, of which NumPy would make numbers."""
    check_not_masked("X", x)
    types = x.dtypes if isinstance(x, pd.DataFrame) else [np.asarray(x).dtype]
    dated = [str(kind) for kind in types if kind.kind in "mM"]
    if dated:
        raise TypeError(f"X: got features of type {dated[0]}, but they must be numbers")


def check_labels(y: Any) -> None:
    """Raise if labels are masked or missing."""
    check_not_masked("y", y)
    given = np.asarray(y, dtype=object)  # NumPy makes text of a NaN among text
    missing = np.flatnonzero(pd.isna(given))
    if given.ndim == 1 and missing.size:
        raise ValueError(
            f"y: got no label for row {missing[0]} ({missing.size} in all), but each row needs one"
        )


def check_label_types(y: Array) -> None:
    """Raise unless scikit-learn takes labels for classes: all numbers, or all text."""
    try:
        check_classification_targets(y)
    except (TypeError, ValueError) as error:
        if y.dtype.kind not in "OS":  # scikit-learn's message names the trouble with numbers
            raise
        kinds = sorted({type(label).__name__ for label in y.flat})
        raise type(error)(
            f"y: got labels of the type {' and '.join(kinds)}, but they must be all numbers or all text "
            f"({error})"
        ) from error


def check_not_masked(argument: str, values: Any) -> None:
    """Raise if values of an array are masked: what lies below a mask is not a value."""
    masked = values.mask.sum() if isinstance(values, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(
            f"{argument}: got {masked} masked values, but all must be there: fill them, or leave these rows out"
        )


@contextmanager
def restored_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Restore a fitted estimator if it cannot be fitted again: scikit-learn's checks change it, too."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


@contextmanager
def training_errors(network: Network, owner: Array, features: int) -> Iterator[None]:
    """Name X in errors of numbers out of range, divergence, and too little memory."""
    try:
        yield
    except FeatureRangeError as error:
        raise FeatureRangeError(error.problem, "X") from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged(network) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sizes = np.bincount(owner)
        raise ValueError(
            f"X: got {len(owner)} rows of {features} features for {len(sizes)} agents, of whom the largest "
            f"has {sizes.max()} rows: more than fits into memory; take fewer rows, features or agents"
        ) from error


def diverged(network: Network) -> ValueError:
    """Return the error of a run whose heads are not finite."""
    return ValueError(
        f"X: got features with which training diverged (round {network.rounds}); "
        "are some of them larger than 1e15?"
    )
