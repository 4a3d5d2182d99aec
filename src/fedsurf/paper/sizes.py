"""The sizes at which the figures are made (smoke, desktop, paper), and the settings that the paper gives."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig, TuneConfig
from fedsurf.evaluation.presets import preset
from fedsurf.network.config import FaultConfig, GraphConfig, NetworkConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled.config import UDGDConfig

SizeName = Literal["smoke", "desktop", "paper"]

GRAPH_METHODS = ("dgd", "dsgd", "dfedavgm")
"""Classical methods that the paper compares with over graphs."""
SERVER_METHODS = ("fedavg", "scaffold", "moon", "fedprox", "feddyn")
"""Classical methods that the paper compares with through a server."""
PAPER_SETTINGS: dict[str, dict[str, int | float | str | None]] = {
    "dgd": {"step_size": 1e3, "batch_size": 10},
    "dsgd": {"step_size": 1e4},
    "dfedavgm": {"step_size": 1e2, "local_steps": 6, "batch_size": 10},
}
"""Settings that the paper gives; it gives none of the server methods."""
SETTING_SOURCES = {
    "dgd": "steps of 10³ and mini-batches of 10, as printed in the paper",
    "dsgd": "steps of 10⁴ and single examples, as printed in the paper",
    "dfedavgm": (
        "6 local steps of 10², as printed in the paper, which does not give the momentum (here 0.9) "
        "nor the mini-batches (here 10)"
    ),
}
"""The part of a method's settings that the paper gives, in words."""
RESNET_FEATURES = 512
"""Features of an image without principal components."""


@dataclass(frozen=True)
class Size:
    """Configurations and counts of one size; all other configurations follow from these."""

    name: SizeName
    description: str
    regular: ExperimentConfig
    """U-DGD on CIFAR-10 over a 3-regular graph."""
    random: NetworkConfig
    """The random graph."""
    star: ExperimentConfig
    """U-DGD on CIFAR-10 through a server."""
    ablation: ExperimentConfig
    """U-DGD on MNIST over a 3-regular graph, with the descending constraints."""
    rounds: int = 200
    """Rounds of the classical methods over graphs."""
    star_rounds: int = 50
    """Rounds of the classical methods through a server."""
    star_early: int = 25
    """Rounds through a server after which the classical methods are judged."""
    tasks: int = 30
    """Meta-test tasks."""
    audit_tasks: int = 10
    """Meta-test tasks of each audit."""
    audit_agents: tuple[int, ...] | None = None
    """Other numbers of agents in audits; None: half and twice as many."""
    trials: int = 12
    """Settings of each classical method that tuning tries."""
    tuning_tasks: int = 3
    """Validation tasks on which tuning tries them."""
    alphas: tuple[float, ...] = (1.0, 0.7, 0.3)
    """Dirichlet parameters of the heterogeneous agents, the least heterogeneous first."""
    stale: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    """Numbers of asynchronous agents."""
    stale_judged: tuple[int, ...] = (10, 50)
    """Numbers of asynchronous agents at which the claim is judged."""

    def at_alpha(self, alpha: float) -> ExperimentConfig:
        """Return the optimizer for CIFAR-10 on agents of this heterogeneity."""
        task = replace(self.regular.task, partition="dirichlet", alpha=alpha)
        return replace(self.regular, task=task)

    def without_constraints(self) -> ExperimentConfig:
        """Return the optimizer of the ablation without the descending constraints."""
        descent = replace(self.ablation.surf.descent, constrained=False)
        return replace(self.ablation, surf=replace(self.ablation.surf, descent=descent))

    def study_of(self, config: ExperimentConfig, stale: int = 0) -> StudyConfig:
        """Return the study of an optimizer and the classical methods.

        Over a graph, these mix by Metropolis–Hastings weights; the optimizer keeps its own shift operator.
        """
        server = config.network.graph.kind == "star"
        network = config.network if server else replace(config.network, shift="metropolis")
        if stale:
            network = replace(network, faults=FaultConfig(stale=stale))
        rounds = self.star_rounds if server else self.rounds
        return replace(StudyConfig.of(config), network=network, rounds=rounds, tasks=self.tasks)

    def budget_of(self, study: StudyConfig) -> TuneConfig:
        """Return the tuning budget of each method, with the number of rounds that is judged."""
        rounds = self.star_early if study.network.graph.kind == "star" else study.rounds
        return TuneConfig(self.trials, self.tuning_tasks, rounds)

    def with_features(self, file: Path | None, mnist: Path | None) -> "Size":
        """Return the size with features from .npz files instead of CIFAR-10 and MNIST."""
        size = self
        if file is not None:
            data = _from_file(file, self.regular.data.components)
            regular, star = (replace(one, data=data) for one in (self.regular, self.star))
            size = replace(size, regular=regular, star=star)
        if mnist is not None:
            data = _from_file(mnist, self.ablation.data.components)
            size = replace(size, ablation=replace(self.ablation, data=data))
        return size


