"""Loading of pretrained optimizers by name or from a file, with the card that describes each."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
"""Names of the optimizers of softmax heads inside the package."""
MODULE_NAMES = ("module",)
"""Names of the optimizers of modules inside the package."""


def load(name: str | Path = "softmax-head", *, argument: str = "name") -> Transferable:
    """Return a pretrained optimizer of softmax heads.

    `name` is one of `NAMES`, inside the package, or a `.safetensors` file of `fedsurf pretrain`; errors call
    it `argument`.

    Examples
    --------
    >>> import fedsurf
    >>> model = fedsurf.SoftmaxHead(features=8, classes=3)
    >>> fedsurf.load().on(model, rounds=20).steps
    10
    """
    with _file(name, NAMES, argument) as path:
        return _read(path, TransferableConfig, Transferable, "an optimizer of softmax heads")


def load_for_modules(name: str | Path = "module") -> GradientTransfer:
    """Return a pretrained optimizer of any `ModuleModel`.

    `name` is one of `MODULE_NAMES`, inside the package, or a `.safetensors` file of
    `fedsurf pretrain-modules`.

    Examples
    --------
    >>> import fedsurf
    >>> model = fedsurf.ModuleModel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    >>> fedsurf.load_for_modules().on(model, rounds=20).steps
    10
    """
    with _file(name, MODULE_NAMES) as path:
        return _read(path, GradientTransferConfig, GradientTransfer, "an optimizer of modules")


def card(name: str | Path = "softmax-head") -> dict[str, Any]:
    """Return the metadata of an optimizer: its shape, its recipe and its validation.

    Examples
    --------
    >>> sorted(card())
    ['optimizer', 'recipe', 'validation']
    """
    with _file(name) as path:
        return read_metadata(path)


def digest(name: str | Path = "softmax-head", *, argument: str = "name") -> str:
    """Return a checksum of the file that `load` reads.

    Examples
    --------
    >>> len(digest())
    64
    """
    with _file(name, NAMES, argument) as path, path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(
    path: Path, kind: type[Config], make: Callable[[Config, torch.Generator], Optimizer], what: str
) -> Optimizer:
    """Build an optimizer of the shape in a file's metadata, and read its parameters from the file."""
    metadata = read_metadata(path)
    try:
        config = from_dict(kind, metadata.get("optimizer"), "optimizer")
        _check_sizes(config, path.stat().st_size // 4)
        optimizer = make(config, generator(0, "parameters"))
        optimizer.float()  # the type of the file, whatever torch's default is
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: does not hold {what} ({error})") from error
    try:
        read_tensors_into(path, dict(optimizer.named_parameters()))
    except FileError as error:
        raise FileError(
            f"{error}; if another version of fedsurf made it, meta-train it again"
        ) from error
    return optimizer.requires_grad_(False)


def _check_sizes(config: Any, stored: int) -> None:
    """Compare the widths of an optimizer with the number of values in its file, before it is built."""
    for name, width in vars(config).items():
        if width > stored:
            raise ValueError(f"{name}: got {width}, but the file is too small")


def _file(
    name: str | Path, names: Sequence[str] = (*NAMES, *MODULE_NAMES), argument: str = "name"
) -> AbstractContextManager[Path]:
    if isinstance(name, str) and name in names:
        return as_file(files(__package__) / f"{name}.safetensors")
    wanted = f"one of {', '.join(names)}, or the path of a .safetensors file"
    check_kind(name, str | Path, argument, wanted)
    path = Path(name)
    if path.suffix != ".safetensors":
        raise ValueError(f"{argument}: got {str(name)!r}, but it must be {wanted}")
    if not path.is_file():
        raise FileError(f"{path}: there is no such file")
    return nullcontext(path)
