"""Configurations of features and tasks; importable without torch, for command lines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

AgentWeighting = Literal["uniform", "examples"]
"""Weight of an agent in f: 1/n (the paper's), or its share of the examples."""

PartitionKind = Literal["class-imbalanced", "dirichlet"]
"""Distribution of the classes over tasks and agents; see `tasks.distribution`."""

TEST_FRACTION = 0.2
"""Share of each class that becomes the test part of data without one."""


@dataclass(frozen=True)
class FeatureConfig:
    """A data source, and the features extracted from it.

    Examples
    --------
    >>> FeatureConfig("digits", components=16).components
    16
    """

    #: The data: a name that `fedsurf data list` shows, or the path of an .npz file.
    source: str = "fashion-mnist-mini"
    #: Folder of the source's files; by default the one that `fedsurf data get` fills.
    folder: Path | None = None
    #: Feature extractor for images: none (raw pixels), pca (principal components),
    #: efficientnet-lite0 or resnet18 (followed by principal components).
    backbone: str = "pca"
    #: Number of principal components. None keeps all of them for pca, and the unrotated features of
    #: a deep backbone. Ignored by the backbone none.
    components: int | None = 32
    #: Height and width in pixels to which images are resized for a deep backbone.
    image_size: int = 160
    #: Share of each class that becomes the test part of an .npz file without one.
    test_fraction: float = TEST_FRACTION


@dataclass(frozen=True)
class TaskConfig:
    """Size and heterogeneity of one federated task.

    Examples
    --------
    >>> TaskConfig(agents=10, partition="dirichlet", alpha=0.7).agents
    10
    """

    #: Number of agents, the paper's n.
    agents: int = 100
    #: Training examples of each agent.
    train_examples: int = 45
    #: Test examples of each agent.
    test_examples: int = 15
    #: If given, the number of training examples of each agent is drawn between this
    #: and `train_examples`.
    fewest_train_examples: int | None = None
    #: class-imbalanced: each task has its own label distribution, spread evenly over the agents;
    #: dirichlet: each agent has its own label distribution.
    partition: PartitionKind = "class-imbalanced"
    #: Evenness of the label distributions of class-imbalanced tasks; larger is more even.
    concentration: float = 10.0
    #: Evenness of the agents' label distributions (dirichlet); smaller is more heterogeneous.
    alpha: float = 0.3
    #: If given, each task has this many classes, drawn at random and numbered from 0.
    classes_per_task: int | None = None
    #: Rename the labels by a random permutation in each task.
    permute_labels: bool = False
    #: Draw examples with replacement. Training and test parts stay disjoint.
    replacement: bool = False
