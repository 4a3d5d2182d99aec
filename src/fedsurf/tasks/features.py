"""Features: a source after a frozen backbone, centred, projected and scaled, from which tasks are drawn.

Features of deep backbones are cached on disk, since they take minutes to hours; centring, principal components
and scaling take seconds. The fingerprint of features tells other data under the same name.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsurf.common.cache import Cache
from fedsurf.common.checks import check_count, check_kind
from fedsurf.tasks import sources
from fedsurf.tasks.backbones import NO_BACKBONES, ModuleBackbone, make_backbone
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.dataset import Array, Dataset
from fedsurf.tasks.sources import home

CHUNK_EXAMPLES = 4096
"""Number of examples that are in float64 at a time."""
TOLERANCE = 1e-3
"""Tolerance of mean squares, relative, and of projections, relative to the size of the features."""
DIRECTION_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Primes of the directions on which a fingerprint projects."""


@dataclass(frozen=True, eq=False)
class Features:
    """Labelled features with a training and a test part, centred and scaled by the training part.

    Features are float32 `[examples, features]`, labels `0 … classes − 1` as int64 `[examples]`.

    Examples
    --------
    >>> from fedsurf.tasks.config import FeatureConfig
    >>> load_features(FeatureConfig(source="digits", components=16)).train_x.shape
    torch.Size([1083, 16])
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


def load_features(
    config: FeatureConfig = FeatureConfig(),  # noqa: B008 - frozen
    *,
    module: nn.Module | None = None,
    version: str | None = None,
    progress: bool = True,
) -> Features:
    """Read a source, pass it through the backbone, centre, project and scale it.

    `module` is a custom network, named `config.backbone`; see `ModuleBackbone` for its input and output. A
    deep backbone shows a `progress` bar on the standard error stream, and its features are cached under
    `features` in `sources.home()`: those of a module only if `version` is given, which must change with its
    code and weights.
    """
    check_kind(config, FeatureConfig, "config", "a FeatureConfig")
    dataset = sources.load(config.source, config.folder, test_fraction=config.test_fraction)
    return features_of(dataset, config, module=module, version=version, progress=progress)


def features_of(
    dataset: Dataset,
    config: FeatureConfig = FeatureConfig(),  # noqa: B008 - frozen
    *,
    module: nn.Module | None = None,
    version: str | None = None,
    progress: bool = True,
) -> Features:
    """Extract features of a given dataset as `load_features` does, whatever `config.source` is.

    Examples
    --------
    >>> from fedsurf.tasks.config import FeatureConfig
    >>> from fedsurf.tasks.dataset import Dataset
    >>> dataset = Dataset.from_arrays(np.eye(10), np.arange(10) % 2)
    >>> features_of(dataset, FeatureConfig(components=3)).test_x.shape
    torch.Size([2, 3])
    """
    if config.components is not None:
        check_count(config.components, "components", why=", or None")
    if config.backbone in NO_BACKBONES and module is None:
        train, test = _pixels(dataset.train_x), _pixels(dataset.test_x)
        rotate = config.backbone == "pca"
    else:
        size = config.image_size
        backbone = make_backbone(config.backbone, image_size=size, module=module, version=version)
        if not dataset.images:
            raise ValueError(
                f"backbone: got {config.backbone!r}, but {dataset.name} holds features, not images; "
                "they take 'none' or 'pca'"
            )
        train, test = _deep_features(dataset, backbone, size, progress=progress)
        rotate = config.components is not None
    projection = Projection.fit(train, config.components, rotate=rotate)
    return Features(
        f"{dataset.name}/{config.backbone}",
        projection.apply(train),
        torch.from_numpy(dataset.train_y),
        projection.apply(test),
        torch.from_numpy(dataset.test_y),
        dataset.classes,
    )


def _pixels(x: Array) -> Array:
    """Return the pixels of images, between 0 and 1, as features; features stay as they are."""
    if x.ndim == 2:
        return x.astype(np.float32)
    return x.reshape(len(x), -1).astype(np.float32) / np.float32(255)


def _deep_features(
    dataset: Dataset, backbone: ModuleBackbone, image_size: int, *, progress: bool
) -> tuple[Array, Array]:
    """Return the backbone's features of both parts, from the cache if they are there."""
    stored = Cache(None if backbone.version is None else home() / "features")
    content = {
        "source": dataset.name,
        "source_version": dataset.version,
        "backbone": backbone.name,
        "backbone_version": backbone.version,
        "image_size": image_size,
    }
    name = f"{dataset.name}-{backbone.name}"
    found = stored.read(name, content)
    if found is None:
        found = {
            part: torch.from_numpy(backbone.features(images, progress=progress))
            for part, images in (("train", dataset.train_x), ("test", dataset.test_x))
        }
        stored.write(name, content, found)
    return found["train"].numpy(), found["test"].numpy()


