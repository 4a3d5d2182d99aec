"""What can be wrong with what a classifier is fitted to, said by the names that its users know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets

from fedsurf.common.checks import is_out_of_memory
from fedsurf.estimator.columns import missing_in
from fedsurf.estimator.federations import Array
from fedsurf.network import Network
from fedsurf.unrolled.transferable.local import FeatureRangeError


@contextmanager
def as_before_where_it_fails(estimator: BaseEstimator) -> Iterator[None]:
    """Make an estimator what it was where it cannot be fitted again: scikit-learn's checks change it, too."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def check_no_label_missing(y: Any) -> None:
    """Raise where a label is None, NaN or pandas' NA; empty text is a label like any other."""
    # As it was given: where some of a list is text, NumPy makes text of all, of a NaN too.
    given = np.asarray(y, dtype=object)
    if given.ndim != 1:
        return
    text = np.array([isinstance(label, str) for label in given], dtype=bool)
    missing = np.flatnonzero(missing_in(given) & ~text)
    if missing.size:
        raise ValueError(
            f"y: got no label for row {missing[0]} ({missing.size} in all), but each row needs one"
        )


def check_not_masked(**given: Any) -> None:
    """Raise where values of an array, called by its name, are masked: what lies below a mask is no value."""
    for name, values in given.items():
        # Not by NumPy's is_masked, to which a table with a column called _mask is masked, too.
        masked = values.mask.sum() if isinstance(values, np.ma.MaskedArray) else 0
        if masked:
            raise ValueError(
                f"{name}: got {masked} masked values, but all must be there: fill them, or leave these rows out"
            )


def check_labels(y: Array) -> None:
    """Raise unless labels are of one kind, which scikit-learn takes for labels."""
    try:
        check_classification_targets(y)
    except (TypeError, ValueError) as error:
        kinds = {type(label).__name__ for label in y.flat}
        if len(kinds) > 1 and isinstance(error, TypeError):
            raise ValueError(
                f"y: got labels of different kinds ({error}), but they must be all numbers or all text"
            ) from error
        if y.dtype.kind not in "OS":  # of numbers scikit-learn says what is wrong
            raise
        raise type(error)(
            f"y: got labels of the type {' and '.join(sorted(kinds))}, but they must be numbers or text "
            f"({error})"
        ) from error


@contextmanager
def errors_of_features(network: Network) -> Iterator[None]:
    """Name X in what goes wrong since its numbers are too large, or too small."""
    try:
        yield
    except FeatureRangeError as error:
        raise FeatureRangeError(error.wrong, "X") from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged(network) from error


def diverged(network: Network) -> ValueError:
    """Return the error of a run whose heads are no numbers any more."""
    return ValueError(
        f"X: got features with which training diverged (round {network.rounds}); "
        "are some of them larger than 1e15?"
    )


@contextmanager
def errors_of_memory(owner: Array, agents: int, features: int) -> Iterator[None]:
    """Say what takes so much memory where there is not enough of it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        largest = int(np.bincount(owner, minlength=agents).max())
        raise ValueError(
            f"X: got {len(owner)} rows of {features} features for {agents} agents, of whom the largest "
            f"has {largest} rows: more than fits into memory; take fewer rows, features or agents"
        ) from error
