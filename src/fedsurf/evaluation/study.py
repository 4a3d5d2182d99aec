"""A study: methods and trained optimizers in one environment of data, tasks, networks and start.

All entrants get the same tasks, W_0, graph and metric. Results are cached by what they depend on, so
adding a method computes only that method.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsurf.algorithms import Algorithm, Start
from fedsurf.algorithms.centralised import Centralised
from fedsurf.common.cache import Cache
from fedsurf.common.checks import check_count, check_kind, check_not_negative
from fedsurf.common.devices import CPU, device_named
from fedsurf.common.randomness import generator as seeded
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig, TuneConfig
from fedsurf.evaluation.methods import METHODS, Entrant, Method, Settings, method_named
from fedsurf.evaluation.run import FIELDS, Trajectories, recorded_steps, run_all
from fedsurf.evaluation.tuning import Tuned, candidates, try_settings
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, NetworkConfig, make_network, shift_of
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.dataset import checksum
from fedsurf.tasks.distribution import DividedTasks, meta_tasks
from fedsurf.tasks.features import Features, load_features
from fedsurf.tasks.task import Task

RESULTS_VERSION = 2
"""Version of the code behind cached results; raise it when a change of code changes them."""

PAPER_DEVIATION = 1.0
"""Standard deviation of the initial weights in the paper."""


def resolved(config: StudyConfig) -> StudyConfig:
    """Return a study with its defaults for shift operator and start filled in."""
    start = config.initial_deviation
    deviation = PAPER_DEVIATION if start is None else start
    network = replace(config.network, shift=shift_of(config.network))
    return replace(config, network=network, initial_deviation=deviation)


class Environment:
    """The objects that a configuration describes, each built when it is first used.

    `features` takes the place of those that the configuration names. Tasks are made on the CPU, and
    algorithms run on `device`: "auto", "cpu", "cuda", "cuda:1" or "mps".

    Examples
    --------
    >>> import fedsurf
    >>> environment = Environment(fedsurf.STUDIES["digits"].config)
    >>> environment.test_tasks(seed=0, count=2)[1].agents, environment.network(seed=0).agents
    (30, 30)
    """

    def __init__(
        self,
        config: ExperimentConfig | StudyConfig,
        features: Features | None = None,
        device: str | torch.device = CPU,
    ) -> None:
        self.config = config
        self.device = device_named(device)
        self._features = features
        self._tasks: dict[int, list[Task]] = {}
        self.weighting: AgentWeighting = "uniform"
        if isinstance(config, ExperimentConfig):
            self.seed = config.seed
            self.start = Start(config.optimizer.initial_mean, config.optimizer.initial_deviation)
            self.weighting = config.surf.weighting
            self._streams = ("test-task", "tuning-task")
        else:
            self.config = config = resolved(config)
            self.seed = 0
            self.start = Start(0.0, config.initial_deviation or 0.0)
            self._streams = ("study-task", "study-tuning")

    @cached_property
    def features(self) -> Features:
        """The data set's features."""
        return load_features(self.config.data) if self._features is None else self._features

    @cached_property
    def tasks(self) -> DividedTasks:
        """The task distributions."""
        share = self.config.validation_share
        return meta_tasks(self.features, self.config.task, validation_share=share, seed=self.seed)

    @cached_property
    def model(self) -> SoftmaxHead:
        """The agents' model."""
        return SoftmaxHead(self.tasks.test.features, self.tasks.test.classes)

    def network(self, seed: int, config: NetworkConfig | None = None) -> Network:
        """Return a seed's network; `config` for another one on the same random draws."""
        config = self.config.network if config is None else config
        return make_network(config, self.config.task.agents, seeded(seed, "graph"))

    def test_tasks(self, seed: int, count: int) -> list[Task]:
        """Return the first `count` meta-test tasks of a seed."""
        check_count(count, "tasks")
        known, draw = self._tasks.setdefault(seed, []), self.tasks.test.draw
        known += [draw(seeded(seed, self._streams[0], n)) for n in range(len(known), count)]
        return known[:count]

    def tuning_tasks(self, count: int) -> list[Task]:
        """Return validation tasks for tuning; no example of them is in a meta-test task."""
        check_count(count, "tasks")
        draw = self.tasks.validation.draw
        return [draw(seeded(self.seed, self._streams[1], number)) for number in range(count)]


