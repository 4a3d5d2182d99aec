"""The numbers of messages as they travel: rounded alike by the simulator and all engines, and in bytes.

A message is a row of numbers for each agent. As float32, the simulator leaves them as they are. Otherwise
a row is cut into blocks of at most `BLOCK` numbers, each with the scale s of its largest absolute value m:

- int8: m/127 times a whole number from −127 to 127, rounded up or down at random without bias;
- float16: a power of two, with which m is just below 2^15, times the nearest half-precision number. So
  large numbers do not become infinite, and small ones keep their digits.

Blocks do not cross the sections of a message (`Layout`), so that numbers of another size have another
scale; sections of one number travel as float32. Draws are a function of the run's seed, the agent and the
message alone. What is rounded is rounded again to itself: an engine encodes the numbers that the simulator
would pass on, and its receiver decodes the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsurf.common.streams import Streams
from fedsurf.network.config import Wire

Layout = Sequence[tuple[int, int]]
"""The sections of a row, one after another, as (number of sections, numbers in each of them)."""

HEADER_BYTES = 48
"""Bytes of a message's header (`engines.messages`)."""
SECTION_BYTES = 8
"""Bytes of an entry of the layout, which a message has if it is not float32."""
BLOCK = 64
"""Numbers that share a scale."""
LARGEST = 65504 * 2.0**112
"""The largest number that travels as float16 or int8; larger ones become this, infinite ones NaN."""
_LEVELS = 127
_TOP = 15
_LOWEST_EXPONENT = -110
_SINGLE = np.dtype("<f4")
_CODES: dict[Wire, np.dtype[Any]] = {"float16": np.dtype("<f2"), "int8": np.dtype("i1")}


