"""A study: any set of methods and trained optimizers on the same tasks, from the same start, fairly.

Every method sees the same tasks, the same W_0, the same graph and the same metric; classical methods
use settings that were tuned with the same budget on validation tasks. Results are cached by
configuration: adding a method computes only that method.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsurf import pretrained
from fedsurf.algorithms import Algorithm, Start
from fedsurf.algorithms.centralised import Centralised
from fedsurf.common.checks import check_kind, check_not_negative, check_whole
from fedsurf.common.configuration import differences, to_dict
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.text import counted
from fedsurf.common.writing import write_tensors
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig, TuneConfig
from fedsurf.evaluation.experiment import Experiment, read_experiment_config
from fedsurf.evaluation.methods import CATALOGUE, METHODS, Method, Settings, method_named
from fedsurf.evaluation.run import Trajectories, Trajectory, recorded_steps, run_all
from fedsurf.evaluation.tuning import Tuned, settings_that_fit, tune
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, NetworkConfig, make_network
from fedsurf.surf.loop import RunFolder
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.dataset import checksum
from fedsurf.tasks.distribution import DividedTasks, meta_tasks
from fedsurf.tasks.features import Features, load_features
from fedsurf.tasks.task import Task

VERSION = 3
"""Enters the cache's key: raise it when a change of code changes results."""

LAYER_VERSION = 5
"""Enters the key of a pretrained optimizer besides: raise it when a change of its layer changes results."""

LONGEST_NAME = 200
"""So many bytes of a label are in the name of its file in the cache: systems take names of up to 255."""


@dataclass(frozen=True)
class Entrant:
    """A method with its settings, or a trained optimizer, as it enters a study.

    Attributes
    ----------
    label : str
        What tables and figures call it.
    method : str or None
        The name of a classical method.
    settings : mapping
        Its settings.
    run : str, Path or None
        The folder of a trained optimizer.
    pretrained : str, Path or None
        The name or the file of a pretrained optimizer.
    rounds : int or None
        How many rounds a pretrained optimizer is given; 20 where None.
    batch_size : int or None
        How many of its examples an agent of a pretrained optimizer fits to in a round; None for all.
    """

    label: str
    method: str | None = None
    settings: Settings = field(default_factory=dict)
    run: str | Path | None = None
    pretrained: str | Path | None = None
    rounds: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        given = [
            name for name in ("method", "run", "pretrained") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"entrant: got {self.label!r} with {' and '.join(given) or 'nothing to run'}, but it must "
                "have one of method, run and pretrained"
            )
        if self.settings and self.method is None:
            raise ValueError(
                f"settings: got {dict(self.settings)} for {self.label!r}, but only a method has settings"
            )
        for name in ("rounds", "batch_size"):
            if getattr(self, name) is not None and self.pretrained is None:
                raise ValueError(
                    f"{name}: got {getattr(self, name)} for {self.label!r}, but only a pretrained optimizer "
                    "takes it: the study's config has the rounds of methods, their settings the batch_size"
                )


