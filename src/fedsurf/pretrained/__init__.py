"""Optimizers that are ready to use: their parameters, and a card that says what they are.

optimizer = fedsurf.load()                        # meta-trained; see its card
algorithm = optimizer.on(model, rounds=20)        # trains this head on any task

optimizer = fedsurf.load_for_modules()            # the same for a ModuleModel
"""

import hashlib
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedsurf.configuration import from_dict
from fedsurf.files import CheckpointError, read_metadata, read_tensors
from fedsurf.randomness import generator
from fedsurf.unrolled.gradient_layer import GradientTransfer, GradientTransferConfig
from fedsurf.unrolled.transferable import Transferable, TransferableConfig

NAMES = ("softmax-head",)
"""The optimizers of softmax heads inside the package."""
MODULE_NAMES = ("module",)
"""The optimizers of any module inside the package."""


def load(name: str | Path = "softmax-head") -> Transferable:
    """Return a pretrained optimizer.

    Parameters
    ----------
    name : str or Path
        The name of one inside the package, or a `.safetensors` file that `fedsurf pretrain` wrote.
    """
    with _file(name) as path:
        metadata = read_metadata(path)
        try:
            config = from_dict(TransferableConfig, metadata["optimizer"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: does not hold a transferable optimizer ({error})"
            ) from error
        optimizer = Transferable(config, generator(0, "parameters"))
        read_tensors(path, dict(optimizer.named_parameters()))
    return optimizer.requires_grad_(False)


def load_for_modules(name: str | Path = "module") -> GradientTransfer:
    """Return a pretrained optimizer of any `ModuleModel`.

    Parameters
    ----------
    name : str or Path
        The name of one inside the package, or a `.safetensors` file that `fedsurf pretrain-modules`
        wrote.
    """
    with _file(name) as path:
        metadata = read_metadata(path)
        try:
            config = from_dict(GradientTransferConfig, metadata["optimizer"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: does not hold an optimizer of modules ({error})"
            ) from error
        optimizer = GradientTransfer(config, generator(0, "parameters"))
        read_tensors(path, dict(optimizer.named_parameters()))
    return optimizer.requires_grad_(False)


def card(name: str | Path = "softmax-head") -> dict[str, Any]:
    """Return what is known of an optimizer: its recipe, its validation, and results."""
    with _file(name) as path:
        return read_metadata(path)


def digest(name: str | Path = "softmax-head") -> str:
    """Return a checksum of an optimizer's file: other weights have another one."""
    with _file(name) as path, path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file(name: str | Path) -> AbstractContextManager[Path]:
    if isinstance(name, str) and name in (*NAMES, *MODULE_NAMES):
        return as_file(files(__name__) / f"{name}.safetensors")
    path = Path(name)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"name: got {str(name)!r}, but it must be one of {', '.join(NAMES)}, "
            "or the path of a .safetensors file"
        )
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    return nullcontext(path)
