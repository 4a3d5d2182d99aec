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

    data: FeatureConfig = field(default_factory=FeatureConfig)
    """The data set and its features."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """The federated problems."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The communication network."""
    optimizer: UDGDConfig = field(default_factory=UDGDConfig)
    """The unrolled optimizer."""
    surf: SurfConfig = field(default_factory=SurfConfig)
    """Meta-training."""
    validation_share: float = 0.4
    """Share of the data set's training part that only validation tasks use."""
    seed: int = 0
    """Seed of everything random."""


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

    data: FeatureConfig = field(default_factory=FeatureConfig)
    """The data set and its features."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """The federated problems."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(shift=None))
    """The communication network. Trained optimizers use the shift operator of their training."""
    rounds: int = 200
    """Communication rounds of every classical method."""
    tasks: int = 10
    """Meta-test tasks for each seed."""
    seeds: tuple[int, ...] = (0,)
    """Each seed draws its own graph, tasks, starts and mini-batches."""
    initial_deviation: float | None = None
    """Standard deviation of the initial weights, the same for all methods. The default is 1, the
    paper's; `compare` uses 0 if a pretrained optimizer, which starts at 0, takes part and no run
    does."""
    validation_share: float = 0.4
    """Share of the data set's training part that only validation tasks use."""


@dataclass(frozen=True)
class TuneConfig:
    """Budget of tuning, the same for every method.

    Examples
    --------
    >>> TuneConfig(trials=4).tasks
    3
    """

    trials: int = 12
    """Number of settings that are tried for each method."""
    tasks: int = 3
    """Number of validation tasks on which each setting is tried."""
    rounds: int = 200
    """Communication rounds of each run."""
