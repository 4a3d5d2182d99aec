"""The recipe of the pretrained optimizer for modules: its problems, and what makes its weights.

The problems are the wide ones over graphs (`problems`), of moderate size, and what agents train has no,
one or two hidden layers. Nothing of CIFAR-10, MNIST or digits is in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsurf.common.randomness import generator as seeded
from fedsurf.models import ModuleModel
from fedsurf.pretrained.recipes.problems import WideConfig, WideProblems
from fedsurf.pretrained.recipes.recipe import PretrainConfig, train_into
from fedsurf.pretrained.recipes.synthetic import Cloud, chance, log_uniform, uniform
from fedsurf.surf.config import SurfConfig
from fedsurf.surf.loop import Observer
from fedsurf.surf.problems import Problem
from fedsurf.surf.training import MetaTraining
from fedsurf.unrolled.config import GradientTransferConfig
from fedsurf.unrolled.module_layer import GradientTransfer

MOST_FEATURES, MOST_CLASSES = 64, 20
"""Of a problem; larger ones take long and teach no more."""
FEWEST_UNITS, MOST_UNITS = 12, 48
"""Of a hidden layer."""


class ModuleProblems(WideProblems):
    """Wide problems over graphs, whose agents train small networks.

    Parameters
    ----------
    config : WideConfig
        How wide. There must be no servers, and no mini-batches.
    seed : int
        The seed of the views and of all problems.
    """

    def __init__(self, config: WideConfig, seed: int) -> None:
        if config.server_share > 0:
            raise ValueError(
                f"server_share: got {config.server_share}, but it must be 0: "
                "the optimizer for modules runs over graphs only"
            )
        if config.batch_share > 0:
            raise ValueError(
                f"batch_share: got {config.batch_share}, but it must be 0: "
                "the optimizer for modules takes all examples of an agent"
            )
        super().__init__(config, seed)

    def draw(self, generator: torch.Generator, *, validation: bool = False) -> Problem:
        """Draw a problem and the network that its agents train."""
        problem = super().draw(generator, validation=validation)
        task = problem.task
        return replace(problem, trained=random_network(task.features, task.classes, generator))

    def _cloud(self, generator: torch.Generator) -> Cloud:
        one = torch.zeros(1, dtype=torch.int64)
        while True:
            cloud = super()._cloud(generator)
            features = cloud.draw(one, generator, test=False).shape[1]
            if features <= MOST_FEATURES and cloud.classes <= MOST_CLASSES:
                return cloud

    def _units(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Features are about centred and about as large as one."""
        centre = x.mean(0)
        size = float((x - centre).square().mean().sqrt().clamp(min=1e-6))
        offset = uniform(0, 0.5, generator) if chance(0.3, generator) else 0.0
        centre = centre + offset * size * torch.randn(x.shape[1], generator=generator)
        return centre, log_uniform(0.6, 1.7, generator) / size


def random_network(features: int, classes: int, generator: torch.Generator) -> ModuleModel:
    """Draw a perceptron with no, one or two hidden layers, tanh or rectified."""
    activation = nn.Tanh if chance(0.5, generator) else nn.ReLU
    hidden = 1
    if chance(0.3, generator):
        hidden = 0 if chance(0.3, generator) else 2
    layers: list[nn.Module] = []
    width = features
    for _ in range(hidden):
        units = round(log_uniform(FEWEST_UNITS, MOST_UNITS, generator))
        layers += [nn.Linear(width, units, device="meta"), activation()]
        width = units
    # On the meta device nothing is drawn: of a module, only the structure is used.
    return ModuleModel(nn.Sequential(*layers, nn.Linear(width, classes, device="meta")))


def _problems() -> WideConfig:
    return WideConfig(
        server_share=0.0,
        fault_share=0.15,
        views=4,
        most_agents=30,
        most_examples=1200,
        test_examples=300,
    )


def _surf() -> SurfConfig:
    return replace(
        PretrainConfig().surf,
        steps=300,
        learning_rate=1e-2,
        final_learning_rate=2e-4,
        averaging=0.0,
        select_by="accuracy",
        calibrated_share=0.5,
        calibration_examples=512,
        validate_every=100,
        validation_tasks=16,
    )


@dataclass(frozen=True)
class ModulePretrainConfig:
    """Everything that the pretrained optimizer for modules depends on."""

    optimizer: GradientTransferConfig = field(default_factory=GradientTransferConfig)
    """Its shape."""
    problems: WideConfig = field(default_factory=_problems)
    """The distribution of problems."""
    surf: SurfConfig = field(default_factory=_surf)
    """Meta-training."""
    seed: int = 0
    """Everything random follows from this."""


def pretrain_for_modules(
    config: ModulePretrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> tuple[GradientTransfer, dict[str, Any]]:
    """Meta-train an optimizer for modules into a folder; return it, and what validation said of it.

    Parameters
    ----------
    config : ModulePretrainConfig
        The recipe.
    path : Path
        The run's folder. It must be new, unless resuming. In the end it holds `optimizer.safetensors`.
    resume : bool
        Go on from the newest state in the folder, to the same bits as without interruption.
    observers : sequence of Observer
        Are told what happens.
    """
    optimizer = GradientTransfer(config.optimizer, seeded(config.seed, "parameters"))
    problems = ModuleProblems(config.problems, config.seed)
    training = MetaTraining(optimizer, problems, config.surf, seed=config.seed)
    return train_into(path, training, config, lambda: optimizer, resume=resume, observers=observers)
