"""An entrant of a study: a classical method with settings, a meta-trained run, or a pretrained optimizer."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsurf import pretrained
from fedsurf.algorithms import Algorithm
from fedsurf.common.configuration import differences
from fedsurf.common.files import FileError
from fedsurf.common.text import counted
from fedsurf.evaluation.environment import Environment
from fedsurf.evaluation.experiment import Experiment, read_experiment_config
from fedsurf.evaluation.methods import Method, Settings, method_named
from fedsurf.evaluation.tuning import deciding_features, settings_that_fit
from fedsurf.network import NetworkConfig
from fedsurf.surf.loop import RunFolder
from fedsurf.tasks.task import Task


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
            value = getattr(self, name)
            if value not in (None, {}) and kind not in given:
                taker = "a method" if kind == "method" else "a pretrained optimizer"
                raise ValueError(
                    f"{name}: got {value} for {self.label!r}, but only {taker} takes it"
                )

    def resolved(self, tasks: Sequence[Task]) -> "Entrant":
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
            folder = RunFolder(Path(self.run))
            folder.check_best(read_experiment_config(folder))
            with folder.best.open("rb") as file:
                return {"run": hashlib.file_digest(file, "sha256").hexdigest()}
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
            experiment = _load(self.run, environment, network)
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


def _load(run: str | Path, environment: Environment, network: NetworkConfig) -> Experiment:
    """Load a run; raise unless its data, start and kind of network are those of the study."""
    try:
        experiment = Experiment.load(run, environment.features)
    except FileError as error:
        model = environment.model
        raise FileError(
            f"runs: got {run}, but it cannot be used with the study's "
            f"{counted(model.features, 'feature')} and {model.classes} classes ({error})"
        ) from error
    theirs = experiment.config
    found = differences(
        {
            "data": deciding_features(theirs.data),
            "initial_mean": theirs.optimizer.initial_mean,
            "initial_deviation": theirs.optimizer.initial_deviation,
            "server": theirs.network.graph.kind == "star",
        },
        {
            "data": deciding_features(environment.config.data),
            "initial_mean": environment.start.mean,
            "initial_deviation": environment.start.deviation,
            "server": network.graph.kind == "star",
        },
    )
    if found:
        raise ValueError(
            f"runs: got {run}, which cannot be compared fairly here, as it differs in "
            f"{', '.join(found)}"
        )
    experiment.check_data(RunFolder(Path(run)))
    return experiment