def _from_file(file: Path, components: int | None) -> FeatureConfig:
    if file.suffix != ".npz":
        raise ValueError(f"features: got {str(file)!r}, but it must be an .npz file")
    if not file.is_file():
        raise ValueError(f"features: got {str(file)!r}, but there is no such file")
    backbone = "none" if components is None else "pca"
    return FeatureConfig(source=str(file.resolve()), backbone=backbone, components=components)


_SMOKE = preset("smoke")
_SMOKE_REGULAR = replace(
    _SMOKE,
    task=TaskConfig(agents=12, train_examples=12, test_examples=4, replacement=True),
    surf=replace(_SMOKE.surf, steps=40, validate_every=20, validation_tasks=3),
)

_MNIST, _STAR = preset("mnist"), preset("star")
_CIFAR = FeatureConfig(source="cifar10", backbone="efficientnet-lite0", components=32)
_DESKTOP_REGULAR = replace(_MNIST, data=_CIFAR, surf=replace(_MNIST.surf, steps=2500))

# Meta-training takes hours, so validations are frequent: the learning curve shows progress early.
_PAPER_REGULAR, _PAPER_STAR = (
    replace(config, surf=replace(config.surf, validate_every=25))
    for config in (preset("paper-regular"), preset("paper-star"))
)
_PAPER_MNIST = FeatureConfig(source="mnist", backbone="resnet18", components=None)

SIZES: dict[SizeName, Size] = {
    "smoke": Size(
        "smoke",
        "digits instead of both data sets, 12 agents, 3 layers; takes seconds, to test that it runs",
        regular=_SMOKE_REGULAR,
        random=NetworkConfig(graph=GraphConfig(kind="erdos-renyi", probability=0.4)),
        star=replace(
            _SMOKE_REGULAR,
            network=NetworkConfig(graph=GraphConfig(kind="star"), reporting=4),
            optimizer=UDGDConfig(layers=3, filter_order=1),
        ),
        ablation=_SMOKE_REGULAR,
        rounds=12,
        star_rounds=8,
        star_early=6,
        tasks=3,
        audit_tasks=2,
        audit_agents=(),
        trials=2,
        tuning_tasks=1,
        alphas=(1.0, 0.3),
        stale=(0, 2, 6),
        stale_judged=(2, 6),
    ),
    "desktop": Size(
        "desktop",
        "CIFAR-10 and MNIST on 32 principal components, 100 agents, 30 meta-test tasks",
        regular=_DESKTOP_REGULAR,
        random=NetworkConfig(graph=GraphConfig(kind="erdos-renyi", probability=0.1)),
        star=replace(_DESKTOP_REGULAR, network=_STAR.network, optimizer=_STAR.optimizer),
        ablation=_MNIST,
        trials=8,
        tuning_tasks=2,
    ),
    "paper": Size(
        "paper",
        "512 features, 531 million parameters, the paper's meta-training",
        regular=_PAPER_REGULAR,
        random=preset("paper-random").network,
        star=_PAPER_STAR,
        ablation=replace(_PAPER_REGULAR, data=_PAPER_MNIST),
    ),
}


def parameters_of(config: ExperimentConfig) -> int:
    """Return the number of parameters of a U-DGD optimizer for 10 classes."""
    features = RESNET_FEATURES if config.data.components is None else config.data.components
    weights = 10 * (features + 1)
    inputs = weights + config.optimizer.batch_size * (features + 10)
    layer = weights * (inputs + 1) + config.optimizer.filter_order + 1
    return config.optimizer.layers * layer
