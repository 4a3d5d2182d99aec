"""Named configurations. Every field of each can be overridden on the command line."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.network.config import GraphConfig, NetworkConfig
from fedsurf.surf.config import DescentConfig, SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled.config import UDGDConfig

Config = TypeVar("Config")


@dataclass(frozen=True)
class Preset(Generic[Config]):
    """A configuration with the sentence that describes it."""

    description: str
    config: Config


_SERVER = NetworkConfig(graph=GraphConfig(kind="star"), reporting=10)
_SERVER_OPTIMIZER = UDGDConfig(filter_order=1)

_DESCENDING = SurfConfig(
    steps=2000,
    learning_rate=1e-3,
    final_learning_rate=1e-5,
    dual_rate=0.1,
    penalty=2.0,
    descent=DescentConfig(epsilon=0.1, norm="root-mean-square"),
    validate_every=200,
    validation_tasks=30,
)


def _pca(source: str, components: int = 32) -> FeatureConfig:
    """Return principal components of a data source."""
    return FeatureConfig(source=source, backbone="pca", components=components)


_DEMO = ExperimentConfig(data=_pca("fashion-mnist-mini"), surf=_DESCENDING)

_PAPER = ExperimentConfig(
    data=FeatureConfig(source="cifar10", backbone="resnet18", components=None),
    surf=SurfConfig(loss_examples=10),
)

_LONG = replace(_DESCENDING, steps=3000, validate_every=250)

PRESETS: dict[str, Preset[ExperimentConfig]] = {
    "demo": Preset(
        "Embedded Fashion-MNIST, 32 PCA features, 100 agents on a 3-regular graph; a few minutes.",
        _DEMO,
    ),
    "fashion-mnist": Preset(
        "Fashion-MNIST, 32 PCA features, 100 agents on a 3-regular graph; minutes.",
        replace(_DEMO, data=_pca("fashion-mnist"), surf=_LONG),
    ),
    "mnist": Preset(
        "MNIST, 32 PCA features, 100 agents on a 3-regular graph; minutes.",
        replace(_DEMO, data=_pca("mnist"), surf=_LONG),
    ),
    "star": Preset(
        "Embedded Fashion-MNIST through a server, 10 of 100 agents reporting in each round.",
        replace(_DEMO, network=_SERVER, optimizer=_SERVER_OPTIMIZER),
    ),
    "paper-regular": Preset(
        "The paper's: CIFAR-10, ResNet-18's 512 features, 3-regular graph; 531 million parameters.",
        _PAPER,
    ),
    "paper-random": Preset(
        "The paper's, on an Erdős-Rényi graph with p = 0.1.",
        replace(
            _PAPER, network=NetworkConfig(graph=GraphConfig(kind="erdos-renyi", probability=0.1))
        ),
    ),
    "paper-star": Preset(
        "The paper's, through a server, 10 of 100 agents reporting in each round.",
        replace(
            _PAPER,
            network=_SERVER,
            optimizer=_SERVER_OPTIMIZER,
            surf=SurfConfig(
                loss_examples=10, learning_rate=1e-3, descent=DescentConfig(epsilon=0.1)
            ),
        ),
    ),
    "smoke": Preset(
        "Digits, 8 features, 12 agents, 3 layers: seconds, to see that everything runs.",
        ExperimentConfig(
            data=_pca("digits", 8),
            task=TaskConfig(agents=12, train_examples=20, test_examples=5),
            optimizer=UDGDConfig(layers=3),
            surf=replace(_DESCENDING, steps=60, tasks=20, validate_every=20, validation_tasks=4),
        ),
    ),
}


def preset(name: str) -> ExperimentConfig:
    """Return the configuration of a name that `fedsurf train --help` lists, such as "demo".

    Examples
    --------
    >>> import fedsurf
    >>> fedsurf.preset("smoke").task.agents
    12
    """
    if name not in PRESETS:
        raise ValueError(f"preset: got {name!r}, but it must be one of {', '.join(PRESETS)}")
    return PRESETS[name].config


_DIGITS = StudyConfig(
    data=_pca("digits"),
    task=TaskConfig(agents=30, train_examples=10, test_examples=3),
    validation_share=0.5,
)
_FASHION = StudyConfig(data=_DEMO.data)
_MNIST = replace(_FASHION, data=_pca("mnist"))
_CIFAR = StudyConfig(
    data=FeatureConfig(source="cifar10", backbone="efficientnet-lite0", components=64)
)
_HETEROGENEOUS = TaskConfig(partition="dirichlet", alpha=0.3)


def _studies(name: str, about: str, config: StudyConfig) -> dict[str, Preset[StudyConfig]]:
    """Return a study over a 3-regular graph, and the same study through a server."""
    agents = f"{about}, {config.task.agents} agents"
    server = replace(config, network=replace(_SERVER, shift=None))
    return {
        name: Preset(f"{agents} on a 3-regular graph, class-imbalanced tasks.", config),
        f"{name}-star": Preset(
            f"{agents} and a server, to which 10 of them report in a round.", server
        ),
    }


def _synthetic(
    source: str,
    description: str,
    *,
    components: int | None = None,
    task: TaskConfig = TaskConfig(),  # noqa: B008 - frozen
) -> dict[str, Preset[StudyConfig]]:
    """Return the study on generated data, which no optimizer is meta-trained on."""
    backbone = "none" if components is None else "pca"
    data = FeatureConfig(source=source, backbone=backbone, components=components)
    where = f"{task.agents} agents on a 3-regular graph."
    config = StudyConfig(data=data, task=task)
    return {source: Preset(f"{description} (generated), {where}", config)}


STUDIES: dict[str, Preset[StudyConfig]] = {
    **_studies("digits", "Digits", _DIGITS),
    **_studies("mnist", "MNIST, 32 PCA features", _MNIST),
    **_studies("demo", "Embedded Fashion-MNIST", _FASHION),
    "demo-dirichlet": Preset(
        "Embedded Fashion-MNIST, 100 agents on a 3-regular graph, Dirichlet 0.3.",
        replace(_FASHION, task=_HETEROGENEOUS),
    ),
    **_studies("cifar10", "CIFAR-10, 64 features of EfficientNet-lite0", _CIFAR),
    "cifar10-dirichlet": Preset(
        "CIFAR-10, 64 features of EfficientNet-lite0, 3-regular graph, Dirichlet 0.3.",
        replace(_CIFAR, task=_HETEROGENEOUS),
    ),
    **_synthetic("synthetic-words", "Bags of 256 words, 20 classes"),
    **_synthetic("synthetic-spectra", "Energies in 32 bands, 12 classes"),
    **_synthetic("synthetic-table", "A table of 36 mixed columns, 5 classes"),
    **_synthetic("synthetic-clusters", "Classes of four clusters, 16 features, 8 classes"),
    **_synthetic("synthetic-curve", "Stretches of a curve, 10 features, 10 ordered classes"),
    **_synthetic("synthetic-teacher", "Labels from a linear softmax, 40 features, 15 classes"),
    **_synthetic(
        "synthetic-glyphs", "Drawn glyphs, 64 principal components, 50 classes", components=64
    ),
    **_synthetic(
        "synthetic-genes",
        "Noisy counts of 120 genes, 20 classes, few examples",
        task=TaskConfig(agents=40, train_examples=35),
    ),
}
