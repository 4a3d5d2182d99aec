"""The catalogue of methods that `tune` and `compare` know by name, with the ranges that tuning searches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from fedsurf.algorithms import (
    DGD,
    DSGD,
    EXTRA,
    LDA,
    MOON,
    SCAFFOLD,
    Algorithm,
    ClassMeans,
    DFedAvgM,
    ExactDiffusion,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedProx,
    GradientTracking,
    LocalOnly,
    OneShot,
    Ridge,
    Start,
)
from fedsurf.common.checks import check_kind, check_number, check_option
from fedsurf.models import Model
from fedsurf.network import Network

Setting = float | int | str | bool | None
Settings = Mapping[str, Setting]
RunsOn = Literal["graph", "server", "any"]


@dataclass(frozen=True)
class LogRange:
    """Numbers between `low` and `high`, uniform on a logarithmic scale."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_number(getattr(self, name), name)
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                f"low, high: got {self.low} and {self.high}, but they must be above 0 and finite, and low no "
                "larger than high"
            )

    def draw(self, generator: torch.Generator) -> float:
        """Draw a number, rounded to three digits so that files stay legible."""
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        return float(f"{math.exp(math.log(self.low) + share * math.log(self.high / self.low)):.3g}")


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Setting, ...]

    def __post_init__(self) -> None:
        check_kind(self.values, tuple | list, "values", "a tuple of values")
        if not self.values:
            raise ValueError("values: got none, but there must be at least one")

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
    options : tuple of str
        Further settings, which are not tuned; without them the algorithm's own values hold.
    """

    name: str
    title: str
    build: Callable[..., Algorithm]
    runs_on: RunsOn
    space: Mapping[str, LogRange | Choice]
    defaults: Settings = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_option(self.runs_on, RunsOn, "runs_on")

    def make(self, model: Model, start: Start, settings: Settings) -> Algorithm:
        """Make the algorithm; unknown settings are an error."""
        self.check(settings)
        return self.build(model=model, start=start, **{**self.defaults, **settings})

    def check(self, settings: Settings) -> None:
        """Raise unless all settings are this method's."""
        known = {*self.space, *self.defaults, *self.options}
        unknown = set(settings) - known
        if unknown:
            raise ValueError(
                f"settings of {self.name}: got {sorted(unknown)}, but it has {sorted(known)}"
            )

    def draw(self, generator: torch.Generator) -> dict[str, Setting]:
        """Draw settings for one trial of tuning."""
        return {name: self.space[name].draw(generator) for name in sorted(self.space)}

    def fits(self, network: Network) -> bool:
        """Whether it runs on that network."""
        return self.runs_on == "any" or (self.runs_on == "server") == network.server


_STEP = LogRange(0.01, 10.0)
_BATCH = Choice((10, None))
_LOCAL = Choice((2, 6, 12))
_MOMENTUM = Choice((0.0, 0.5, 0.9))
_SERVER: dict[str, LogRange | Choice] = {
    "step_size": _STEP,
    "local_steps": _LOCAL,
    "batch_size": _BATCH,
}
_SERVER_DEFAULTS: dict[str, Setting] = {"step_size": 0.3, "local_steps": 6, "batch_size": 10}
_WEIGHTING = ("weighting",)

_GRAPH_METHODS = (
    Method(
        "dgd",
        "DGD",
        DGD,
        "any",
        {"step_size": _STEP, "batch_size": _BATCH},
        {"step_size": 0.3, "batch_size": 10},
    ),
    Method("dsgd", "DSGD", DSGD, "any", {"step_size": _STEP}, {"step_size": 0.1}),
    Method(
        "dfedavgm",
        "DFedAvgM",
        DFedAvgM,
        "any",
        {
            "step_size": LogRange(0.003, 1.0),
            "local_steps": _LOCAL,
            "momentum": _MOMENTUM,
            "batch_size": _BATCH,
        },
        {"step_size": 0.03, "local_steps": 6, "momentum": 0.9, "batch_size": 10},
    ),
    Method(
        "gradient-tracking",
        "gradient tracking",
        GradientTracking,
        "graph",
        {"step_size": _STEP, "momentum": _MOMENTUM},
        {"step_size": 0.1, "momentum": 0.0},
    ),
    Method("extra", "EXTRA", EXTRA, "graph", {"step_size": _STEP}, {"step_size": 0.1}),
    Method(
        "exact-diffusion",
        "Exact Diffusion",
        ExactDiffusion,
        "graph",
        {"step_size": _STEP},
        {"step_size": 0.1},
    ),
)

