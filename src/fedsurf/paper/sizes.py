"""The three sizes at which the figures are made: to see that it runs, on a desktop, as in the paper."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig, TuneConfig
from fedsurf.evaluation.presets import preset
from fedsurf.network import FaultConfig, GraphConfig, NetworkConfig
from fedsurf.surf import SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled.config import UDGDConfig

SizeName = Literal["smoke", "desktop", "paper"]


@dataclass(frozen=True)
class Size:
    """What the figures are made of at one size. All other configurations follow from these."""

    name: SizeName
    """What the command line calls it."""
    description: str
    """One sentence."""
    regular: ExperimentConfig
    """U-DGD on CIFAR-10 over a 3-regular graph."""
    random: NetworkConfig
    """The random graph."""
    star: ExperimentConfig
    """U-DGD on CIFAR-10 through a server."""
    ablation: ExperimentConfig
    """U-DGD on MNIST over a 3-regular graph, with the descending constraints."""
    rounds: int
    """Rounds of the classical methods over graphs."""
    star_rounds: int
    """Rounds of the classical methods through a server."""
    star_early: int
    """Rounds after which they are judged there."""
    tasks: int
    """Meta-test tasks."""
    audit_tasks: int
    """Meta-test tasks of each audit."""
    audit_agents: tuple[int, ...] | None
    """Other numbers of agents in audits; half and twice as many where None."""
    trials: int
    """Settings of each classical method that tuning tries."""
    tuning_tasks: int
    """Validation tasks on which it tries them."""
    alphas: tuple[float, ...] = (1.0, 0.7, 0.3)
    """How heterogeneous the agents are; the least first."""
    stale: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    """The numbers of asynchronous agents."""
    stale_judged: tuple[int, ...] = (10, 50)
    """Those at which the claim is judged: the paper's largest, and beyond."""

    def with_network(self, network: NetworkConfig) -> ExperimentConfig:
        """Return the optimizer for CIFAR-10 over another graph."""
        return replace(self.regular, network=network)

    def at_alpha(self, alpha: float) -> ExperimentConfig:
        """Return the optimizer for CIFAR-10 whose meta-training has agents as heterogeneous as this."""
        task = replace(self.regular.task, partition="dirichlet", alpha=alpha)
        return replace(self.regular, task=task)

    def without_constraints(self) -> ExperimentConfig:
        """Return the optimizer of the ablation without the descending constraints."""
        surf = self.ablation.surf
        descent = replace(surf.descent, constrained=False)
        return replace(self.ablation, surf=replace(surf, descent=descent))

    def study_of(self, config: ExperimentConfig, stale: int = 0) -> StudyConfig:
        """Return the study on whose tasks an optimizer and its rivals are tried.

        Classical methods over a graph mix by Metropolis–Hastings weights; an optimizer keeps the
        shift operator of its meta-training.
        """
        server = config.network.graph.kind == "star"
        network = config.network if server else replace(config.network, shift="metropolis")
        if stale:
            network = replace(network, faults=FaultConfig(stale=stale))
        return StudyConfig(
            data=config.data,
            task=config.task,
            network=network,
            rounds=self.star_rounds if server else self.rounds,
            tasks=self.tasks,
            seeds=(config.seed,),
            initial_deviation=config.optimizer.initial_deviation,
            validation_share=config.validation_share,
        )

    def budget_of(self, study: StudyConfig) -> TuneConfig:
        """Return what tuning gives to each method: through a server, the rounds that are judged."""
        rounds = self.star_early if study.network.graph.kind == "star" else study.rounds
        return TuneConfig(self.trials, self.tuning_tasks, rounds)

    def with_features(self, file: Path | None, mnist: Path | None) -> "Size":
        """Return the same with ready-made features of CIFAR-10 and of MNIST in the place of images."""
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
_SMOKE_SURF = replace(_SMOKE.surf, steps=40, validate_every=20, validation_tasks=3)
_SMOKE_REGULAR = replace(
    _SMOKE,
    task=TaskConfig(agents=12, train_examples=12, test_examples=4, replacement=True),
    surf=_SMOKE_SURF,
)

_MNIST = preset("mnist")
_DESKTOP_SURF: SurfConfig = replace(_MNIST.surf, steps=2500)
_CIFAR = FeatureConfig(source="cifar10", backbone="efficientnet-lite0", components=32)
_SERVER = NetworkConfig(graph=GraphConfig(kind="star"), reporting=10)
_DESKTOP_REGULAR = replace(_MNIST, data=_CIFAR, surf=_DESKTOP_SURF)

# A step takes seconds, all of them hours: the learning curve should show soon how it goes.
_PAPER_REGULAR = replace(
    preset("paper-regular"), surf=replace(preset("paper-regular").surf, validate_every=25)
)
_PAPER_STAR = replace(
    preset("paper-star"), surf=replace(preset("paper-star").surf, validate_every=25)
)
_PAPER_MNIST = FeatureConfig(source="mnist", backbone="resnet18", components=None)

SIZES: dict[SizeName, Size] = {
    "smoke": Size(
        "smoke",
        "digits in the place of both data sets, 12 agents, 3 layers: seconds, to see that it runs",
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
        star=replace(_DESKTOP_REGULAR, network=_SERVER, optimizer=UDGDConfig(filter_order=1)),
        ablation=_MNIST,
        rounds=200,
        star_rounds=50,
        star_early=25,
        tasks=30,
        audit_tasks=10,
        audit_agents=None,
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
        rounds=200,
        star_rounds=50,
        star_early=25,
        tasks=30,
        audit_tasks=10,
        audit_agents=None,
        trials=12,
        tuning_tasks=3,
    ),
}


def size_named(name: str) -> Size:
    """Return the size of that name."""
    for size in SIZES.values():
        if size.name == name:
            return size
    raise ValueError(f"preset: got {name!r}, but it must be one of {', '.join(SIZES)}")
