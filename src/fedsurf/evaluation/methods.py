"""Entrants of studies, and the methods that they name, with the settings that tuning searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedsurf import algorithms, pretrained
from fedsurf.algorithms import Algorithm, Start
from fedsurf.models import Model
from fedsurf.network import Network, NetworkConfig
from fedsurf.tasks.task import Task

if TYPE_CHECKING:
    from fedsurf.evaluation.study import Environment

Setting = float | int | str | bool | None
Settings = Mapping[str, Setting]
RunsOn = Literal["graph", "server", "any"]


@dataclass(frozen=True)
class LogRange:
    """Numbers between `low` and `high`, uniform on a logarithmic scale.

    Examples
    --------
    >>> import fedsurf
    >>> 0.1 <= LogRange(0.1, 10.0).draw(fedsurf.generator(0)) <= 10.0
    True
    """

    low: float
    high: float

    def draw(self, generator: torch.Generator) -> float:
        """Draw a number, rounded to three digits for legible files."""
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        return float(f"{math.exp(math.log(self.low) + share * math.log(self.high / self.low)):.3g}")


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Examples
    --------
    >>> import fedsurf
    >>> Choice((10, None)).draw(fedsurf.generator(0)) in (10, None)
    True
    """

    values: tuple[Setting, ...]

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

    def make(self, model: Model, start: Start, settings: Settings) -> Algorithm:
        """Return the algorithm with these settings, and the defaults for others."""
        known = {*self.space, *self.defaults, *self.options}
        unknown = set(settings) - known
        if unknown:
            raise ValueError(
                f"settings of {self.name}: got {sorted(unknown)}, but it has {sorted(known)}"
            )
        return self.build(model=model, start=start, **{**self.defaults, **settings})

    def draw(self, generator: torch.Generator) -> dict[str, Setting]:
        """Draw settings for one trial of tuning."""
        return {name: self.space[name].draw(generator) for name in sorted(self.space)}

    def fits(self, network: Network) -> bool:
        """Return whether the method runs on a network."""
        return self.runs_on == "any" or (self.runs_on == "server") == network.server


Tunable = tuple[Setting, LogRange | Choice | None]
"""The default of a setting, and the values that tuning searches; None if it is not tuned."""

_STEP = LogRange(0.01, 10.0)
_PENALTY = LogRange(0.0003, 0.3)
_MOMENTUM = Choice((0.0, 0.5, 0.9))
_BATCH: Tunable = (10, Choice((10, None)))
_LOCAL_STEPS: Tunable = (6, Choice((2, 6, 12)))
_ACCELERATED: Tunable = (True, Choice((True, False)))


def _method(
    name: str,
    title: str,
    build: Callable[..., Algorithm],
    runs_on: RunsOn = "any",
    options: tuple[str, ...] = (),
    **settings: Tunable,
) -> Method:
    space = {key: values for key, (_, values) in settings.items() if values is not None}
    defaults = {key: default for key, (default, _) in settings.items()}
    return Method(name, title, build, runs_on, space, defaults, options)


def _graph(name: str, title: str, build: Callable[..., Algorithm], **settings: Tunable) -> Method:
    """Return a method that corrects gradient steps over a graph without a server."""
    return _method(name, title, build, "graph", (), step_size=(0.1, _STEP), **settings)


def _server(name: str, title: str, build: Callable[..., Algorithm], **settings: Tunable) -> Method:
    """Return a method of local steps through a server."""
    local = {"step_size": (0.3, _STEP), "local_steps": _LOCAL_STEPS, "batch_size": _BATCH}
    return _method(name, title, build, "server", ("weighting",), **(local | settings))


_ALL = (
    _method("dgd", "DGD", algorithms.DGD, step_size=(0.3, _STEP), batch_size=_BATCH),
    _method("dsgd", "DSGD", algorithms.DSGD, step_size=(0.1, _STEP)),
    _method(
        "dfedavgm",
        "DFedAvgM",
        algorithms.DFedAvgM,
        step_size=(0.03, LogRange(0.003, 1.0)),
        local_steps=_LOCAL_STEPS,
        momentum=(0.9, _MOMENTUM),
        batch_size=_BATCH,
    ),
    _graph(
        "gradient-tracking",
        "gradient tracking",
        algorithms.GradientTracking,
        momentum=(0.0, _MOMENTUM),
    ),
    _graph("extra", "EXTRA", algorithms.EXTRA),
    _graph("exact-diffusion", "Exact Diffusion", algorithms.ExactDiffusion),
    _server("fedavg", "FedAvg", algorithms.FedAvg),
    _server("fedprox", "FedProx", algorithms.FedProx, mu=(0.01, LogRange(0.001, 1.0))),
    _server(
        "scaffold", "SCAFFOLD", algorithms.SCAFFOLD, server_step_size=(1.0, LogRange(0.3, 3.0))
    ),
    _server(
        "moon",
        "MOON (logits)",
        algorithms.MOON,
        mu=(0.1, LogRange(0.01, 5.0)),
        temperature=(0.5, Choice((0.5, 1.0))),
        representation=("logits", None),
    ),
    _server("feddyn", "FedDyn", algorithms.FedDyn, alpha=(0.1, LogRange(0.003, 1.0))),
    _server(
        "fedavgm",
        "FedAvgM",
        algorithms.FedAvgM,
        momentum=(0.5, Choice((0.5, 0.8, 0.9))),
        server_step_size=(1.0, LogRange(0.1, 2.0)),
    ),
    _server(
        "fedadam",
        "FedAdam",
        algorithms.FedAdam,
        server_step_size=(0.1, LogRange(0.01, 1.0)),
        tau=(0.01, LogRange(0.001, 0.1)),
    ),
    _method("class-means", "class means", algorithms.ClassMeans, accelerated=_ACCELERATED),
    _method(
        "lda",
        "LDA",
        algorithms.LDA,
        shrinkage=(0.1, LogRange(0.001, 0.9)),
        accelerated=_ACCELERATED,
    ),
    _method(
        "ridge",
        "ridge",
        algorithms.Ridge,
        strength=(0.1, LogRange(0.001, 10.0)),
        accelerated=_ACCELERATED,
    ),
    _method(
        "one-shot",
        "one-shot averaging",
        algorithms.OneShot,
        options=("weighting",),
        strength=(0.01, _PENALTY),
        accelerated=_ACCELERATED,
    ),
    _method("local-only", "local only", algorithms.LocalOnly, strength=(0.01, _PENALTY)),
)

METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""All methods by name. A custom method that is added here can enter studies like the others."""


def method_named(name: str) -> Method:
    """Return the method of that name."""
    if name not in METHODS:
        raise ValueError(f"methods: got {name!r}, but it must be one of {', '.join(METHODS)}")
    return METHODS[name]


def settings_that_fit(
    method: Method, settings: Settings, tasks: Sequence[Task]
) -> dict[str, Setting]:
    """Return settings that suit the numbers of examples that agents have.

    A mini-batch larger than the smallest agent's data becomes all of an agent's data. Where agents have
    different numbers of examples, a method with the option `weighting` weighs them by these, unless
    the settings decide: it then minimises what centralised training minimises.
    """
    fewest = min(int(task.train.counts.min()) for task in tasks)
    unequal = any(int(task.train.counts.min()) < int(task.train.counts.max()) for task in tasks)
    return settings_for_sizes(method, settings, fewest, unequal=unequal)


def settings_for_sizes(
    method: Method, settings: Settings, fewest: int, *, unequal: bool
) -> dict[str, Setting]:
    """Return settings that suit agents of whom one has the `fewest` examples; see `settings_that_fit`."""
    fitting = dict(settings)
    wanted = fitting.get("batch_size")
    if isinstance(wanted, int) and wanted > fewest:
        fitting["batch_size"] = None
    if unequal and "weighting" in method.options:
        return {"weighting": "examples", **fitting}
    return fitting


@dataclass(frozen=True)
class Entrant:
    """A method with its settings, or a trained optimizer, in a study.

    Examples
    --------
    >>> import fedsurf
    >>> fedsurf.Entrant("DGD, fast", "dgd", {"step_size": 1.0}).settings
    {'step_size': 1.0}
    >>> fedsurf.Entrant("SURF-T", pretrained="softmax-head", rounds=10).method is None
    True
    """

    label: str
    """The name in tables and figures."""
    method: str | None = None
    """The name of a classical method."""
    settings: Settings = field(default_factory=dict)
    """Its settings; the method's defaults for others."""
    run: str | Path | None = None
    """The folder of an optimizer that `Experiment.train` made."""
    pretrained: str | Path | None = None
    """The name or the file of a pretrained optimizer."""
    rounds: int | None = None
    """Rounds of a pretrained optimizer; None for 20."""
    batch_size: int | None = None
    """Examples to which an agent of a pretrained optimizer fits in a round; None for all."""

    def __post_init__(self) -> None:
        kinds = ("method", "run", "pretrained")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"entrant: got {self.label!r} with {' and '.join(given) or 'nothing to run'}, but it "
                "must have one of method, run and pretrained"
            )
        takers = {"settings": "method", "rounds": "pretrained", "batch_size": "pretrained"}
        for name, kind in takers.items():
            if getattr(self, name) not in (None, {}) and kind not in given:
                raise ValueError(f"{name}: got it for {self.label!r}, but only a {kind} takes it")

    def resolved(self, tasks: Sequence[Task]) -> Entrant:
        """Return the entrant with all settings of its method, such that they fit the tasks."""
        if self.method is None:
            return self
        method = method_named(self.method)
        settings = {**method.defaults, **self.settings}
        return replace(self, settings=settings_that_fit(method, settings, tasks))

    def identity(self) -> Mapping[str, Any] | None:
        """Return what tells the results from others'; None for a custom method, whose code changes."""
        if self.pretrained is not None:
            optimizer = pretrained.digest(self.pretrained, argument="pretrained")
            sizes = {"rounds": self.rounds, "batch_size": self.batch_size}
            return {"pretrained": optimizer, **sizes}
        if self.run is not None:
            from fedsurf.evaluation.experiment import run_digest

            return {"run": run_digest(self.run)}
        method = method_named(str(self.method))
        module = getattr(method.build, "__module__", "")
        if type(method) is not Method or not module.startswith("fedsurf."):
            return None
        return {"algorithm": f"{module}.{method.build.__qualname__}", "settings": self.settings}

    def prepare(
        self, environment: Environment, network: NetworkConfig, rounds: int
    ) -> tuple[Algorithm, int, NetworkConfig]:
        """Return the algorithm, its number of steps, and its network."""
        if self.run is not None:
            from fedsurf.evaluation.experiment import load_comparable

            experiment = load_comparable(self.run, environment, network)
            own = replace(network, shift=experiment.config.network.shift)
            return experiment.optimizer, experiment.optimizer.steps, own
        if self.pretrained is not None:
            optimizer = pretrained.load(self.pretrained, argument="pretrained")
            unrolled = optimizer.on(environment.model, self.rounds, batch_size=self.batch_size)
            return unrolled, unrolled.steps, network
        if network.shift == "laplacian":
            raise ValueError(
                f"network.shift: got 'laplacian', which does not average, but {self.method} mixes "
                "averages: use 'metropolis' or 'adjacency'"
            )
        method = method_named(str(self.method))
        return method.make(environment.model, environment.start, self.settings), rounds, network
