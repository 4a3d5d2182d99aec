"""The numbers of messages as they travel: rounded alike by the simulator and all engines, and in bytes.

A message is a row of numbers for each agent. As float32, the simulator leaves them as they are. Otherwise
a row is cut into blocks of at most `BLOCK` numbers, each with an exponent k of one byte, and a number is
2^k times a code:

- int8: a whole number from −127 to 127, rounded up or down at random without bias; 2^k is the smallest
  power of two for which the block's largest number is at most 127 · 2^k.
- float16: the nearest half-precision number; the block's largest becomes one from 2^14 to 2^15. So large
  numbers do not become infinite, and small ones keep their digits.

Blocks lie within the sections of a message (`Sections`), so that numbers of another size have another
exponent; sections of one number travel as float32. Draws are a function of the run's seed, the agent and
the message alone. Rounding what is rounded changes nothing: an engine encodes the numbers that the
simulator passes on, and its receiver decodes the same bits.

Blocks with a common exponent follow B. D. Rouhani et al., "Microscaling data formats for deep learning"
(arXiv 2310.10537).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsurf.common.streams import Streams
from fedsurf.network.config import Wire

HEADER_BYTES = 48
"""Bytes of a message's header (`engines.messages`)."""
SECTION_BYTES = 9
"""Bytes of an entry of the layout, which a message has if it is not float32."""
BLOCK = 32
"""Numbers that share an exponent."""
LARGEST = 127 * 2.0**121
"""The largest number that travels as float16 or int8; larger ones become this, infinite ones NaN."""
_LEVELS = 127
_TOP = 15
_LOWEST = -125
_MISSING = -128
_SINGLE, _EXPONENT = np.dtype("<f4"), np.dtype("i1")
_CODES: dict[Wire, np.dtype[Any]] = {"float16": np.dtype("<f2"), "int8": np.dtype("i1")}


class Sections(NamedTuple):
    """Sections of a row, one after another, each with its own exponents."""

    repeats: int
    """The number of sections."""
    size: int
    """The numbers in each of them."""
    interleaved: bool = False
    """Whether first come the first numbers of all sections, then the second ones, and so on."""


Layout = Sequence[Sections]
"""All sections of a row."""


class Parts(tuple[Tensor, ...]):
    """The parts of a message, each `[rows, …]`, with the layout of its rows.

    Parameters
    ----------
    parts : sequence of Tensor
        The parts.
    layout : Layout or None
        The sections of a row; by default one for a part `[rows, numbers]`, and as many as there are
        things for one `[rows, things, …]`.

    Examples
    --------
    >>> for section in Parts([torch.zeros(4, 650), torch.zeros(4, 2, 650)]).layout:
    ...     print(section)
    Sections(repeats=1, size=650, interleaved=False)
    Sections(repeats=2, size=650, interleaved=False)
    """

    layout: tuple[Sections, ...]

    def __new__(cls, parts: Sequence[Tensor], layout: Layout | None = None) -> "Parts":
        """Return the parts themselves if they have a layout."""
        if isinstance(parts, Parts) and layout is None:
            return parts
        made = super().__new__(cls, parts)
        shapes = tuple(part.shape[1:] for part in made)
        if layout is None:
            layout = _plain_layout(shapes)
        made.layout = layout = tuple(layout)
        held = sum([section.repeats * section.size for section in layout])
        if held != sum(shape.numel() for shape in shapes):
            raise ValueError(
                f"layout: got sections of {held} numbers, but a row has "
                f"{sum(shape.numel() for shape in shapes)}"
            )
        return made