def layout_of(parts: Sequence[Tensor]) -> Layout:
    """Return the layout of parts `[rows, numbers]`, a section each, or `[rows, sections, …]`.

    Examples
    --------
    >>> layout_of([torch.zeros(4, 650), torch.zeros(4, 2, 650), torch.zeros(4, 17, 1)])
    [(1, 650), (2, 650), (17, 1)]
    """
    counts = [part.shape[1] if part.dim() > 2 else 1 for part in parts]
    return [
        (count, part.shape[1:].numel() // max(count, 1))
        for count, part in zip(counts, parts, strict=True)
    ]


class Parts(tuple[Tensor, ...]):
    """The parts of a message, each `[rows, …]`, with the layout of its rows.

    Parameters
    ----------
    parts : sequence of Tensor
        The parts.
    layout : Layout or None
        The sections of a row; by default those that the shapes have (`layout_of`).
    """

    layout: Layout

    def __new__(cls, parts: Sequence[Tensor], layout: Layout | None = None) -> "Parts":
        """Return the parts themselves if they have a layout."""
        if isinstance(parts, Parts) and layout is None:
            return parts
        made = super().__new__(cls, parts)
        made.layout = layout_of(made) if layout is None else layout
        size = sum(part.shape[1:].numel() for part in made)
        if size != sum(count * numbers for count, numbers in made.layout):
            raise ValueError(
                f"layout: got {list(made.layout)}, but its sections must hold {size} numbers, as a row does"
            )
        return made


@dataclass(frozen=True)
class Form:
    """The form of a message: the type of its numbers, and the sections of its rows.

    Examples
    --------
    >>> form = Form("int8", ((1, 650), (17, 1)))
    >>> form.message_bytes, Form("float32", form.layout).message_bytes
    (826, 2716)
    >>> rows = torch.randn(2, 667)
    >>> sent = form.rounded(rows, Streams(0, [3, 4], "round", 1))
    >>> torch.equal(torch.from_numpy(form.decoded(form.encoded(sent.numpy()), 2)), sent)
    True
    """

    wire: Wire = "float32"
    layout: Layout = ()

    @property
    def numbers(self) -> int:
        """Numbers of a row."""
        return sum(count * size for count, size in self.layout)

    @property
    def table_bytes(self) -> int:
        """Bytes of the layout in a message."""
        return 0 if self.wire == "float32" else SECTION_BYTES * len(self.layout)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        if self.wire == "float32":
            return _SINGLE.itemsize * self.numbers
        return sum(count * _section_bytes(size, self.wire) for count, size in self.layout)

    @property
    def message_bytes(self) -> int:
        """Bytes of a message with one row."""
        return HEADER_BYTES + self.table_bytes + self.row_bytes

    def rounded(self, rows: Tensor, streams: Streams) -> Tensor:
        """Return `rows[rows, numbers]` as they arrive; `streams` has a row for each.

        Derivatives pass as if nothing was rounded.
        """
        if self.wire == "float32" or not rows.numel():
            return rows
        exact = rows.detach()
        exact = torch.where(exact.isfinite(), exact.clamp(-LARGEST, LARGEST), torch.nan).float()
        chances = streams.uniform(self.numbers) if self.wire == "int8" else exact
        chances = chances.to(exact)
        sizes, found = [count * size for count, size in self.layout], []
        pairs = zip(torch.split(exact, sizes, 1), torch.split(chances, sizes, 1), strict=True)
        for (_, size), (part, chance) in zip(self.layout, pairs, strict=True):
            if size > 1 and part.numel():
                blocks, chance = _blocks(part, size), _blocks(chance, size)
                largest = blocks.abs().amax(1, keepdim=True)
                if self.wire == "int8":
                    blocks = _random_multiples(blocks, largest, chance)
                else:
                    blocks = _nearest_halves(blocks, largest)
                part = blocks.reshape(-1, _padded(size))[:, :size].reshape(part.shape)
            found.append(part)
        result = torch.cat(found, 1).to(rows.dtype)
        passed: Tensor = _Rounding.apply(rows, result)  # type: ignore[no-untyped-call]
        return passed

    def encoded(self, values: NDArray[np.floating]) -> bytes:
        """Return rounded `values[rows, numbers]` in bytes."""
        values = np.ascontiguousarray(values, _SINGLE)
        if self.wire == "float32":
            return values.tobytes()
        raw, start = [], 0
        for count, size in self.layout:
            part = values[:, start : start + count * size].reshape(-1, size)
            start += count * size
            if size == 1 or not part.size:
                raw.append(part.tobytes())
                continue
            padded = np.pad(part, ((0, 0), (0, _padded(size) - size)))
            blocks = padded.reshape(len(part), -1, _width(size))
            largest = np.abs(blocks).max(2, keepdims=True)
            with np.errstate(invalid="ignore"):  # NaN stays in the scale, or in a half
                if self.wire == "int8":
                    scale = largest
                    codes = np.rint(blocks / np.where(largest > 0, largest, 1) * _LEVELS)
                    codes = np.nan_to_num(codes)
                else:
                    exponent = np.maximum(np.frexp(largest)[1], _LOWEST_EXPONENT)
                    scale = np.ldexp(_SINGLE.type(1), exponent - _TOP)
                    codes = blocks / scale
                codes = codes.astype(_CODES[self.wire]).reshape(len(part), -1)[:, :size]
            raw += [scale.astype(_SINGLE).tobytes(), codes.tobytes()]
        return b"".join(raw)

    def decoded(self, raw: bytes | memoryview, rows: int) -> NDArray[np.float32]:
        """Return the numbers of `rows` rows, float32 `[rows, numbers]`; `raw` has the bytes of all of them."""
        if self.wire == "float32":
            return np.frombuffer(raw, _SINGLE).reshape(rows, self.numbers)
        found, start = [np.empty((rows, 0), _SINGLE)], 0
        for count, size in self.layout:
            if size == 1 or not rows * count * size:
                values = np.frombuffer(raw, _SINGLE, rows * count * size, start)
                start += values.nbytes
                found.append(values.reshape(rows, count * size))
                continue
            width, number = _width(size), rows * count
            scale = np.frombuffer(raw, _SINGLE, number * (_padded(size) // width), start)
            start += scale.nbytes
            codes = np.frombuffer(raw, _CODES[self.wire], number * size, start)
            start += codes.nbytes
            shares = codes.astype(_SINGLE).reshape(number, size)
            if self.wire == "int8":
                shares = shares / _SINGLE.type(_LEVELS)
            each = np.repeat(scale.reshape(number, -1), width, 1)[:, :size]
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused
                found.append((each * shares).reshape(rows, count * size))
        return np.concatenate(found, 1)


def _section_bytes(size: int, wire: Wire) -> int:
    if size <= 1:
        return _SINGLE.itemsize * size
    return _SINGLE.itemsize * math.ceil(size / BLOCK) + _CODES[wire].itemsize * size


def _width(size: int) -> int:
    """Return the numbers of a block in sections of a size: as equal as possible, the last may be shorter."""
    return math.ceil(size / math.ceil(size / BLOCK))


def _padded(size: int) -> int:
    """Return the size of a section with zeros up to a whole number of blocks."""
    return math.ceil(size / BLOCK) * _width(size)


def _blocks(part: Tensor, size: int) -> Tensor:
    """Cut `part[rows, …]` of sections of a size into blocks, `[blocks, width]`, with zeros at the end."""
    return functional.pad(part.reshape(-1, size), (0, _padded(size) - size)).reshape(
        -1, _width(size)
    )


def _random_multiples(blocks: Tensor, largest: Tensor, chance: Tensor) -> Tensor:
    """Round blocks to multiples of largest/127, up with the probability of the rest."""
    multiple = blocks / torch.where(largest > 0, largest, 1) * _LEVELS
    below = multiple.floor()
    return largest * ((below + (chance < multiple - below)) / _LEVELS)


def _nearest_halves(blocks: Tensor, largest: Tensor) -> Tensor:
    """Round blocks to half precision, scaled by a power of two such that the largest is just below 2^15."""
    exponent = torch.frexp(largest).exponent.clamp(min=_LOWEST_EXPONENT)
    top = torch.ldexp(largest, _TOP - exponent).half() == 2**_TOP
    scale = torch.ldexp(torch.ones_like(largest), exponent + top.int() - _TOP)
    return (blocks / scale).half().to(blocks) * scale


class _Rounding(torch.autograd.Function):
    """The rounded values, with the derivative of the values themselves."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, result: Tensor) -> Tensor:  # noqa: ARG004
        return result

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return slope, None