@dataclass(frozen=True, eq=False)
class Projection:
    """Centring, principal components and one scale: `(x − mean) · axes / scale`, computed in float64.

    Examples
    --------
    >>> x = np.array([[1, 0], [3, 0]], np.float32)
    >>> Projection.fit(x, components=1).apply(x).tolist()
    [[-1.0], [1.0]]
    """

    mean: Tensor
    """The training examples' mean, `[features]`."""
    axes: Tensor | None
    """Principal axes as columns, the largest variance first, each with a positive largest entry,
    `[features, components]`; None leaves the features as they are."""
    scale: float
    """Makes the mean square of a coordinate over the training examples 1; the relative variances stay."""

    @staticmethod
    def fit(x: Array, components: int | None, *, rotate: bool = True) -> "Projection":
        """Fit on training features `[examples, features]`; None keeps all components."""
        features = x.shape[1]
        if rotate and components is not None:
            reason = ", the number of features before PCA"
            check_count(components, "components", 1, reason, features)
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
    for start in range(0, len(x), CHUNK_EXAMPLES):
        yield torch.from_numpy(x[start : start + CHUNK_EXAMPLES]).double()


def _scale(mean_square: float) -> float:
    # Equal examples have no scale; they become zeros.
    return float(np.sqrt(mean_square)) if mean_square > 0 else 1.0


def fingerprint(features: Features) -> dict[str, Any]:
    """Return numbers by which a run recognises its data, on machines that round differently, too.

    They are the number of features, and of each class of each part its size, its mean square, and the
    projections of its mean on a few fixed directions. These depend on the signs and the order of features;
    principal components have theirs fixed by `Projection`, and components that hardly vary, whose axes may
    turn, hardly count.

    Examples
    --------
    >>> from fedsurf.tasks.config import FeatureConfig
    >>> found = fingerprint(load_features(FeatureConfig(source="digits", components=16)))
    >>> found["features"], found["test"]["examples"][:3]
    (16, [71, 72, 70])
    """
    return {
        "features": features.train_x.shape[1],
        "train": _fingerprint_of_part(features.train_x, features.train_y, features.classes),
        "test": _fingerprint_of_part(features.test_x, features.test_y, features.classes),
    }


def fingerprint_difference(stored: Any, found: dict[str, Any]) -> str | None:
    """Return in what a fingerprint differs from a stored one; None if it does not."""
    if stored["features"] != found["features"]:
        return f"the number of features, {found['features']} instead of {stored['features']}"
    for part in ("train", "test"):
        then, now = stored[part], found[part]
        if then["examples"] != now["examples"]:
            return f"the examples of each class in its {part} part"
        if not _close(then["mean_squares"], now["mean_squares"], 1e-12):
            return f"the features of its {part} part"
        size = math.sqrt(max(now["mean_squares"]))
        if not _close(then["projections"], now["projections"], TOLERANCE * size):
            return f"the signs, the order or the means of the features of its {part} part"
    return None


def _close(stored: Any, found: Any, tolerance: float) -> bool:
    return np.shape(stored) == np.shape(found) and np.allclose(stored, found, TOLERANCE, tolerance)


def _fingerprint_of_part(x: Tensor, y: Tensor, classes: int) -> dict[str, Any]:
    counts = torch.bincount(y, minlength=classes)
    width = x.shape[1]
    squares = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).square() / width
    each = torch.cat([squares[:, None], _projected(x)], 1)
    totals = torch.zeros(classes, each.shape[1], dtype=torch.float64).index_add(0, y, each)
    means = totals / counts.clamp(min=1)[:, None]
    return {
        "examples": counts.tolist(),
        "mean_squares": means[:, 0].tolist(),
        "projections": means[:, 1:].tolist(),
    }


def _projected(x: Tensor) -> Tensor:
    """Project every example on the directions, `[examples, directions]`.

    A direction is cos(2π·√p·j²) for feature j and a prime p: like a random one, but the same on all
    machines.
    """
    squares = torch.arange(1, x.shape[1] + 1, dtype=torch.float64).square()
    roots = torch.tensor(DIRECTION_PRIMES, dtype=torch.float64).sqrt()
    directions = (2 * math.pi * (squares[:, None] * roots).frac()).cos()
    directions *= math.sqrt(2 / x.shape[1])
    starts = range(0, max(len(x), 1), CHUNK_EXAMPLES)  # not all examples are in float64 at a time
    return torch.cat([x[start : start + CHUNK_EXAMPLES].double() @ directions for start in starts])
