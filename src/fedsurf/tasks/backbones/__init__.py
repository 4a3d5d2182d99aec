"""Frozen backbones: what turns images into features before any federated learning begins."""

from collections.abc import Callable

from torch import nn

from fedsurf.tasks.backbones.backbone import Backbone, MissingBackboneError
from fedsurf.tasks.backbones.efficientnet import efficientnet_lite0
from fedsurf.tasks.backbones.modules import ModuleBackbone
from fedsurf.tasks.backbones.pixels import Pixels
from fedsurf.tasks.backbones.resnet import resnet18

__all__ = [
    "Backbone",
    "MissingBackboneError",
    "ModuleBackbone",
    "Pixels",
    "backbone",
    "names",
]

_PIXELS = ("none", "pca")
_DEEP: dict[str, Callable[[int], Backbone]] = {
    "efficientnet-lite0": efficientnet_lite0,
    "resnet18": resnet18,
}


def names() -> list[str]:
    """Return the names of the backbones that come with fedsurf."""
    return [*_PIXELS, *_DEEP]


def backbone(name: str, *, image_size: int = 160, module: nn.Module | None = None) -> Backbone:
    """Make a backbone.

    Parameters
    ----------
    name : str
        One of `names()`; or any other name for the user's own module.
    image_size : int
        The height and width in pixels that images get before a network sees them.
    module : nn.Module, optional
        The user's own network; `ModuleBackbone` says what it is given.
    """
    if module is not None:
        if name in names():
            raise ValueError(
                f"backbone: got {name!r} with a module, but your own module needs a name of its own"
            )
        return ModuleBackbone(name, module, image_size=image_size)
    if name in _PIXELS:
        return Pixels()
    if name in _DEEP:
        return _DEEP[name](image_size)
    raise ValueError(
        f"backbone: got {name!r}, but it must be one of {', '.join(names())}, "
        "or any name together with a module of your own"
    )