class Study:
    """Runs entrants on the same tasks.

    Results are kept in the folder `cache`, if given, and not computed again. `features` take the place of
    those that the configuration names. For custom tasks or networks, give an `environment` that overrides
    them; then nothing is cached. Runs compute on `device`: "auto", "cpu", "cuda", "cuda:1" or "mps".

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> study = fedsurf.Study(replace(fedsurf.STUDIES["digits"].config, tasks=2, rounds=5))
    >>> study.run(fedsurf.Entrant("DGD", "dgd")).pooled_accuracy.shape
    torch.Size([2, 6])
    >>> study.ceiling().shape
    torch.Size([2])
    """

    def __init__(
        self,
        config: StudyConfig,
        cache: str | Path | None = None,
        features: Features | None = None,
        *,
        environment: Environment | None = None,
        device: str | torch.device = CPU,
    ) -> None:
        check_kind(config, StudyConfig, "config", "a StudyConfig")
        check_kind(config.network, NetworkConfig, "config.network", "a NetworkConfig")
        check_count(config.rounds, "rounds")
        check_count(config.tasks, "tasks")
        check_kind(config.seeds, tuple | list, "seeds", "a tuple of whole numbers")
        if not config.seeds or len(set(config.seeds)) < len(config.seeds):
            raise ValueError(
                f"seeds: got {config.seeds}, but there must be at least one, and no two equal ones"
            )
        if config.initial_deviation is not None:
            check_not_negative(config.initial_deviation, "initial_deviation")
        self.config = resolved(config)
        self.environment = environment or Environment(self.config, features, device)
        self.is_custom = environment is not None
        """Whether tasks and networks may be others than those of the configuration."""
        self._cache = Cache(None if cache is None or self.is_custom else Path(cache))

    @property
    def features(self) -> Features:
        """The data set's features."""
        return self.environment.features

    @property
    def model(self) -> SoftmaxHead:
        """The agents' model, a softmax head."""
        return self.environment.model

    def test_tasks(self, seed: int) -> list[Task]:
        """Return a seed's meta-test tasks."""
        return self.environment.test_tasks(seed, self.config.tasks)

    def tuning_tasks(self, count: int) -> list[Task]:
        """Return validation tasks; no example of them is in a meta-test task."""
        return self.environment.tuning_tasks(count)

    def network(self, seed: int, config: NetworkConfig | None = None) -> Network:
        """Return a seed's network, the same graph for every entrant; `config` for another network."""
        return self.environment.network(seed, self.config.network if config is None else config)

    def methods(self, names: Sequence[str] = ("all",)) -> list[Method]:
        """Return the methods of these names; "all" stands for all that run on the network."""
        check_kind(names, tuple | list, "names", "a list of names")
        network = self.network(self.config.seeds[0])
        found: dict[str, Method] = {}
        for name in names:
            if name == "all":
                found |= {key: method for key, method in METHODS.items() if method.fits(network)}
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
        budget: TuneConfig,
        on_trial: Callable[[], None] = lambda: None,
        *,
        settings: Sequence[Settings] | None = None,
    ) -> Tuned:
        """Tune a method on validation tasks.

        By default it tries settings from the method's ranges, scored after a tenth and after all of the
        rounds; a grid of `settings` is scored after all rounds only.
        """
        tried = candidates(method, budget) if settings is None else settings
        early = [] if settings is not None else [max(1, budget.rounds // 10)]
        return try_settings(
            method,
            tried,
            self.model,
            self.environment.start,
            self.tuning_tasks(budget.tasks),
            self.network(self.config.seeds[0]),
            [*early, budget.rounds],
            seed=self.environment.seed,
            weighting=self.environment.weighting,
            device=self.environment.device,
            on_trial=on_trial,
        )

    def run(self, entrant: Entrant, on_task: Callable[[], None] = lambda: None) -> Trajectories:
        """Run an entrant on all tasks of all seeds, or read its results from the cache."""
        entrant = self.resolved(entrant)
        identity = entrant.identity()
        cache = Cache(None) if identity is None else self._cache
        content = self._content(identity)
        stored = cache.read(entrant.label, content)
        if stored is not None:
            for _ in stored["loss"]:
                on_task()
            return Trajectories(entrant.label, **stored)
        config = self.config
        algorithm, steps, network = entrant.prepare(self.environment, config.network, config.rounds)
        record = None if entrant.method is None else recorded_steps(steps)
        runs = self.run_algorithm(algorithm, steps, network, record=record, on_task=on_task)
        cache.write(entrant.label, content, {name: getattr(runs, name) for name in FIELDS})
        return replace(runs, name=entrant.label)

    def run_algorithm(
        self,
        algorithm: Algorithm,
        steps: int,
        network: NetworkConfig | None = None,
        *,
        record: Sequence[int] | None = None,
        on_task: Callable[[], None] = lambda: None,
    ) -> Trajectories:
        """Run any algorithm on all tasks of all seeds, over the study's network or another one."""
        parts = [
            run_all(
                algorithm,
                self.test_tasks(seed),
                self.network(seed, network),
                steps,
                seed=seed,
                weighting=self.environment.weighting,
                record=record,
                device=self.environment.device,
                on_task=on_task,
            )
            for seed in self.config.seeds
        ]
        return Trajectories.join(algorithm.name, parts)

    def ceiling(
        self, on_task: Callable[[], None] = lambda: None, method: Centralised | None = None
    ) -> Tensor:
        """Return the accuracy of centralised training on each task.

        `method` is tuned centralised training; None tunes it on three validation tasks.
        """
        content = self._content({"centralised": None if method is None else vars(method)})
        stored = self._cache.read("centralised", content)
        if stored is None:
            best = method or Centralised.tuned(self.tuning_tasks(TuneConfig.tasks))
            accuracies = []
            for seed in self.config.seeds:
                for task in self.test_tasks(seed):
                    accuracies.append(best.accuracy(task))
                    on_task()
            stored = {"accuracy": torch.tensor(accuracies, dtype=torch.float64)}
            self._cache.write("centralised", content, stored)
        else:
            for _ in stored["accuracy"]:
                on_task()
        return stored["accuracy"]

    def resolved(self, entrant: Entrant) -> Entrant:
        """Return an entrant with all settings of its method, such that they fit the tasks."""
        return entrant.resolved(
            [task for seed in self.config.seeds for task in self.test_tasks(seed)]
        )

    @cached_property
    def _data(self) -> str:
        """The checksum of the features."""
        data = self.features
        return checksum(
            *(a.numpy() for a in (data.train_x, data.train_y, data.test_x, data.test_y))
        )

    def _content(self, entrant: Any) -> dict[str, Any]:
        """Return everything that an entrant's results depend on."""
        if self._cache.folder is None:
            return {}
        return {
            "study": self.config,
            "data": self._data,
            "version": RESULTS_VERSION,
            "device": str(self.environment.device),
            "entrant": entrant,
        }
