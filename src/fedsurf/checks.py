"""What arguments everywhere must be: numbers, whole ones where nothing else makes sense, or objects."""

from numbers import Integral, Real
from types import UnionType

from torch import Tensor


def check_whole(value: object, argument: str, otherwise: str = "") -> None:
    """Raise unless a value is a whole number; `otherwise` says what else it may be."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        also = f",{otherwise}" if otherwise else ""
        raise TypeError(f"{argument}: got {value!r}, but it must be a whole number{also}")


def check_kind(value: object, kind: type | UnionType, argument: str, wanted: str) -> None:
    """Raise unless a value is of a kind, where a missing attribute would be the error otherwise."""
    if not isinstance(value, kind):
        plain = value is None or isinstance(value, str | Real)
        shown = repr(value)[:60] if plain else type(value).__name__
        raise TypeError(f"{argument}: got {shown}, but it must be {wanted}")


def check_number(value: object, argument: str) -> None:
    """Raise unless a value is a number, or a tensor in the place of one."""
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise TypeError(f"{argument}: got {value!r}, but it must be a number")
