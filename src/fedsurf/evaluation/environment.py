"""The environment that methods share: data, tasks, networks, model, start and weighting of agents."""

from dataclasses import replace
from functools import cached_property

from fedsurf.algorithms import Start
from fedsurf.common.checks import check_count
from fedsurf.common.randomness import generator as seeded
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, NetworkConfig, make_network, shift_of
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.distribution import DividedTasks, meta_tasks
from fedsurf.tasks.features import Features, load_features
from fedsurf.tasks.task import Task

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

    Parameters
    ----------
    config : ExperimentConfig or StudyConfig
        Data, tasks, network and start.
    features : Features or None
        The data set's features; None to load those that the configuration names.

    Examples
    --------
    >>> import fedsurf
    >>> environment = Environment(fedsurf.STUDIES["digits"].config)
    >>> environment.test_tasks(seed=0, count=2)[1].agents, environment.network(seed=0).agents
    (30, 30)
    """

    def __init__(
        self, config: ExperimentConfig | StudyConfig, features: Features | None = None
    ) -> None:
        self.config = config
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
