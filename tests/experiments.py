"""Tiny experiments on scikit-learn's digits. As a script: meta-train one, to be killed from outside.

python experiments.py FOLDER STEP   prints "waiting" after step STEP and sleeps.
"""

import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.experiment import Experiment
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
    """Return the digits, shrunk to 4 × 4 pixels."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)
    x = images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).flatten(1)
    y = torch.tensor(data.target)
    return Features("digits", x[:1300], y[:1300], x[1300:], y[1300:], 10)


class WaitAfter:
    """Prints "waiting" after a step, and sleeps."""

    def __init__(self, step):
        self.step = step

    def on_start(self, done, total):
        pass

    def on_step(self, record):
        if record.step == self.step:
            print("waiting", flush=True)  # noqa: T201
            time.sleep(600)

    def on_validation(self, record, best_by):
        pass


if __name__ == "__main__":
    Experiment(CONFIG, features()).train(
        Path(sys.argv[1]), resume=True, observers=[WaitAfter(int(sys.argv[2]))]
    )