class Study:
    """Runs entrants on the same tasks.

    Parameters
    ----------
    config : StudyConfig
        On what they are compared.
    cache : str, Path or None
        A folder for results; what is there is not computed again.
    features : Features or None
        The data set's features, if they are at hand already.
    """

    def __init__(
        self, config: StudyConfig, cache: str | Path | None = None, features: Features | None = None
    ) -> None:
        check_kind(config, StudyConfig, "config", "a StudyConfig")
        check_kind(config.network, NetworkConfig, "config.network", "a NetworkConfig")
        for name in ("rounds", "tasks"):
            check_whole(getattr(config, name), name)
            if getattr(config, name) < 1:
                raise ValueError(f"{name}: got {getattr(config, name)}, but it must be at least 1")
        check_kind(config.seeds, tuple | list, "seeds", "a tuple of whole numbers")
        if not config.seeds:
            raise ValueError("seeds: got none, but there must be at least one")
        if len(set(config.seeds)) < len(config.seeds):
            raise ValueError(f"seeds: got {config.seeds}, but each must be another one")
        self.config = config.resolved()
        check_not_negative(config.deviation, "initial_deviation")
        self.cache = None if cache is None else Path(cache)
        self.start = Start(0.0, self.config.deviation)
        self._given = features
        self._tasks: dict[int, list[Task]] = {}

    @cached_property
    def features(self) -> Features:
        """The data set's features."""
        return self._given if self._given is not None else load_features(self.config.data)

    @cached_property
    def digest(self) -> str:
        """A checksum of the features: results of other data must not be read from the cache."""
        found = self.features
        arrays = (found.train_x, found.train_y, found.test_x, found.test_y)
        return checksum(*(array.numpy() for array in arrays))

    @cached_property
    def distributions(self) -> DividedTasks:
        """Where tasks come from."""
        return meta_tasks(
            self.features, self.config.task, validation_share=self.config.validation_share
        )

    @cached_property
    def model(self) -> SoftmaxHead:
        """What the agents train, a softmax head in every study."""
        return SoftmaxHead(self.distributions.test.features, self.distributions.test.classes)

    def test_tasks(self, seed: int) -> list[Task]:
        """Return a seed's meta-test tasks."""
        if seed not in self._tasks:
            self._tasks[seed] = [
                self.distributions.test.draw(seeded(seed, "study-task", number))
                for number in range(self.config.tasks)
            ]
        return self._tasks[seed]

    def tuning_tasks(self, count: int) -> list[Task]:
        """Return validation tasks, none of whose examples is in a meta-test task."""
        draw = self.distributions.validation.draw
        return [draw(seeded(0, "study-tuning", number)) for number in range(count)]

    def network(self, seed: int, config: NetworkConfig | None = None) -> Network:
        """Return a seed's network: the same graph for every entrant."""
        config = self.config.network if config is None else config
        return make_network(config, self.config.task.agents, seeded(seed, "graph"))

    def methods(self, names: Sequence[str] = ("all",)) -> list[Method]:
        """Return the methods of these names; `all` stands for all that run on this network."""
        check_kind(names, tuple | list, "names", "a list of names")
        network = self.network(self.config.seeds[0])
        found: dict[str, Method] = {}
        for name in names:
            if name == "all":
                every = [method_named(one) for one in METHODS]
                found |= {method.name: method for method in every if method.fits(network)}
                continue
            method = method_named(name)
            if not method.fits(network):
                kind = "a server" if method.runs_on == "server" else "a graph without a server"
                raise ValueError(f"methods: got {name!r}, but it needs {kind}")
            found[name] = method
        return list(found.values())

    def tune(
        self,
        method: Method,
        config: TuneConfig,
        on_trial: Callable[[], None] = lambda: None,
    ) -> Tuned:
        """Tune a method on validation tasks."""
        tasks = self.tuning_tasks(config.tasks)
        network = self.network(self.config.seeds[0])
        return tune(method, self.model, self.start, tasks, network, config, on_trial=on_trial)

    def run(self, entrant: Entrant, on_task: Callable[[], None] = lambda: None) -> Trajectories:
        """Run an entrant on all tasks of all seeds, or read its results from the cache."""
        total = len(self.config.seeds) * self.config.tasks
        key = self._key(self._identity(entrant))
        cached = self._read(entrant.label, key)
        # Before a loss that is no number ended a run, its accuracy went on.
        if cached is not None and cached["loss"].isnan().equal(cached["accuracy"].isnan()):
            for _ in range(total):
                on_task()
            return Trajectories(entrant.label, **cached)
        parts = []
        for seed in self.config.seeds:
            algorithm, network, steps = self._prepare(entrant, seed)
            record = None if entrant.method is None else recorded_steps(steps)
            parts.append(
                run_all(
                    algorithm,
                    self.test_tasks(seed),
                    network,
                    steps,
                    seed=seed,
                    record=record,
                    on_task=on_task,
                )
            )
        joined = {
            field.name: torch.cat([getattr(part, field.name) for part in parts])
            for field in fields(Trajectory)
        }
        self._write(entrant.label, key, joined)
        return Trajectories(entrant.label, **joined)

    def ceiling(self, on_task: Callable[[], None] = lambda: None) -> Tensor:
        """Return the accuracy of centralised training on each task, regularisation tuned."""
        key = self._key("centralised")
        cached = self._read("centralised", key)
        if cached is not None:
            for _ in cached["accuracy"]:
                on_task()
            return cached["accuracy"]
        best = Centralised.tuned(self.tuning_tasks(TuneConfig.tasks))
        accuracies = []
        for seed in self.config.seeds:
            for task in self.test_tasks(seed):
                accuracies.append(best.accuracy(task))
                on_task()
        accuracy = torch.tensor(accuracies, dtype=torch.float64)
        self._write("centralised", key, {"accuracy": accuracy})
        return accuracy

    def settled(self, entrant: Entrant) -> Entrant:
        """Return an entrant with all settings that it runs with, as `settings_that_fit` has them."""
        if entrant.method is None:
            return entrant
        tasks = [task for seed in self.config.seeds for task in self.test_tasks(seed)]
        method = method_named(entrant.method)
        settings = {**method.defaults, **entrant.settings}
        return replace(entrant, settings=settings_that_fit(method, settings, tasks))

    def _prepare(self, entrant: Entrant, seed: int) -> tuple[Algorithm, Network, int]:
        if entrant.run is not None:
            try:
                experiment = Experiment.load(entrant.run, self.features)
            except FileError as error:
                raise FileError(
                    f"runs: got {entrant.run}, but it cannot be used with the study's "
                    f"{counted(self.model.features, 'feature')} and {self.model.classes} classes ({error})"
                ) from error
            self._check_run(entrant.run, experiment.config)
            experiment.check_data(RunFolder(Path(entrant.run)))
            shift = experiment.config.network.shift
            network = self.network(seed, replace(self.config.network, shift=shift))
            return experiment.optimizer, network, experiment.optimizer.steps
        if entrant.pretrained is not None:
            optimizer = pretrained.load(entrant.pretrained, argument="pretrained")
            unrolled = optimizer.on(self.model, entrant.rounds, batch_size=entrant.batch_size)
            return unrolled, self.network(seed), unrolled.steps
        if self.config.network.shift == "laplacian":
            raise ValueError(
                f"network.shift: got 'laplacian', which does not average, but {entrant.method} mixes "
                "averages: use 'metropolis' or 'adjacency'"
            )
        method = method_named(str(entrant.method))
        settings = self.settled(entrant).settings
        algorithm = method.make(self.model, self.start, settings)
        return algorithm, self.network(seed), self.config.rounds

    def _check_run(self, run: str | Path, config: ExperimentConfig) -> None:
        """Raise unless a trained optimizer can be compared fairly: same data, start, kind of network."""
        mine = {
            "data": _deciding(self.config.data),
            "initial_mean": 0.0,
            "initial_deviation": self.config.initial_deviation,
            "server": self.config.network.graph.kind == "star",
        }
        theirs = {
            "data": _deciding(config.data),
            "initial_mean": config.optimizer.initial_mean,
            "initial_deviation": config.optimizer.initial_deviation,
            "server": config.network.graph.kind == "star",
        }
        found = differences(theirs, mine)
        if found:
            raise ValueError(
                f"runs: got {run}, which cannot be compared fairly here, as it differs in "
                f"{', '.join(found)}"
            )

    def _key(self, identity: Any) -> dict[str, Any] | None:
        """Return what results depend on; None where that is code of the user's own, which changes."""
        if self.cache is None or identity is None or not self._is_as_configured():
            return None
        study = {**to_dict(self.config), "data": self.digest}
        return {"study": study, "version": VERSION, "entrant": identity}

    def _is_as_configured(self) -> bool:
        """Whether networks, tasks and starts are those that the configuration says."""
        own = type(self) is not Study or self.has_own("network", "test_tasks", "tuning_tasks")
        return not own and self.start == Start(0.0, self.config.deviation)

    def has_own(self, *names: str) -> bool:
        """Whether one of these is a subclass's or was set, instead of what the configuration says."""
        replaced = any(getattr(type(self), name) is not getattr(Study, name) for name in names)
        # Of a property, what it found is there too.
        return replaced or any(callable(getattr(Study, n)) and n in vars(self) for n in names)

    def _identity(self, entrant: Entrant) -> Any:
        """Return what tells an entrant from others; None for a method of the user's own."""
        if entrant.method is not None:
            return self._method_identity(entrant)
        if entrant.pretrained is not None:
            batches = {} if entrant.batch_size is None else {"batch_size": entrant.batch_size}
            optimizer = pretrained.digest(entrant.pretrained, argument="pretrained")
            found = {"pretrained": optimizer, "layer": LAYER_VERSION, "rounds": entrant.rounds}
            return {**found, **batches}
        folder = RunFolder(Path(str(entrant.run)))
        folder.check_best(read_experiment_config(folder))
        with folder.best.open("rb") as file:
            return {"run": hashlib.file_digest(file, "sha256").hexdigest()}

    def _method_identity(self, entrant: Entrant) -> dict[str, Any] | None:
        name = str(entrant.method)
        method, settings = method_named(name), dict(self.settled(entrant).settings)
        own = CATALOGUE.get(name)
        if own is None or type(method) is not Method or method.build is not own.build:
            return None
        return {"method": name, "settings": settings}

    def _file(self, label: str, key: Any) -> Path | None:
        if self.cache is None or key is None:
            return None
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        plain = "".join(c if c.isalnum() else "-" for c in label.lower())
        plain = plain.encode()[:LONGEST_NAME].decode(errors="ignore")
        return self.cache / f"{plain}-{digest}.safetensors"

    def _read(self, label: str, key: Any) -> dict[str, Tensor] | None:
        file = self._file(label, key)
        if file is None or not file.is_file():
            return None
        try:
            if read_metadata(file) == key:
                found = read_all_tensors(file)  # of older versions in float32, with the same values
                return {n: t.double() if t.is_floating_point() else t for n, t in found.items()}
        except FileError:
            file.unlink()
        return None

    def _write(self, label: str, key: Any, tensors: dict[str, Tensor]) -> None:
        file = self._file(label, key)
        if file is not None:
            write_tensors(file, tensors, key)


def _deciding(config: FeatureConfig) -> dict[str, Any]:
    """Return what decides the features: not where files are, nor components that no backbone has."""
    ignored = {"folder", "components"} if config.backbone == "none" else {"folder"}
    return {name: value for name, value in to_dict(config).items() if name not in ignored}
