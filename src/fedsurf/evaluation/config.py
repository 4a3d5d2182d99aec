"""Configurations of experiments, studies and tuning; importable without torch, for command lines."""

from dataclasses import dataclass, field

from fedsurf.network.config import NetworkConfig
from fedsurf.surf.config import SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled.config import UDGDConfig

SHOWN_ROUNDS = (10, 20, 50, 100, 200)
"""Rounds after which tables show accuracy."""
PRETRAINED_ROUNDS = (20,)
"""Rounds of pretrained optimizers in a comparison."""


@dataclass(frozen=True)
class ExperimentConfig:
    """Everything that a meta-trained optimizer depends on.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> config = fedsurf.ExperimentConfig(seed=7)
    >>> config.optimizer.layers, config.surf.steps
    (10, 3000)
    >>> replace(config, optimizer=replace(config.optimizer, layers=5)).optimizer.layers
    5
    """

    #: The data set and its features.
    data: FeatureConfig = field(default_factory=FeatureConfig)
    #: The federated problems.
    task: TaskConfig = field(default_factory=TaskConfig)
    #: The communication network.
    network: NetworkConfig = field(default_factory=NetworkConfig)
    #: The unrolled optimizer.
    optimizer: UDGDConfig = field(default_factory=UDGDConfig)
    #: Meta-training.
    surf: SurfConfig = field(default_factory=SurfConfig)
    #: Share of the data set's training part that only validation tasks use.
    validation_share: float = 0.4
    #: Seed of everything random.
    seed: int = 0


@dataclass(frozen=True)
class StudyConfig:
    """Data, tasks, network and budget on which methods are compared.

    Examples
    --------
    >>> import fedsurf
    >>> config = fedsurf.StudyConfig(rounds=50, tasks=3, seeds=(0, 1))
    >>> config.network.graph.kind
    'regular'
    """

    #: The data set and its features.
    data: FeatureConfig = field(default_factory=FeatureConfig)
    #: The federated problems.
    task: TaskConfig = field(default_factory=TaskConfig)
    #: The communication network. Trained optimizers use the shift operator of their training.
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(shift=None))
    #: Communication rounds of every classical method.
    rounds: int = 200
    #: Meta-test tasks for each seed.
    tasks: int = 10
    #: Each seed draws its own graph, tasks, starts and mini-batches.
    seeds: tuple[int, ...] = (0,)
    #: Standard deviation of the initial weights, the same for all methods. The default is 1, the
    #: paper's; `compare` uses 0 if a pretrained optimizer, which starts at 0, takes part and no run
    #: does.
    initial_deviation: float | None = None
    #: Share of the data set's training part that only validation tasks use.
    validation_share: float = 0.4

    @staticmethod
    def of(config: ExperimentConfig) -> "StudyConfig":
        """Return the study of an experiment: its data, tasks, network, start and seed."""
        return StudyConfig(
            data=config.data,
            task=config.task,
            network=config.network,
            seeds=(config.seed,),
            initial_deviation=config.optimizer.initial_deviation,
            validation_share=config.validation_share,
        )


@dataclass(frozen=True)
class TuneConfig:
    """Budget of tuning, the same for every method.

    Examples
    --------
    >>> TuneConfig(trials=4).tasks
    3
    """

    #: Number of settings that are tried for each method.
    trials: int = 12
    #: Number of validation tasks on which each setting is tried.
    tasks: int = 3
    #: Communication rounds of each run.
    rounds: int = 200
