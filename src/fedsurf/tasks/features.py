"""Features: a source seen through a frozen backbone, ready to draw tasks from.

What a deep backbone computes is cached on disk, since it takes minutes to hours; centring, PCA and
scaling are done anew each time, since they take seconds.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.files import FileError, read_metadata, read_tensors_into
from fedsurf.common.writing import write_tensors
from fedsurf.tasks import sources
from fedsurf.tasks.backbones import Backbone, Pixels, backbone
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.dataset import Array, Dataset, checksum
from fedsurf.tasks.projection import Projection
from fedsurf.tasks.sources import home

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Features:
    """Labelled features with a training and a test part.

    Attributes
    ----------
    name : str
        The source and the backbone.
    train_x, test_x : Tensor
        float32 `[examples, features]`, centred and scaled by the training part.
    train_y, test_y : Tensor
        Labels as int64 `[examples]`.
    classes : int
        The number of classes; labels are `0 … classes − 1`.
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
    progress: bool = True,
    cache: bool = True,
) -> Features:
    """Read a source, pass it through the backbone, centre, project and scale it.

    Parameters
    ----------
    config : FeatureConfig
        Which data and which backbone.
    module : nn.Module, optional
        The user's own network, called `config.backbone`; `ModuleBackbone` says what it is given.
    progress : bool
        Whether to show a bar on the standard error stream while a deep backbone runs.
    cache : bool
        Whether to read and write the features of deep backbones under `features` in the folder of
        FEDSURF_HOME, or else in the user's cache.
    """
    check_kind(config, FeatureConfig, "config", "a FeatureConfig")
    dataset = sources.load(config.source, config.folder, test_fraction=config.test_fraction)
    return features_of(dataset, config, module=module, progress=progress, cache=cache)


def features_of(
    dataset: Dataset,
    config: FeatureConfig = FeatureConfig(),  # noqa: B008 - frozen
    *,
    module: nn.Module | None = None,
    progress: bool = True,
    cache: bool = True,
) -> Features:
    """Do the same for a dataset at hand; `config.source` and `config.folder` are not looked at."""
    if config.components is not None:
        check_whole(config.components, "components", " or None")
    if config.components is not None and config.components < 1:
        raise ValueError(f"components: got {config.components}, but it must be at least 1, or none")
    chosen = backbone(config.backbone, image_size=config.image_size, module=module)
    if isinstance(chosen, Pixels):
        train, test = chosen.features(dataset.train_x), chosen.features(dataset.test_x)
        rotate = config.backbone == "pca"
    else:
        if not dataset.images:
            raise ValueError(
                f"backbone: got {config.backbone!r}, but {dataset.name} holds features, not images; "
                "they take 'none' or 'pca'"
            )
        train, test = _deep(dataset, chosen, config.image_size, progress=progress, cache=cache)
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


def _deep(
    dataset: Dataset, chosen: Backbone, image_size: int, *, progress: bool, cache: bool
) -> tuple[Array, Array]:
    """Return the backbone's features of both parts, from the cache if they are there."""
    about = {
        "source": dataset.name,
        "source_version": dataset.version,
        "backbone": chosen.name,
        "backbone_version": chosen.version,
        "image_size": image_size,
    }
    path = cache_path(about)
    if cache and path.exists():
        try:
            return _read(path, len(dataset.train_y), len(dataset.test_y))
        except (FileError, OSError, KeyError, ValueError) as error:
            logger.warning("The cached features are damaged and will be computed anew: %s", error)
    train = chosen.features(dataset.train_x, progress=progress)
    test = chosen.features(dataset.test_x, progress=progress)
    if cache:
        metadata = {**about, "features": train.shape[1], "checksum": checksum(train, test)}
        try:
            write_tensors(
                path, {"train": torch.from_numpy(train), "test": torch.from_numpy(test)}, metadata
            )
        except (OSError, SafetensorError) as error:  # a full disk must not lose what was computed
            logger.warning(
                "The features were computed, but cannot be cached in %s: %s", path, error
            )
    return train, test


def cache_path(about: dict[str, Any]) -> Path:
    """Return where features are cached, by everything that they depend on."""
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
    return home() / "features" / f"{key}.safetensors"


def _read(path: Path, train_examples: int, test_examples: int) -> tuple[Array, Array]:
    metadata = read_metadata(path)
    width = int(metadata["features"])
    train = np.empty((train_examples, width), np.float32)
    test = np.empty((test_examples, width), np.float32)
    read_tensors_into(path, {"train": torch.from_numpy(train), "test": torch.from_numpy(test)})
    if checksum(train, test) != metadata["checksum"]:
        raise FileError(f"{path}: its content does not match its checksum")
    return train, test
