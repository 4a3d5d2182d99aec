"""Messages between processes: a header of fixed size, a bit mask and numbers in raw little-endian bytes.

Nothing that arrives is unpickled or evaluated, and no memory is made for what a header only claims.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

MAGIC, VERSION = b"FSRF", 1
# Magic, version, kind, type, reserved, digest, sender, run, round, part, bytes of the mask, rows, columns.
_HEADER = struct.Struct("<4sBBBB16sIIIHHII")
_TYPES = (np.dtype("<f4"), np.dtype("<f8"))
HEADER_BYTES = _HEADER.size
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


class RefusedError(ValueError):
    """A message that is not used; its text is the reason."""


@dataclass(frozen=True, order=True)
class Slot:
    """When a message is needed: the run, the round, and the number among those of its kind in the round."""

    run: int
    round: int
    part: int = 0


@dataclass(frozen=True)
class Message:
    """A message of a process.

    Attributes
    ----------
    sender : int
        The number of the process whose values these are.
    values : NDArray
        Float32 or, in answers, also float64, `[rows, columns]`.
    gone : frozenset of int
        In answers, the neighbours that the sender takes for dead.

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
    gone: frozenset[int] = frozenset()

    def encoded(self, digest: bytes) -> bytes:
        """Return the bytes of the message, with the federation's digest."""
        code = int(self.values.dtype == np.float64)
        mask = sum(1 << number for number in self.gone)
        gone = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        when = (self.slot.run, self.slot.round, self.slot.part)
        fields = (self.kind, code, 0, digest, self.sender, *when, len(gone), *self.values.shape)
        raw = np.ascontiguousarray(self.values, _TYPES[code]).tobytes()
        return _HEADER.pack(MAGIC, VERSION, *fields) + gone + raw


def federation_digest(name: str, digest: str) -> bytes:
    """Return the 16 bytes by which messages of a federation are known."""
    return sha256(f"{name}\0{digest}".encode()).digest()[:16]


def decoded(raw: bytes, digest: bytes) -> Message:
    """Return the message in `raw`, or raise `RefusedError`; its values share the memory of `raw`."""
    if len(raw) < HEADER_BYTES or raw[:4] != MAGIC:
        raise RefusedError("not a message")
    _, version, kind, code, _, its_digest, sender, run, round_, part, masked, rows, columns = (
        _HEADER.unpack_from(raw)
    )
    if version != VERSION:
        raise RefusedError("another version")
    if its_digest != digest:
        raise RefusedError("another federation")
    if kind >= len(Kind) or code >= (2 if kind == Kind.ANSWER else 1):
        raise RefusedError("unknown kind or type")
    if masked > MAX_MASK_BYTES:
        raise RefusedError("too many processes")
    start, kind_of_number = HEADER_BYTES + masked, _TYPES[code]
    if len(raw) != start + rows * columns * kind_of_number.itemsize:
        raise RefusedError("size differs from its header")
    flat: NDArray[np.floating] = np.frombuffer(raw, kind_of_number, rows * columns, start)
    values = flat.reshape(rows, columns)
    if not np.isfinite(values).all():
        raise RefusedError("NaN or infinite")
    mask = int.from_bytes(raw[HEADER_BYTES:start], "little")
    gone = frozenset(place for place in range(mask.bit_length()) if mask >> place & 1)
    return Message(Kind(kind), sender, Slot(run, round_, part), values, gone)
