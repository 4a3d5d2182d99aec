"""A network as a backbone: frozen, in batches, with its own weights and nothing else."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from fedsurf.tasks.dataset import Array

ARITHMETIC = "1"
"""Changes with what is done to images before the network sees them, so that old caches are left."""


class ModuleBackbone:
    """Features by a PyTorch module.

    The module is given colour images as float32 `[batch, 3, image_size, image_size]` between 0 and
    1: grey ones have their channel repeated, and the size is reached by bicubic interpolation,
    clamped. What it returns is flattened to `[batch, features]`. It runs in evaluation mode without
    gradients, and is left as it was.

    Parameters
    ----------
    name : str
        What it is called.
    module : nn.Module
        The network, including whatever normalisation it wants.
    image_size : int
        The height and width that images get.
    version : str, optional
        What tells its weights from others; by default their checksum.
    batch_size : int
        How many images pass at a time.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        image_size: int = 160,
        version: str | None = None,
        batch_size: int = 64,
    ) -> None:
        if image_size < 1:
            raise ValueError(f"image_size: got {image_size}, but it must be at least 1")
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, but it must be at least 1")
        self.name = name
        self.version = f"{ARITHMETIC}-{version or checksum(module)}"
        self._module = module
        self._image_size = image_size
        self._batch_size = batch_size

    def features(self, images: Array, *, progress: bool = False) -> Array:
        """Return float32 features `[examples, features]`."""
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
            raise ValueError(
                f"images: got {images.dtype} of shape {list(images.shape)}, but {self.name} needs "
                "uint8 [examples, height, width, channels] with 1 or 3 channels"
            )
        device = next((tensor.device for tensor in self._module.parameters()), torch.device("cpu"))
        result: Array | None = None
        bar = Progress(console=Console(stderr=True), disable=not progress)
        with bar, torch.no_grad(), evaluating(self._module):
            step = bar.add_task(self.name, total=len(images))
            for start in range(0, len(images), self._batch_size):
                batch = images[start : start + self._batch_size]
                output = self._forward(resize(batch, self._image_size).to(device))
                if result is None:
                    result = np.empty((len(images), output.shape[1]), np.float32)
                result[start : start + len(batch)] = output
                bar.advance(step, len(batch))
        if result is None:
            raise ValueError("images: got none, but there must be at least one")
        return result

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
    """Put a module into evaluation mode, and each of its parts back into its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def checksum(module: nn.Module) -> str:
    """Return a short checksum of a module: its structure, its parameters and buffers, and its code.

    Of parts that are not torch's own, the code is that of `forward`, and plain attributes count: numbers,
    text, and tuples, lists and dictionaries of them; not those whose names begin with an underscore, where
    a module may count or remember. What `forward` calls elsewhere does not count: modules that differ in
    nothing else need a `version`.
    """
    digest = hashlib.sha256(repr(module).encode())
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        code = getattr(type(part).forward, "__code__", None)
        if code is not None:
            digest.update(_spelt(code).encode())
        for name, value in sorted(vars(part).items()):
            if name != "training" and not name.startswith("_") and _is_plain(value):
                digest.update(f"{name}={value!r};".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name}{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _spelt(constant: object) -> str:
    """Spell out code and its constants, the same in every process."""
    if isinstance(constant, CodeType):
        inside = " ".join(_spelt(value) for value in constant.co_consts)
        return f"{constant.co_code.hex()} {constant.co_names} {inside}"
    if isinstance(constant, frozenset):  # its order is another one in every process
        return f"{{{sorted(map(_spelt, constant))}}}"
    return repr(constant)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(_is_plain(each) for each in [*value, *value.values()])
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)
