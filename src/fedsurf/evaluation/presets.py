"""Named configurations. Every field of each can be overridden on the command line."""

from dataclasses import dataclass, replace

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.network.config import GraphConfig, NetworkConfig
from fedsurf.surf.config import DescentConfig, SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled.config import UDGDConfig


@dataclass(frozen=True)
class Preset:
    """A configuration with the sentence that describes it."""

    description: str
    config: ExperimentConfig


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

_DEMO = ExperimentConfig(
    data=FeatureConfig(source="fashion-mnist-mini", backbone="pca", components=32),
    surf=_DESCENDING,
)

_PAPER = ExperimentConfig(
    data=FeatureConfig(source="cifar10", backbone="resnet18", components=None),
    surf=SurfConfig(loss_examples=10),
)

_LONG = replace(_DESCENDING, steps=3000, validate_every=250)

PRESETS: dict[str, Preset] = {
    "demo": Preset(
        "Embedded Fashion-MNIST, 32 PCA features, 100 agents on a 3-regular graph; a few minutes.",
        _DEMO,
    ),
    "fashion-mnist": Preset(
        "Fashion-MNIST, 32 PCA features, 100 agents on a 3-regular graph; minutes.",
        replace(
            _DEMO,
            data=FeatureConfig(source="fashion-mnist", backbone="pca", components=32),
            surf=_LONG,
        ),
    ),
    "mnist": Preset(
        "MNIST, 32 PCA features, 100 agents on a 3-regular graph; minutes.",
        replace(
            _DEMO, data=FeatureConfig(source="mnist", backbone="pca", components=32), surf=_LONG
        ),
    ),
    "star": Preset(
        "Embedded Fashion-MNIST through a server, 10 of 100 agents reporting in each round.",
        replace(
            _DEMO,
            network=NetworkConfig(graph=GraphConfig(kind="star"), reporting=10),
            optimizer=UDGDConfig(filter_order=1),
        ),
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
            network=NetworkConfig(graph=GraphConfig(kind="star"), reporting=10),
            optimizer=UDGDConfig(filter_order=1),
            surf=SurfConfig(
                loss_examples=10, learning_rate=1e-3, descent=DescentConfig(epsilon=0.1)
            ),
        ),
    ),
    "smoke": Preset(
        "Digits, 8 features, 12 agents, 3 layers: seconds, to see that everything runs.",
        ExperimentConfig(
            data=FeatureConfig(source="digits", backbone="pca", components=8),
            task=TaskConfig(agents=12, train_examples=20, test_examples=5),
            optimizer=UDGDConfig(layers=3),
            surf=replace(_DESCENDING, steps=60, tasks=20, validate_every=20, validation_tasks=4),
        ),
    ),
}


def preset(name: str) -> ExperimentConfig:
    """Return the configuration of that name.

    Parameters
    ----------
    name : str
        One of those that `fedsurf train --help` lists, such as "smoke" or "demo".
    """
    if name not in PRESETS:
        raise ValueError(f"preset: got {name!r}, but it must be one of {', '.join(PRESETS)}")
    return PRESETS[name].config


@dataclass(frozen=True)
class StudyPreset:
    """A study with the sentence that describes it."""

    description: str
    config: StudyConfig


_GRAPH = NetworkConfig(shift=None)
_STAR = NetworkConfig(graph=GraphConfig(kind="star"), shift=None, reporting=10)
_DIGITS = StudyConfig(
    data=FeatureConfig(source="digits", backbone="pca", components=32),
    task=TaskConfig(agents=30, train_examples=10, test_examples=3),
    network=_GRAPH,
    validation_share=0.5,
)
_FASHION = StudyConfig(data=_DEMO.data, network=_GRAPH)
_MNIST = replace(_FASHION, data=FeatureConfig(source="mnist", backbone="pca", components=32))
_CIFAR = StudyConfig(
    data=FeatureConfig(source="cifar10", backbone="efficientnet-lite0", components=64),
    network=_GRAPH,
)
_HETEROGENEOUS = TaskConfig(partition="dirichlet", alpha=0.3)


def _synthetic(
    source: str,
    description: str,
    *,
    components: int | None = None,
    task: TaskConfig = TaskConfig(),  # noqa: B008 - frozen
) -> dict[str, StudyPreset]:
    """Return the study on generated data, which no optimizer is meta-trained on."""
    backbone = "none" if components is None else "pca"
    data = FeatureConfig(source=source, backbone=backbone, components=components)
    where = f"{task.agents} agents on a 3-regular graph."
    config = StudyConfig(data=data, task=task, network=_GRAPH)
    return {source: StudyPreset(f"{description} (generated), {where}", config)}


STUDIES: dict[str, StudyPreset] = {
    "digits": StudyPreset(
        "Digits, 30 agents (more the data does not allow) on a 3-regular graph.", _DIGITS
    ),
    "digits-star": StudyPreset(
        "Digits, 30 agents and a server, to which 10 of them report in a round.",
        replace(_DIGITS, network=_STAR),
    ),
    "mnist": StudyPreset(
        "MNIST, 32 PCA features, 100 agents on a 3-regular graph, class-imbalanced tasks.", _MNIST
    ),
    "mnist-star": StudyPreset(
        "MNIST, 32 PCA features, 100 agents and a server, to which 10 of them report in a round.",
        replace(_MNIST, network=_STAR),
    ),
    "demo": StudyPreset(
        "Embedded Fashion-MNIST, 100 agents on a 3-regular graph, class-imbalanced tasks.", _FASHION
    ),
    "demo-dirichlet": StudyPreset(
        "Embedded Fashion-MNIST, 100 agents on a 3-regular graph, Dirichlet 0.3.",
        replace(_FASHION, task=_HETEROGENEOUS),
    ),
    "demo-star": StudyPreset(
        "Embedded Fashion-MNIST, 100 agents and a server, to which 10 of them report in a round.",
        replace(_FASHION, network=_STAR),
    ),
    "cifar10": StudyPreset(
        "CIFAR-10, 64 features of EfficientNet-lite0, 100 agents on a 3-regular graph.", _CIFAR
    ),
    "cifar10-dirichlet": StudyPreset(
        "CIFAR-10, 64 features of EfficientNet-lite0, 3-regular graph, Dirichlet 0.3.",
        replace(_CIFAR, task=_HETEROGENEOUS),
    ),
    "cifar10-star": StudyPreset(
        "CIFAR-10, 64 features of EfficientNet-lite0, a server, to which 10 of 100 agents report.",
        replace(_CIFAR, network=_STAR),
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
