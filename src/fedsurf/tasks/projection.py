"""Centring, principal components and one scale, fitted on training examples alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsurf.tasks.dataset import Array

CHUNK = 4096
"""How many examples are in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Projection:
    """`(x − mean) · axes / scale`, in float64 inside and float32 outside.

    Attributes
    ----------
    mean : Tensor
        The training examples' mean, `[features]`.
    axes : Tensor or None
        Principal axes as columns, the largest variance first, `[features, components]`; None leaves
        the features as they are. The entry of largest size of each axis is positive.
    scale : float
        One scalar, so that the mean square of a coordinate over the training examples is 1 while
        the coordinates keep their relative variances.
    """

    mean: Tensor
    axes: Tensor | None
    scale: float

    @staticmethod
    def fit(x: Array, components: int | None, *, rotate: bool = True) -> "Projection":
        """Fit on training features `[examples, features]`.

        Parameters
        ----------
        x : Array
            The training features.
        components : int or None
            How many principal components to keep; None keeps all.
        rotate : bool
            Whether to go to the principal axes at all.
        """
        features = x.shape[1]
        if rotate and components is not None and not 1 <= components <= features:
            raise ValueError(
                f"components: got {components}, but it must be between 1 and {features}, "
                "the number of features before PCA"
            )
        mean = torch.zeros(features, dtype=torch.float64)
        for chunk in _chunks(x):
            mean += chunk.sum(0) / len(x)
        if not rotate:
            squares = sum(float((chunk - mean).square().sum()) for chunk in _chunks(x))
            return Projection(mean, None, _scale(squares / x.size))
        scatter = torch.zeros(features, features, dtype=torch.float64)
        for chunk in _chunks(x):
            centred = chunk - mean
            scatter += centred.T @ centred
        variances, axes = torch.linalg.eigh(scatter / len(x))
        kept = components or features
        variances, axes = variances.flip(0)[:kept], axes.flip(1)[:, :kept]
        largest = axes.abs().argmax(0)
        signs = torch.where(axes[largest, torch.arange(kept)] < 0, -1.0, 1.0)
        return Projection(mean, axes * signs, _scale(float(variances.clamp(min=0).mean())))

    def apply(self, x: Array) -> Tensor:
        """Project features `[examples, features]` to float32 `[examples, components]`."""
        parts = []
        for chunk in _chunks(x):
            centred = chunk - self.mean
            moved = centred if self.axes is None else centred @ self.axes
            parts.append((moved / self.scale).float())
        return torch.cat(parts)


def _chunks(x: Array) -> Iterator[Tensor]:
    for start in range(0, len(x), CHUNK):
        yield torch.from_numpy(x[start : start + CHUNK]).double()


def _scale(mean_square: float) -> float:
    # Examples that are all alike have no scale; they become zeros.
    return float(np.sqrt(mean_square)) if mean_square > 0 else 1.0
