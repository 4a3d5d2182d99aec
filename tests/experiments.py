"""A tiny experiment on scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.network import GraphConfig, NetworkConfig
from fedsurf.surf import SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.tasks.features import Features
from fedsurf.unrolled import UDGDConfig

CONFIG = ExperimentConfig(
    data=FeatureConfig(source="given"),
    task=TaskConfig(agents=4, train_examples=5, test_examples=3, classes_per_task=3),
    network=NetworkConfig(GraphConfig("star"), reporting=2),
    optimizer=UDGDConfig(layers=2, filter_order=1, batch_size=2),
    surf=SurfConfig(
        steps=10, tasks=4, gradient_batch_size=2, validate_every=3, validation_tasks=2,
        final_learning_rate=1e-3,
    ),
    seed=3,
)  # fmt: skip


def features():
    """Digits, 4 × 4 pixels of them."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)
    x = images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).flatten(1)
    y = torch.tensor(data.target)
    return Features("digits", x[:1300], y[:1300], x[1300:], y[1300:], 10)
