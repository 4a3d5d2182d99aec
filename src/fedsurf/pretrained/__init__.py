"""Optimizers that are ready to use: their parameters, and a card that says what they are.

optimizer = fedsurf.load()                        # meta-trained; see its card
algorithm = optimizer.on(model, rounds=20)        # trains this head on any task

optimizer = fedsurf.load_for_modules()            # the same for a ModuleModel
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fedsurf.common.checks import check_kind
from fedsurf.common.configuration import from_dict
from fedsurf.common.files import FileError, read_metadata, read_tensors_into
from fedsurf.common.randomness import generator
from fedsurf.unrolled.config import GradientTransferConfig, TransferableConfig
from fedsurf.unrolled.module_layer import GradientTransfer
from fedsurf.unrolled.transferable.optimizer import Transferable

Config = TypeVar("Config")
Optimizer = TypeVar("Optimizer", bound=nn.Module)

NAMES = ("softmax-head",)
"""The optimizers of softmax heads inside the package."""
MODULE_NAMES = ("module",)
"""The optimizers of any module inside the package."""
_KINDS = {
    TransferableConfig: "of softmax heads, as `fedsurf pretrain` makes it and fedsurf.load reads it",
    GradientTransferConfig: (
        "of modules, as `fedsurf pretrain-modules` makes it and fedsurf.load_for_modules reads it"
    ),
}
"""What each kind of optimizer is one of."""


def load(name: str | Path = "softmax-head", *, argument: str = "name") -> Transferable:
    """Return a pretrained optimizer.

    Parameters
    ----------
    name : str or Path
        The name of one inside the package, or a `.safetensors` file that `fedsurf pretrain` wrote.
    argument : str
        What an error calls it.
    """
    with _file(name, NAMES, argument) as path:
        return _read(path, TransferableConfig, Transferable, "a transferable optimizer")


def load_for_modules(name: str | Path = "module") -> GradientTransfer:
    """Return a pretrained optimizer of any `ModuleModel`.

    Parameters
    ----------
    name : str or Path
        The name of one inside the package, or a `.safetensors` file that `fedsurf pretrain-modules`
        wrote.
    """
    with _file(name, MODULE_NAMES) as path:
        return _read(path, GradientTransferConfig, GradientTransfer, "an optimizer of modules")


def card(name: str | Path = "softmax-head") -> dict[str, Any]:
    """Return what is known of an optimizer: its recipe, its validation, and results."""
    with _file(name) as path:
        return read_metadata(path)


def digest(name: str | Path = "softmax-head", *, argument: str = "name") -> str:
    """Return a checksum of the file of what `load` returns: other weights have another one."""
    with _file(name, NAMES, argument) as path, path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(
    path: Path,
    kind: type[Config],
    make: Callable[[Config, torch.Generator], Optimizer],
    what: str,
) -> Optimizer:
    """Make an optimizer of the shape that a file tells, and fill it with the file's parameters."""
    metadata = read_metadata(path)
    for other, sort in _KINDS.items():
        if other is not kind and _is_of(metadata.get("optimizer"), other):
            raise FileError(
                f"{path}: holds an optimizer {sort}, but here it must be one {_KINDS[kind]}"
            )
    try:
        config = from_dict(kind, metadata["optimizer"])
        _check_sizes(config, path.stat().st_size // 4)
        optimizer = make(config, generator(0, "parameters"))
        optimizer.float()  # as the file is, whatever torch's default may be
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: does not hold {what} ({error})") from error
    try:
        read_tensors_into(path, dict(optimizer.named_parameters()))
    except FileError as error:
        raise FileError(
            f"{error}; if another version of fedsurf made it, meta-train it anew with this one"
        ) from error
    return optimizer.requires_grad_(False)


def _check_sizes(config: Any, stored: int) -> None:
    """Compare the widths of an optimizer with the number of values in its file, before it is built."""
    for field in fields(config):
        if getattr(config, field.name) > stored:
            raise ValueError(
                f"{field.name}: got {getattr(config, field.name)}, but the file is too small"
            )


def _is_of(stored: object, kind: type) -> bool:
    """Tell whether what a file says of its optimizer's shape is of a certain kind."""
    return isinstance(stored, dict) and set(stored) == {field.name for field in fields(kind)}


def _file(
    name: str | Path, names: Sequence[str] = (*NAMES, *MODULE_NAMES), argument: str = "name"
) -> AbstractContextManager[Path]:
    if isinstance(name, str) and name in names:
        return as_file(files(__name__) / f"{name}.safetensors")
    wanted = f"one of {', '.join(names)}, or the path of a .safetensors file"
    check_kind(name, str | Path, argument, wanted)
    path = Path(name)
    if path.suffix != ".safetensors":
        raise ValueError(f"{argument}: got {str(name)!r}, but it must be {wanted}")
    if not path.is_file():
        raise FileError(f"{path}: there is no such file")
    return nullcontext(path)
