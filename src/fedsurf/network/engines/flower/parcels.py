"""What travels between a server and its agents: parcels of items, raw numbers each under its place.

Nothing that arrives is unpickled or evaluated: types, sizes and values are checked before use.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsurf.network.engines.messages import Kind, RefusedError, Slot
from fedsurf.network.wire import Form

Single = Literal["float32", "float64"]
Values = NDArray[np.generic]

TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "text": np.dtype("u1"),
}
ROUNDED = ("float16", "int8")
"""Types of numbers whose bytes have a form that the receiver knows (`fedsurf.network.wire`)."""
AWAY = "not connected"
"""Why nothing was sent to an agent."""
MAX_ITEMS, MAX_BYTES = 2**16, 2**31
_PLACE = re.compile(r"(rows|download|upload|answer)-(\d{1,9})-(\d{1,9})-(\d{1,9})", re.ASCII)


def place_of(kind: Kind, slot: Slot) -> str:
    """Return the name under which an item travels.

    Examples
    --------
    >>> place_of(Kind.DOWNLOAD, Slot(0, 7, 1))
    'download-0-7-1'
    """
    return f"{kind.name.lower()}-{slot.run}-{slot.round}-{slot.part}"


@dataclass(frozen=True)
class Item:
    """Numbers `[rows, columns]`, or a text, as they travel.

    Examples
    --------
    >>> item = packed(torch.ones(1, 3), "float32")
    >>> item.kind, item.shape, len(item.raw), unpacked(item, (1, 3), torch.empty(0)).tolist()
    ('float32', (1, 3), 12, [[1.0, 1.0, 1.0]])
    >>> unpacked(item, (1, 2), torch.empty(0))
    Traceback (most recent call last):
    ...
    fedsurf.network.engines.messages.RefusedError: shape [1, 3] instead of [1, 2]
    """

    kind: str
    shape: tuple[int, ...]
    raw: bytes

    def check_size(self) -> None:
        """Raise `RefusedError` unless this is a matrix that is not too large."""
        if len(self.shape) != 2 or min(self.shape) < 0 or len(self.raw) > MAX_BYTES:
            raise RefusedError("not a matrix, or too large")

    def values(self) -> Values:
        """Return the numbers; they share the memory of `raw`."""
        if self.kind not in TYPES:
            raise RefusedError("unknown type")
        self.check_size()
        kind = TYPES[self.kind]
        if prod(self.shape) * kind.itemsize != len(self.raw):
            raise RefusedError("size differs from its shape")
        values: Values = np.frombuffer(self.raw, kind).reshape(self.shape)
        if kind.kind == "f" and not np.isfinite(values).all():
            raise RefusedError("NaN or infinite")
        return values


def packed(values: Tensor, kind: Single | None = None, form: Form | None = None) -> Item:
    """Return `values[rows, columns]` as they travel: as `kind`, or else float64 unless they are float32.

    Those that were rounded travel in their `form`. Values that are not finite travel as no rows: the other
    side would refuse them.
    """
    if form is not None and form.wire in ROUNDED:
        rows = values if bool(values.isfinite().all()) else values[:0]
        raw = form.encoded(rows.detach().cpu().numpy())
        return Item(form.wire, (len(rows), form.numbers), raw)
    single = values.dtype == torch.float32 if kind is None else kind == "float32"
    name = "float32" if single else "float64"
    if not bool(values.isfinite().all()):
        values = values[:0]
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values.detach().cpu().numpy(), TYPES[name])
    if not np.isfinite(numbers).all():  # too large for float32
        numbers = numbers[:0]
    return Item(name, numbers.shape, numbers.tobytes())


def unpacked(item: Item, shape: tuple[int, int], like: Tensor, form: Form | None = None) -> Tensor:
    """Return an item as a tensor of the type and on the device of another, or raise `RefusedError`."""
    values = item.values() if form is None or form.wire not in ROUNDED else _decoded(item, form)
    if item.kind == "text":
        raise RefusedError("text instead of numbers")
    if values.shape != shape:
        if not len(values) and shape[0]:
            raise RefusedError("not finite")
        raise RefusedError(f"shape {list(values.shape)} instead of {list(shape)}")
    return torch.from_numpy(values.copy()).to(like)


def _decoded(item: Item, form: Form) -> Values:
    item.check_size()
    rows, columns = item.shape
    if item.kind != form.wire or columns != form.numbers:
        raise RefusedError("another form")
    if len(item.raw) != rows * form.row_bytes:
        raise RefusedError("size differs from its shape")
    values = form.decoded(item.raw, rows)
    if not np.isfinite(values).all():
        raise RefusedError("NaN or infinite")
    return values


def packed_text(text: str) -> Item:
    """Return a text as it travels."""
    raw = text.encode()
    return Item("text", (1, len(raw)), raw)


def unpacked_text(item: Item) -> str:
    """Return the text of an item, or raise `RefusedError`."""
    if item.kind != "text" or item.shape != (1, len(item.raw)):
        raise RefusedError("numbers instead of text")
    try:
        return item.raw.decode()
    except UnicodeDecodeError as error:
        raise RefusedError("no text") from error


@dataclass(frozen=True)
class Parcel:
    """Items by their places, and what the server wants back, or what an agent says in reply.

    Attributes
    ----------
    items : mapping from str to Item
        By the names of their places.
    want : str
        The place of the item that the agent shall reply with; empty if the server only asks who it is.
        In replies, the same if the agent has taken what came with it.
    note : str
        In replies, why the wanted item is not there.
    """

    items: Mapping[str, Item] = field(default_factory=dict)
    want: str = ""
    note: str = ""

    @property
    def size(self) -> int:
        """Bytes of the items' numbers."""
        return sum(len(item.raw) for item in self.items.values())

    def check(self) -> None:
        """Raise `RefusedError` unless all names are places, and all items are sound."""
        if len(self.items) > MAX_ITEMS:
            raise RefusedError("too many items")
        for name in (*self.items, *[self.want][: bool(self.want)]):
            if not _PLACE.fullmatch(name):
                raise RefusedError("unknown place")
        for item in self.items.values():
            item.check_size() if item.kind in ROUNDED else item.values()


class Courier(Protocol):
    """Carries parcels between a server and its agents."""

    @property
    def names(self) -> Mapping[int, str]:
        """The names of the agents that are known, by number."""

    def deliver(
        self, parcels: Mapping[int, Parcel], seconds: float, *, patient: bool = False
    ) -> tuple[dict[int, Parcel], dict[int, str]]:
        """Send parcels to agents; return the replies, by agent, and why others are missing.

        It waits `seconds` for replies; with `patient` also for agents that are not connected.
        """
