"""What SURF can meta-train: learned parameters, and the algorithm whose layers they are."""

from collections.abc import Iterator
from typing import Protocol

from torch import nn

from fedsurf.algorithms.algorithm import Algorithm
from fedsurf.models import Model


class Unrolled(Algorithm, Protocol):
    """An algorithm with a certain number of steps, its layers."""

    @property
    def steps(self) -> int:
        """The number of layers."""
        ...


class UnrolledOptimizer(Protocol):
    """Learned parameters θ, and the algorithm whose layers they are."""

    @property
    def constraints(self) -> int:
        """The number of descending constraints: one for each layer, or for each part of the depth."""
        ...

    def on(self, model: Model, rounds: int | None = None) -> Unrolled:
        """Return the algorithm whose steps are the layers, for a model and a number of rounds."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return θ."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return θ with names."""
        ...


def check_unrolled(optimizer: object) -> None:
    """Raise unless an object has everything that SURF asks of what it trains."""
    wanted = ("constraints", "on", "parameters", "named_parameters")
    missing = [name for name in wanted if not hasattr(optimizer, name)]
    if missing:
        raise TypeError(
            f"optimizer: got a {type(optimizer).__name__} without {' and '.join(missing)}, but what SURF "
            "trains must have constraints, on(model, rounds), parameters() and named_parameters(), as "
            "fedsurf.surf.UnrolledOptimizer says"
        )
