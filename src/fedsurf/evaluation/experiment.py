"""An experiment: an environment, an unrolled optimizer, and its meta-training into a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedsurf.algorithms import Start
from fedsurf.common.checks import check_kind
from fedsurf.common.configuration import differences
from fedsurf.common.devices import CPU
from fedsurf.common.files import FileError, read_json, reading
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import lock_folder, write_json
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.study import Environment
from fedsurf.evaluation.tuning import deciding_features
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, NetworkConfig
from fedsurf.surf.loop import Observer, RunFolder, meta_train
from fedsurf.surf.training import FixedProblems, MetaTraining
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.distribution import DividedTasks
from fedsurf.tasks.features import Features, fingerprint, fingerprint_difference
from fedsurf.tasks.task import Task
from fedsurf.unrolled import UDGD


class Experiment:
    """An unrolled optimizer in the environment of its configuration; parts are built on first use.

    `features` takes the place of those that the configuration names. Meta-training and runs compute on
    `device`: "auto", "cpu", "cuda", "cuda:1" or "mps".

    Examples
    --------
    >>> from dataclasses import replace
    >>> from tempfile import TemporaryDirectory
    >>> import fedsurf
    >>> config = fedsurf.preset("smoke")
    >>> config = replace(config, surf=replace(config.surf, steps=2, validation_tasks=2))
    >>> with TemporaryDirectory() as folder:
    ...     best = fedsurf.Experiment(config).train(f"{folder}/run")
    ...     loaded = fedsurf.Experiment.load(f"{folder}/run")
    >>> best["validation"]["step"], loaded.optimizer.steps
    (2, 3)
    """

    def __init__(
        self,
        config: ExperimentConfig,
        features: Features | None = None,
        device: str | torch.device = CPU,
    ) -> None:
        check_kind(
            config, ExperimentConfig, "config", "an ExperimentConfig, as fedsurf.preset returns"
        )
        self.config = config
        self.environment = Environment(config, features, device)

    @property
    def features(self) -> Features:
        """The data set's features."""
        return self.environment.features

    @property
    def tasks(self) -> DividedTasks:
        """The task distributions."""
        return self.environment.tasks

    @property
    def model(self) -> SoftmaxHead:
        """The agents' model."""
        return self.environment.model

    @cached_property
    def network(self) -> Network:
        """The network of all tasks."""
        return self.environment.network(self.config.seed)

    @cached_property
    def optimizer(self) -> UDGD:
        """The unrolled optimizer; before meta-training its parameters are random."""
        drawn = UDGD(self.model, self.config.optimizer, seeded(self.config.seed, "parameters"))
        return drawn.to(self.environment.device)

    def test_tasks(self, count: int) -> list[Task]:
        """Return the first `count` meta-test tasks."""
        return self.environment.test_tasks(self.config.seed, count)

    def train(
        self, path: str | Path, *, resume: bool = False, observers: Sequence[Observer] = ()
    ) -> dict[str, Any]:
        """Meta-train the optimizer into a run folder, and leave the best one in `self.optimizer`.

        The folder must be new, unless resuming: this continues from the newest state in it, to the same
        bits as without interruption, and only reads a finished run. Returns the metadata of the best
        optimizer: configuration, rule and validation.
        """
        self._check_batches()
        folder = RunFolder(Path(path))
        with lock_folder(folder.path):
            begun = not folder.is_new()
            folder.begin(self.config, resume=resume)
            if begun:
                self.check_data(folder)
            else:
                write_json(folder.data, fingerprint(self.features))
            surf = self.config.surf
            # Start from θ as drawn, even if this object was trained before.
            self.__dict__.pop("optimizer", None)
            problems = FixedProblems(self.tasks, self.network, surf.tasks, self.config.seed)
            training = MetaTraining(self.optimizer, problems, surf, seed=self.config.seed)
            return meta_train(training, folder, self.config, observers)

    @staticmethod
    def load(
        path: str | Path,
        features: Features | None = None,
        device: str | torch.device = CPU,
    ) -> Experiment:
        """Load a run, with the best meta-trained parameters in the optimizer.

        Without `features`, those that the configuration names are loaded, which must not have changed since
        the run began.
        """
        folder = RunFolder(Path(path))
        experiment = Experiment(_read_config(folder), features, device)
        if features is None:
            experiment.check_data(folder)
        folder.read_best(experiment.optimizer)
        return experiment

    def check_data(self, folder: RunFolder) -> None:
        """Raise where the data is not that with which the run in a folder began."""
        stored, own = read_json(folder.data), fingerprint(self.features)
        with reading(folder.data, "the fingerprint of a run's data"):
            found = fingerprint_difference(stored, own)
        if found is not None:
            raise FileError(
                f"{folder.path}: the data, {self.config.data.source}, is not what this run was "
                f"meta-trained on: it differs in {found}"
            )

    def _check_batches(self) -> None:
        """Raise where an agent of any task may hold too few examples for a mini-batch."""
        task, surf = self.config.task, self.config.surf
        fewest = task.fewest_train_examples or task.train_examples
        sizes = {"batch_size": self.config.optimizer.batch_size}
        if surf.descent.gradient_examples == "mini-batch":
            sizes["gradient_batch_size"] = surf.gradient_batch_size
        for name, size in sizes.items():
            if size > fewest > 0:
                raise ValueError(
                    f"{name}: got {size}, but it must be between 1 and {fewest}, the number of "
                    "examples of the agent with the fewest"
                )