_SERVER_METHODS = (
    Method("fedavg", "FedAvg", FedAvg, "server", _SERVER, _SERVER_DEFAULTS, _WEIGHTING),
    Method(
        "fedprox",
        "FedProx",
        FedProx,
        "server",
        {**_SERVER, "mu": LogRange(0.001, 1.0)},
        {**_SERVER_DEFAULTS, "mu": 0.01},
        _WEIGHTING,
    ),
    Method(
        "scaffold",
        "SCAFFOLD",
        SCAFFOLD,
        "server",
        {**_SERVER, "server_step_size": LogRange(0.3, 3.0)},
        {**_SERVER_DEFAULTS, "server_step_size": 1.0},
        _WEIGHTING,
    ),
    Method(
        "moon",
        "MOON (logits)",
        MOON,
        "server",
        {**_SERVER, "mu": LogRange(0.01, 5.0), "temperature": Choice((0.5, 1.0))},
        {**_SERVER_DEFAULTS, "mu": 0.1, "temperature": 0.5, "representation": "logits"},
        _WEIGHTING,
    ),
    Method(
        "feddyn",
        "FedDyn",
        FedDyn,
        "server",
        {**_SERVER, "alpha": LogRange(0.003, 1.0)},
        {**_SERVER_DEFAULTS, "alpha": 0.1},
        _WEIGHTING,
    ),
    Method(
        "fedavgm",
        "FedAvgM",
        FedAvgM,
        "server",
        {**_SERVER, "momentum": Choice((0.5, 0.8, 0.9)), "server_step_size": LogRange(0.1, 2.0)},
        {**_SERVER_DEFAULTS, "momentum": 0.5, "server_step_size": 1.0},
        _WEIGHTING,
    ),
    Method(
        "fedadam",
        "FedAdam",
        FedAdam,
        "server",
        {**_SERVER, "server_step_size": LogRange(0.01, 1.0), "tau": LogRange(0.001, 0.1)},
        {**_SERVER_DEFAULTS, "server_step_size": 0.1, "tau": 0.01},
        _WEIGHTING,
    ),
)

_ACCELERATED = Choice((True, False))

_CLOSED_FORMS = (
    Method(
        "class-means",
        "class means",
        ClassMeans,
        "any",
        {"accelerated": _ACCELERATED},
        {"accelerated": True},
    ),
    Method(
        "lda",
        "LDA",
        LDA,
        "any",
        {"shrinkage": LogRange(0.001, 0.9), "accelerated": _ACCELERATED},
        {"shrinkage": 0.1, "accelerated": True},
    ),
    Method(
        "ridge",
        "ridge",
        Ridge,
        "any",
        {"strength": LogRange(0.001, 10.0), "accelerated": _ACCELERATED},
        {"strength": 0.1, "accelerated": True},
    ),
    Method(
        "one-shot",
        "one-shot averaging",
        OneShot,
        "any",
        {"strength": LogRange(0.0003, 0.3), "accelerated": _ACCELERATED},
        {"strength": 0.01, "accelerated": True},
        _WEIGHTING,
    ),
    Method(
        "local-only",
        "local only",
        LocalOnly,
        "any",
        {"strength": LogRange(0.0003, 0.3)},
        {"strength": 0.01},
    ),
)

METHODS: dict[str, Method] = {
    method.name: method for method in (*_GRAPH_METHODS, *_SERVER_METHODS, *_CLOSED_FORMS)
}
"""All methods, by name. Whoever adds one of their own to it may enter it into studies."""

CATALOGUE: Mapping[str, Method] = dict(METHODS)
"""The package's own methods, whatever METHODS holds later, and whoever is imported after that."""


def method_named(name: str) -> Method:
    """Return the method of that name."""
    if name not in METHODS:
        raise ValueError(f"methods: got {name!r}, but it must be one of {', '.join(METHODS)}")
    method = METHODS[name]
    if method.name != name:
        raise ValueError(
            f"methods: got {name!r}, whose own name is {method.name!r}, but METHODS must have a method under "
            "its own name, by which studies find it"
        )
    return method
