"""Results cached on disk, by everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsurf.common.configuration import to_dict
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.writing import write_tensors

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

MAX_NAME_BYTES = 80
"""Bytes of an entry's name in its file name; systems take file names of up to 255."""


class Cache:
    """A folder of tensors, each entry stored with the content that it depends on.

    The file name has the first digits of the SHA-256 of the content's canonical JSON. The whole
    content is stored too and compared when an entry is read, so that a collision, a stale or a damaged
    file is never used. Without a folder, nothing is cached.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     cache = Cache(Path(folder))
    ...     cache.write("DGD", {"rounds": 3}, {"loss": torch.zeros(2)})
    ...     print(cache.read("DGD", {"rounds": 3}), cache.read("DGD", {"rounds": 4}))
    {'loss': tensor([0., 0.])} None
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def path(self, name: str, content: Any) -> Path:
        """Return the file of an entry."""
        if self.folder is None:
            raise ValueError("folder: got None, but a file must be in a folder")
        safe = "".join(c if c.isalnum() else "-" for c in name.lower())
        safe = safe.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        key = hashlib.sha256(_canonical(content).encode()).hexdigest()[:16]
        return self.folder / f"{safe}-{key}.safetensors"

    def read(self, name: str, content: Any) -> dict[str, Tensor] | None:
        """Return an entry's tensors; None if it is absent, damaged, or was written for other content.

        `content` is all that the entry depends on: configurations, dictionaries, lists, text and numbers.
        """
        path = None if self.folder is None else self.path(name, content)
        if path is None or not path.is_file():
            return None
        try:
            metadata, tensors = read_metadata(path), read_all_tensors(path)
        except (FileError, OSError) as error:
            logger.warning("A cached result cannot be read and is computed again: %s", error)
            return None
        if metadata.get("content") != _canonical(content):
            return None
        if metadata.get("checksum") != _checksum(tensors):
            logger.warning("%s: a cached result is damaged and is computed again", path)
            return None
        return tensors

    def write(self, name: str, content: Any, tensors: Mapping[str, Tensor]) -> None:
        """Store tensors; a full disk gives a warning, so that what was computed is not lost."""
        if self.folder is None:
            return
        metadata = {"content": _canonical(content), "checksum": _checksum(tensors)}
        try:
            write_tensors(self.path(name, content), tensors, metadata)
        except OSError as error:
            logger.warning("A result cannot be cached: %s", error)


def _canonical(content: Any) -> str:
    return json.dumps(to_dict(content), sort_keys=True, separators=(",", ":"), default=_number)


def _number(value: Any) -> Any:
    """Return a NumPy or torch scalar as a number of Python."""
    return value.item()


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        values = tensors[name].detach().contiguous().cpu().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
