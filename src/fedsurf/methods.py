"""The catalogue of methods that `tune` and `compare` know by name, with the ranges that tuning searches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from fedsurf.algorithms import DGD, Algorithm, Start
from fedsurf.models import Model
from fedsurf.network import Network

Setting = float | int | str | bool | None
Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class LogRange:
    """Numbers between `low` and `high`, uniform on a logarithmic scale."""

    low: float
    high: float

    def draw(self, generator: torch.Generator) -> float:
        """Draw a number, rounded to three digits so that files stay legible."""
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        return float(f"{math.exp(math.log(self.low) + share * math.log(self.high / self.low)):.3g}")


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Setting, ...]

    def draw(self, generator: torch.Generator) -> Setting:
        """Draw a value."""
        return self.values[int(torch.randint(len(self.values), (), generator=generator))]


@dataclass(frozen=True)
class Method:
    """A method by name: how it is made, where it runs, what is tuned.

    Attributes
    ----------
    name : str
        What the command line calls it.
    title : str
        What tables and figures call it.
    build : callable
        Makes the algorithm from the model, the start and settings.
    runs_on : {"graph", "server", "any"}
        Which networks it runs on.
    space : mapping
        The settings that tuning searches, and where.
    defaults : mapping
        The settings that are tried first.
    """

    name: str
    title: str
    build: Callable[..., Algorithm]
    runs_on: Literal["graph", "server", "any"]
    space: Mapping[str, LogRange | Choice]
    defaults: Settings = field(default_factory=dict)

    def make(self, model: Model, start: Start, settings: Settings) -> Algorithm:
        """Make the algorithm; unknown settings are an error."""
        unknown = set(settings) - set(self.space) - set(self.defaults)
        if unknown:
            raise ValueError(
                f"settings of {self.name}: got {sorted(unknown)}, "
                f"but it has {sorted(set(self.space) | set(self.defaults))}"
            )
        return self.build(model=model, start=start, **{**self.defaults, **settings})

    def draw(self, generator: torch.Generator) -> dict[str, Setting]:
        """Draw settings for one trial of tuning."""
        return {name: self.space[name].draw(generator) for name in sorted(self.space)}

    def fits(self, network: Network) -> bool:
        """Whether it runs on that network."""
        return self.runs_on == "any" or (self.runs_on == "server") == network.server


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "dgd",
            "DGD",
            DGD,
            "any",
            {"step_size": LogRange(0.01, 3.0), "batch_size": Choice((10, None))},
            {"step_size": 0.3, "batch_size": 10},
        ),
    )
}
"""All methods, by name."""


def method_named(name: str) -> Method:
    """Return the method of that name."""
    if name not in METHODS:
        raise ValueError(f"methods: got {name!r}, but it must be one of {', '.join(METHODS)}")
    return METHODS[name]
