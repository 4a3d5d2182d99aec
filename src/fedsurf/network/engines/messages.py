"""Messages between processes: a header of fixed size, a bit mask, a layout and numbers in little-endian bytes.

Nothing that arrives is unpickled or evaluated, and no memory is made for what a header only claims.
"""

import math
import struct
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsurf.network.config import Wire
from fedsurf.network.wire import HEADER_BYTES, SECTION_BYTES, Form, Sections

MAGIC, VERSION = b"FSRF", 1
# Magic, version, kind, type, sections, digest, sender, run, round, part, bytes of the mask, rows, columns.
_HEADER = struct.Struct("<4sBBBB16sIIIHHII")
_SECTION = struct.Struct("<II?")
_KIND_PLACE = 5
_TYPES = (np.dtype("<f4"), np.dtype("<f8"))
_FORMS: dict[Wire, int] = {"float32": 0, "float16": 2, "int8": 3}
_ANSWERS, _ROUNDS = frozenset({0, 1}), frozenset(_FORMS.values())
MAX_SECTIONS = 255
FLOAT32 = Form()
NOBODY: frozenset[int] = frozenset()
MAX_MASK_BYTES = 1024


class Kind(IntEnum):
    """The purpose of a message."""

    ROWS = 0
    """Rows of a round, for a neighbour."""
    DOWNLOAD = 1
    """A server's message to called agents."""
    UPLOAD = 2
    """Called agents' replies."""
    ANSWER = 3
    """Values for an evaluation, which neighbours hand on."""
    HELLO = 4
    """The round of a process, for a neighbour that appears."""


_KINDS = tuple(Kind)
ROUND_KINDS = (Kind.ROWS, Kind.DOWNLOAD, Kind.UPLOAD)
"""Messages of rounds, apart from those about them."""


class RefusedError(ValueError):
    """A message that is not used; its text is the reason."""


class Slot(NamedTuple):
    """When a message is needed: the run, the round, and the number among those of its kind in the round."""

    run: int
    round: int
    part: int = 0


class Message(NamedTuple):
    """A message of a process.

    Attributes
    ----------
    sender : int
        The number of the process whose values these are.
    values : NDArray
        Float32 or, in answers, also float64, `[rows, columns]`.
    gone : frozenset of int
        In answers, the neighbours that the sender takes for dead.
    form : Form
        The form in which values travel that were rounded to it; in answers always float32 or float64.
    signed : bytes
        In answers, the whole message as it arrived, to be handed on.

    Examples
    --------
    >>> import numpy as np
    >>> digest = federation_digest("clinics", "1f0c")
    >>> sent = Message(Kind.ROWS, 3, Slot(1, 20), np.ones((1, 2), np.float32)).encoded(digest)
    >>> len(sent), decoded(sent, digest).values.tolist()
    (56, [[1.0, 1.0]])
    >>> decoded(sent, federation_digest("clinics", "another"))
    Traceback (most recent call last):
    ...
    fedsurf.network.engines.messages.RefusedError: another federation
    """

    kind: Kind
    sender: int
    slot: Slot
    values: NDArray[np.floating]
    gone: frozenset[int] = NOBODY
    form: Form = FLOAT32
    signed: bytes = b""

    def encoded(self, digest: bytes) -> bytes:
        """Return the bytes of the message, with the federation's digest."""
        plain = self.form.wire == "float32"
        code = int(self.values.dtype == np.float64) if plain else _FORMS[self.form.wire]
        layout = () if plain else self.form.layout
        if len(layout) > MAX_SECTIONS:
            raise ValueError(
                f"layout: got {len(layout)} entries, but a message has at most {MAX_SECTIONS}"
            )
        mask = sum(1 << number for number in self.gone) if self.gone else 0
        gone = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        when = (self.slot.run, self.slot.round, self.slot.part)
        shape = len(gone), *self.values.shape
        fields = (self.kind, code, len(layout), digest, self.sender, *when, *shape)
        table = b"".join([_SECTION.pack(*section) for section in layout])
        if plain:
            raw = np.ascontiguousarray(self.values, _TYPES[code]).data
        else:
            raw = memoryview(self.form.encoded(self.values))
        return b"".join((_HEADER.pack(MAGIC, VERSION, *fields), gone, table, raw))


def federation_digest(name: str, digest: str) -> bytes:
    """Return the 16 bytes by which messages of a federation are known."""
    return sha256(f"{name}\0{digest}".encode()).digest()[:16]


def kind_of(raw: bytes) -> int:
    """Return the kind of an encoded message."""
    return raw[_KIND_PLACE]


def is_answer(raw: bytes) -> bool:
    """Whether what arrived claims to be an answer."""
    return len(raw) >= HEADER_BYTES and kind_of(raw) == Kind.ANSWER


def decoded(raw: bytes, digest: bytes, wire: Wire = "float32") -> Message:
    """Return the message in `raw`, or raise `RefusedError`; numbers are in the form of `wire`, or float32.

    Values that travelled as float32 or float64 share the memory of `raw`.
    """
    if len(raw) < HEADER_BYTES or raw[:4] != MAGIC:
        raise RefusedError("not a message")
    header = _HEADER.unpack_from(raw)
    _, version, kind, code, sections, its_digest, sender, *when, masked, rows, columns = header
    if version != VERSION:
        raise RefusedError("another version")
    if its_digest != digest:
        raise RefusedError("another federation")
    if kind >= len(_KINDS) or code not in (_ANSWERS if kind == Kind.ANSWER else _ROUNDS):
        raise RefusedError("unknown kind or type")
    if code > 1 and code != _FORMS[wire]:
        raise RefusedError("another wire")
    if masked > MAX_MASK_BYTES:
        raise RefusedError("too many processes")
    start, form = HEADER_BYTES + masked, FLOAT32
    if code <= 1:
        kind_of_number = _TYPES[code]
        if len(raw) != start + rows * columns * kind_of_number.itemsize:
            raise RefusedError("size differs from its header")
        flat: NDArray[np.floating] = np.frombuffer(raw, kind_of_number, rows * columns, start)
        values = flat.reshape(rows, columns)
    else:
        form = _form(raw[start : start + SECTION_BYTES * sections], wire)
        start += form.table_bytes
        if form.numbers != columns or len(raw) != start + rows * form.row_bytes:
            raise RefusedError("size differs from its header")
        values = form.decoded(memoryview(raw)[start:], rows)
    # If the sum of squares is finite, so are all numbers.
    if not math.isfinite(np.vdot(values, values)) and not np.isfinite(values).all():
        raise RefusedError("NaN or infinite")
    gone = NOBODY
    if masked:
        mask = int.from_bytes(raw[HEADER_BYTES : HEADER_BYTES + masked], "little")
        gone = frozenset(place for place in range(mask.bit_length()) if mask >> place & 1)
    return Message(_KINDS[kind], sender, Slot(*when), values, gone, form)


def _form(table: bytes, wire: Wire) -> Form:
    """Return the form with the layout in a table, whose sections are not empty."""
    if len(table) % SECTION_BYTES:
        raise RefusedError("size differs from its header")
    return Form(wire, [Sections(*entry) for entry in _SECTION.iter_unpack(table)])