@lru_cache(maxsize=256)
def _plain_layout(shapes: tuple[torch.Size, ...]) -> tuple[Sections, ...]:
    """Return the layout of parts whose rows have these shapes."""
    counts = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
    pairs = zip(counts, shapes, strict=True)
    return tuple(Sections(n, shape.numel() // max(n, 1)) for n, shape in pairs)


@dataclass(frozen=True)
class Form:
    """The form of a message: the type of its numbers, and the sections of its rows.

    Examples
    --------
    >>> form = Form("int8", [Sections(1, 650), Sections(17, 1)])
    >>> form.message_bytes, Form("float32", form.layout).message_bytes
    (805, 2716)
    >>> rows = torch.randn(2, 667)
    >>> sent = form.rounded(rows, Streams(0, [3, 4], "round", 1))
    >>> torch.equal(torch.from_numpy(form.decoded(form.encoded(sent.numpy()), 2)), sent)
    True
    """

    wire: Wire = "float32"
    layout: Layout = ()

    @cached_property
    def numbers(self) -> int:
        """Numbers of a row."""
        return sum(count * size for count, size, _ in self.layout)

    @property
    def table_bytes(self) -> int:
        """Bytes of the layout in a message."""
        return 0 if self.wire == "float32" else SECTION_BYTES * len(self.layout)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        if self.wire == "float32":
            return _SINGLE.itemsize * self.numbers
        code = _CODES[self.wire].itemsize
        return sum(
            count * (_SINGLE.itemsize if size == 1 else _blocks_of(size) + code * size)
            for count, size, _ in self.layout
        )

    @cached_property
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
        draws: Tensor | None = None
        if self.wire == "int8":
            draws = streams.uniform(self.numbers).to(exact)
        sizes = [count * size for count, size, _ in self.layout]
        chances = [None] * len(sizes) if draws is None else torch.split(draws, sizes, 1)
        found = [
            part if section.size == 1 or not part.numel() else _round(section, part, chance)
            for section, part, chance in zip(
                self.layout, torch.split(exact, sizes, 1), chances, strict=True
            )
        ]
        result = torch.cat(found, 1).to(rows.dtype)
        passed: Tensor = _Rounding.apply(rows, result)  # type: ignore[no-untyped-call]
        return passed

    def rounded_parts(self, parts: Sequence[Tensor], streams: Streams) -> list[Tensor]:
        """Return the parts of a message, each `[rows, …]`, as they arrive."""
        if self.wire == "float32":
            return list(parts)
        rows = self.rounded(torch.cat([part.flatten(1) for part in parts], 1), streams)
        split = torch.split(rows, [part.shape[1:].numel() for part in parts], 1)
        return [new.to(part).reshape(part.shape) for new, part in zip(split, parts, strict=True)]

    def encoded(self, values: NDArray[np.floating]) -> bytes:
        """Return rounded `values[rows, numbers]` in bytes."""
        values = np.ascontiguousarray(values, _SINGLE)
        raw, start = [], 0
        for count, size, interleaved in self.layout if self.wire != "float32" else ():
            part = values[:, start : start + count * size]
            start += count * size
            if size == 1 or not part.size:
                raw.append(part.tobytes())
                continue
            if interleaved:
                part = part.reshape(-1, size, count).swapaxes(1, 2)
            part = part.reshape(-1, size)
            padded = np.pad(part, ((0, 0), (0, _padded(size) - size)))
            blocks = padded.reshape(len(part), _blocks_of(size), -1)
            largest = np.abs(blocks).max(2, keepdims=True)
            exponents = _exponents(torch.from_numpy(largest), self.wire).numpy()
            exponents[~np.isfinite(largest)] = _MISSING
            with np.errstate(invalid="ignore", over="ignore"):  # of what is not finite
                codes = np.ldexp(blocks, -exponents).astype(_CODES[self.wire])
            codes = codes.reshape(len(part), -1)[:, :size]
            raw += [exponents.astype(_EXPONENT).tobytes(), codes.tobytes()]
        return b"".join(raw) if self.wire != "float32" else values.tobytes()

    def decoded(self, raw: bytes | memoryview, rows: int) -> NDArray[np.float32]:
        """Return the numbers of `rows` rows, float32 `[rows, numbers]`; `raw` has the bytes of all of them."""
        if self.wire == "float32":
            return np.frombuffer(raw, _SINGLE).reshape(rows, self.numbers)
        found, start = [np.empty((rows, 0), _SINGLE)], 0
        for count, size, interleaved in self.layout:
            number = rows * count
            if size == 1 or not number * size:
                values = np.frombuffer(raw, _SINGLE, number * size, start)
                start += values.nbytes
                found.append(values.reshape(rows, count * size))
                continue
            exponents = np.frombuffer(raw, _EXPONENT, number * _blocks_of(size), start)
            start += exponents.nbytes
            codes = np.frombuffer(raw, _CODES[self.wire], number * size, start)
            start += codes.nbytes
            scale = np.ldexp(_SINGLE.type(1), exponents.astype(np.int32))
            scale[exponents == _MISSING] = np.nan
            each = np.repeat(scale.reshape(number, -1), _width(size), 1)[:, :size]
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused
                part = each * codes.astype(_SINGLE).reshape(number, size)
            if interleaved:
                part = part.reshape(rows, count, size).swapaxes(1, 2)
            found.append(part.reshape(rows, count * size))
        return np.concatenate(found, 1)


@lru_cache(maxsize=256)
def form_of(wire: Wire, layout: tuple[Sections, ...]) -> Form:
    """Return the form of this wire and layout; the same one for the messages of every round."""
    return Form(wire, layout)


def _blocks_of(size: int) -> int:
    """Return the number of blocks in a section."""
    return math.ceil(size / BLOCK)


def _width(size: int) -> int:
    """Return the numbers of a section's blocks: equally many, but the last may have fewer."""
    return math.ceil(size / _blocks_of(size))


def _padded(size: int) -> int:
    """Return the size of a section with zeros up to whole blocks."""
    return _blocks_of(size) * _width(size)


def _round(section: Sections, part: Tensor, draws: Tensor | None) -> Tensor:
    """Round the numbers of sections of one kind, `part[rows, repeats · size]`; without draws, to halves."""
    count, size, interleaved = section

    def blocks_of(values: Tensor) -> Tensor:
        if interleaved:
            values = values.reshape(-1, size, count).mT
        values = functional.pad(values.reshape(-1, size), (0, _padded(size) - size))
        return values.reshape(-1, _width(size))

    blocks = blocks_of(part)
    largest = blocks.abs().amax(1, keepdim=True)
    exponents = _exponents(largest, "float16" if draws is None else "int8")
    scale = torch.ldexp(torch.ones_like(largest), exponents)
    codes = blocks / scale
    if draws is None:
        codes = codes.half().to(blocks)
    else:
        below = codes.floor()
        codes = below + (blocks_of(draws) < codes - below)
    blocks = torch.where(largest.isfinite(), codes * scale, torch.nan)
    found = blocks.reshape(-1, _padded(size))[:, :size]
    if interleaved:
        found = found.reshape(-1, count, size).mT
    return found.reshape(part.shape)


def _exponents(largest: Tensor, wire: Wire) -> Tensor:
    """Return k for blocks with these largest absolute values."""
    share, exponents = torch.frexp(largest)  # share · 2^exponents, the share from a half to one
    if wire == "int8":
        exponents = exponents - 7 + (share > _LEVELS / 128).int()
    else:
        exponents = exponents - _TOP + ((share * 2**_TOP).half() == 2**_TOP).int()
    return exponents.clamp(min=_LOWEST)


class _Rounding(torch.autograd.Function):
    """The rounded values, with the derivative of the values themselves."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, result: Tensor) -> Tensor:  # noqa: ARG004
        return result

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return slope, None
