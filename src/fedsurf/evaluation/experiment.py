"""An experiment: data, tasks, network, optimizer and meta-training, from one configuration.

This is where a configuration becomes objects, and where meta-training is run, saved and resumed.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.files import FileError
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import lock_folder
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, make_network
from fedsurf.surf.loop import Observer, RunFolder, meta_train
from fedsurf.surf.training import FixedProblems, MetaTraining
from fedsurf.tasks.distribution import DividedTasks, TaskDistribution, meta_tasks
from fedsurf.tasks.features import Features, fingerprint, fingerprint_difference, load_features
from fedsurf.tasks.task import Task
from fedsurf.unrolled import UDGD


class Experiment:
    """Builds what a configuration names, each part when it is first asked for.

    Parameters
    ----------
    config : ExperimentConfig
        Everything that the optimizer depends on, e.g. of `fedsurf.preset`.
    features : Features or None
        The data set's features, if they are at hand already.
    """

    def __init__(self, config: ExperimentConfig, features: Features | None = None) -> None:
        check_kind(
            config, ExperimentConfig, "config", "an ExperimentConfig, as fedsurf.preset returns"
        )
        self.config = config
        self._given = features

    @cached_property
    def features(self) -> Features:
        """The data set's features."""
        return self._given if self._given is not None else load_features(self.config.data)

    @cached_property
    def tasks(self) -> DividedTasks:
        """Where tasks come from."""
        return meta_tasks(
            self.features,
            self.config.task,
            validation_share=self.config.validation_share,
            seed=self.config.seed,
        )

    @cached_property
    def network(self) -> Network:
        """The network over which all tasks are trained."""
        return make_network(
            self.config.network, self.config.task.agents, seeded(self.config.seed, "graph")
        )

    @cached_property
    def model(self) -> SoftmaxHead:
        """What the agents train."""
        return SoftmaxHead(self.tasks.train.features, self.tasks.train.classes)

    @cached_property
    def optimizer(self) -> UDGD:
        """The unrolled optimizer, its parameters as drawn before meta-training."""
        return UDGD(self.model, self.config.optimizer, seeded(self.config.seed, "parameters"))

    def test_tasks(self, count: int) -> list[Task]:
        """Return the first `count` meta-test tasks."""
        return self._draw(self.tasks.test, "test-task", count)

    def tuning_tasks(self, count: int) -> list[Task]:
        """Return tasks for tuning classical methods, of the validation pool."""
        return self._draw(self.tasks.validation, "tuning-task", count)

    def _draw(self, distribution: TaskDistribution, name: str, count: int) -> list[Task]:
        check_whole(count, "tasks")
        if count < 1:
            raise ValueError(f"tasks: got {count}, but there must be at least 1")
        return [
            distribution.draw(seeded(self.config.seed, name, number)) for number in range(count)
        ]

    def train(
        self, path: str | Path, *, resume: bool = False, observers: Sequence[Observer] = ()
    ) -> dict[str, Any]:
        """Meta-train the optimizer into a run folder, and leave the best one in `self.optimizer`.

        Parameters
        ----------
        path : str or Path
            The run folder. It must be new, unless resuming.
        resume : bool
            Go on from the newest state in the folder, to the same bits as without interruption.
            A finished run is only read.
        observers : sequence of Observer
            Are told what happens.

        Returns
        -------
        dict
            The metadata of the best optimizer: configuration, rule, validation.
        """
        self._check_batches()
        folder = RunFolder(Path(path))
        with lock_folder(folder.path):
            begun = not folder.is_new()
            folder.begin(self.config, resume=resume)
            if begun:
                self.check_data(folder)
            else:
                folder.write_data(fingerprint(self.features))
            surf = self.config.surf
            # Start from θ as drawn, whatever was trained before.
            self.__dict__.pop("optimizer", None)
            problems = FixedProblems(self.tasks, self.network, surf.tasks, self.config.seed)
            training = MetaTraining(self.optimizer, problems, surf, seed=self.config.seed)
            return meta_train(training, folder, self.config, observers)

    @staticmethod
    def load(path: str | Path, features: Features | None = None) -> "Experiment":
        """Load a run: its experiment, with the best meta-trained parameters in the optimizer.

        `features` are used instead of those that the configuration names, which must be what they were
        when the run began.
        """
        folder = RunFolder(Path(path))
        config = read_experiment_config(folder)
        folder.check_best(config)
        experiment = Experiment(config, features)
        if features is None:
            experiment.check_data(folder)
        folder.read_best(experiment.optimizer)
        return experiment

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

    def check_data(self, folder: RunFolder) -> None:
        """Raise where the data is not what the run in a folder began with."""
        stored = folder.read_data()
        found = (
            None if stored is None else fingerprint_difference(stored, fingerprint(self.features))
        )
        if found is not None:
            raise FileError(
                f"{folder.path}: the data, {self.config.data.source}, is not what this run was "
                f"meta-trained on: it differs in {found}"
            )


def read_experiment_config(folder: RunFolder) -> ExperimentConfig:
    """Read the configuration of a run, or raise if it is none of an experiment's."""
    content = folder.read_content()
    if "problems" in content:
        way = "give its optimizer.safetensors to `fedsurf audit`, or to `fedsurf compare --pretrained`"
        if "local_steps" in content["optimizer"]:  # of modules, which no command runs
            way = "fedsurf.load_for_modules reads its optimizer.safetensors"
        raise FileError(
            f"{folder.path}: holds what a pretraining command made, which has no data of its own: {way}"
        )
    return folder.read_config(ExperimentConfig)
