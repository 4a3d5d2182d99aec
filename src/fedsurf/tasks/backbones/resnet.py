"""ResNet-18 with torchvision's ImageNet weights, 512 features: the backbone of the paper.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
"""

import torch
from torch import Tensor, nn

from fedsurf.tasks.backbones.backbone import Backbone, MissingBackboneError
from fedsurf.tasks.backbones.modules import ModuleBackbone

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Normalised(nn.Module):
    """The network on images normalised by the channels' mean and deviation over ImageNet."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network((images - self.mean) / self.deviation)
        return features


def resnet18(image_size: int) -> Backbone:
    """Make the backbone; torchvision is imported here, and fetches the weights on first use."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # a build for another torch raises RuntimeError
        raise MissingBackboneError(
            f"backbone: resnet18 needs torchvision, which cannot be imported ({error}); get it "
            "with: pip install 'fedsurf[torchvision]'"
        ) from error
    weights = models.ResNet18_Weights.IMAGENET1K_V1
    with torch.random.fork_rng(devices=[]):  # its first weights are random, and thrown away
        network = models.resnet18(weights=weights)
    network.fc = nn.Identity()
    return ModuleBackbone(
        "resnet18", _Normalised(network), image_size=image_size, version="IMAGENET1K_V1"
    )
