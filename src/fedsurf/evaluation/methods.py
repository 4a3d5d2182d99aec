"""The methods that `tune` and `compare` know by name, with the settings that tuning searches."""

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
                f"low, high: got {self.low} and {self.high}, but they must be above 0 and finite, and "
                "low no larger than high"
            )

    def draw(self, generator: torch.Generator) -> float:
        """Draw a number, rounded to three digits for legible files."""
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
    """A method with a name, and the settings that tuning searches.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.algorithms import DGD, Start
    >>> from fedsurf.evaluation.methods import LogRange
    >>> space = {"step_size": LogRange(0.1, 1.0)}
    >>> method = fedsurf.Method("mine", "My DGD", DGD, "any", space, {"step_size": 0.3})
    >>> method.make(fedsurf.SoftmaxHead(4, 2), Start(), {}).step_size
    0.3
    """

    name: str
    """The name on the command line."""
    title: str
    """The name in tables and figures."""
    build: Callable[..., Algorithm]
    """Makes the algorithm from the model, the start and settings, all given by name."""
    runs_on: RunsOn
    """The networks on which it runs."""
    space: Mapping[str, LogRange | Choice]
    """The settings that tuning searches, with their ranges."""
    defaults: Settings = field(default_factory=dict)
    """The settings that tuning tries first."""
    options: tuple[str, ...] = ()
    """Further settings, which are not tuned; by default the algorithm's."""

    def __post_init__(self) -> None:
        check_option(self.runs_on, RunsOn, "runs_on")

    def make(self, model: Model, start: Start, settings: Settings) -> Algorithm:
        """Return the algorithm with these settings, and the defaults for others."""
        self.check(settings)
        return self.build(model=model, start=start, **{**self.defaults, **settings})

    def check(self, settings: Settings) -> None:
        """Raise for unknown settings."""
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
        """Return whether the method runs on a network."""
        return self.runs_on == "any" or (self.runs_on == "server") == network.server


_STEP = LogRange(0.01, 10.0)
_BATCH = Choice((10, None))
_LOCAL_STEPS = Choice((2, 6, 12))
_MOMENTUM = Choice((0.0, 0.5, 0.9))
_ACCELERATED = Choice((True, False))

Tunable = tuple[Setting, LogRange | Choice | None]
"""The default of a setting, and the values that tuning searches; None if it is not tuned."""


def _method(
    name: str,
    title: str,
    build: Callable[..., Algorithm],
    runs_on: RunsOn,
    options: tuple[str, ...] = (),
    **settings: Tunable,
) -> Method:
    space = {key: values for key, (_, values) in settings.items() if values is not None}
    defaults = {key: default for key, (default, _) in settings.items()}
    return Method(name, title, build, runs_on, space, defaults, options)


def _server(name: str, title: str, build: Callable[..., Algorithm], **settings: Tunable) -> Method:
    """Return a method of local steps through a server."""
    return _method(
        name,
        title,
        build,
        "server",
        ("weighting",),
        step_size=(0.3, _STEP),
        local_steps=(6, _LOCAL_STEPS),
        batch_size=(10, _BATCH),
        **settings,
    )


_ALL = (
    _method("dgd", "DGD", DGD, "any", step_size=(0.3, _STEP), batch_size=(10, _BATCH)),
    _method("dsgd", "DSGD", DSGD, "any", step_size=(0.1, _STEP)),
    _method(
        "dfedavgm",
        "DFedAvgM",
        DFedAvgM,
        "any",
        step_size=(0.03, LogRange(0.003, 1.0)),
        local_steps=(6, _LOCAL_STEPS),
        momentum=(0.9, _MOMENTUM),
        batch_size=(10, _BATCH),
    ),
    _method(
        "gradient-tracking",
        "gradient tracking",
        GradientTracking,
        "graph",
        step_size=(0.1, _STEP),
        momentum=(0.0, _MOMENTUM),
    ),
    _method("extra", "EXTRA", EXTRA, "graph", step_size=(0.1, _STEP)),
    _method("exact-diffusion", "Exact Diffusion", ExactDiffusion, "graph", step_size=(0.1, _STEP)),
    _server("fedavg", "FedAvg", FedAvg),
    _server("fedprox", "FedProx", FedProx, mu=(0.01, LogRange(0.001, 1.0))),
    _server("scaffold", "SCAFFOLD", SCAFFOLD, server_step_size=(1.0, LogRange(0.3, 3.0))),
    _server(
        "moon",
        "MOON (logits)",
        MOON,
        mu=(0.1, LogRange(0.01, 5.0)),
        temperature=(0.5, Choice((0.5, 1.0))),
        representation=("logits", None),
    ),
    _server("feddyn", "FedDyn", FedDyn, alpha=(0.1, LogRange(0.003, 1.0))),
    _server(
        "fedavgm",
        "FedAvgM",
        FedAvgM,
        momentum=(0.5, Choice((0.5, 0.8, 0.9))),
        server_step_size=(1.0, LogRange(0.1, 2.0)),
    ),
    _server(
        "fedadam",
        "FedAdam",
        FedAdam,
        server_step_size=(0.1, LogRange(0.01, 1.0)),
        tau=(0.01, LogRange(0.001, 0.1)),
    ),
    _method("class-means", "class means", ClassMeans, "any", accelerated=(True, _ACCELERATED)),
    _method(
        "lda",
        "LDA",
        LDA,
        "any",
        shrinkage=(0.1, LogRange(0.001, 0.9)),
        accelerated=(True, _ACCELERATED),
    ),
    _method(
        "ridge",
        "ridge",
        Ridge,
        "any",
        strength=(0.1, LogRange(0.001, 10.0)),
        accelerated=(True, _ACCELERATED),
    ),
    _method(
        "one-shot",
        "one-shot averaging",
        OneShot,
        "any",
        ("weighting",),
        strength=(0.01, LogRange(0.0003, 0.3)),
        accelerated=(True, _ACCELERATED),
    ),
    _method("local-only", "local only", LocalOnly, "any", strength=(0.01, LogRange(0.0003, 0.3))),
)

METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""All methods by name. A custom method that is added here can enter studies like the others."""


def method_named(name: str) -> Method:
    """Return the method of that name."""
    if name not in METHODS:
        raise ValueError(f"methods: got {name!r}, but it must be one of {', '.join(METHODS)}")
    method = METHODS[name]
    if method.name != name:
        raise ValueError(
            f"methods: got {name!r} for a method with the name {method.name!r}, but they must agree"
        )
    return method
