"""What a backbone is."""

from typing import Protocol

from fedsurf.tasks.dataset import Array


class Backbone(Protocol):
    """Turns examples into features, each by itself and always the same way.

    Its version changes with its weights and its arithmetic, and enters the key of cached features.
    """

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def version(self) -> str:
        """What tells it from others of that name."""
        ...

    def features(self, images: Array, *, progress: bool = False) -> Array:
        """Return float32 features `[examples, features]` of uint8 `[examples, height, width, channels]`."""
        ...


class MissingBackboneError(ImportError):
    """The packages of a backbone are not installed; the message says how to get them."""