def run_digest(run: str | Path) -> str:
    """Return the checksum of a run's best optimizer."""
    folder = RunFolder(Path(run))
    _read_config(folder)
    with folder.best.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_optimizer(run: str | Path, model: SoftmaxHead) -> UDGD:
    """Return a run's best optimizer, for a model of the sizes that it was trained for; data is not read."""
    folder = RunFolder(Path(run))
    config = _read_config(folder)
    optimizer = UDGD(model, config.optimizer, seeded(config.seed, "parameters"))
    folder.read_best(optimizer)
    return optimizer.requires_grad_(False)


def read_run_config(run: str | Path) -> ExperimentConfig:
    """Return the configuration of a run."""
    return _read_config(RunFolder(Path(run)))


def load_comparable(
    run: str | Path, environment: Environment, network: NetworkConfig
) -> Experiment:
    """Load a run; raise unless its data, start and kind of network are those of a study."""
    folder = RunFolder(Path(run))
    experiment = Experiment(_read_config(folder), environment.features, environment.device)

    def deciding(data: FeatureConfig, start: Start, graph: GraphConfig) -> dict[str, Any]:
        names = {"initial_mean": start.mean, "initial_deviation": start.deviation}
        return {"data": deciding_features(data), **names, "server": graph.kind == "star"}

    own = experiment.config
    found = differences(
        deciding(own.data, experiment.environment.start, own.network.graph),
        deciding(environment.config.data, environment.start, network.graph),
    )
    if found:
        raise ValueError(
            f"runs: got {run}, which cannot be compared fairly here, as it differs in "
            f"{', '.join(found)}"
        )
    experiment.check_data(folder)
    folder.read_best(experiment.optimizer)
    return experiment


def _read_config(folder: RunFolder) -> ExperimentConfig:
    """Read the configuration of a run and of its best optimizer, which must agree."""
    if "problems" in folder.read_content():
        raise FileError(
            f"{folder.path}: made by a pretraining command, so it stores no data; use its "
            "optimizer.safetensors instead, as a pretrained optimizer"
        )
    config = folder.read_config(ExperimentConfig)
    folder.check_best(config)
    sizes = {
        name: getattr(config.optimizer, name) for name in ("layers", "filter_order", "batch_size")
    }
    for name, size in sizes.items():
        if 4 * size > folder.best.stat().st_size:  # before anything of this size is built
            raise FileError(f"{folder.best}: {name}: got {size}, but the file is too small")
    return config
