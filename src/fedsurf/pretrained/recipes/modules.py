"""The recipe of the pretrained optimizer of modules.

Its problems are wide problems over graphs, of moderate size, whose agents train perceptrons with up to
two hidden layers.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsurf.common.randomness import generator as seeded
from fedsurf.models import ModuleModel
from fedsurf.pretrained.config import ModulePretrainConfig
from fedsurf.pretrained.recipes.heads import train_into
from fedsurf.pretrained.recipes.populations import Population, chance, log_uniform, uniform
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.surf.loop import Observer
from fedsurf.surf.training import MetaTraining, Problem
from fedsurf.unrolled.module_layer import GradientTransfer

MAX_FEATURES, MAX_CLASSES = 64, 20
"""Limits of a problem; larger problems take longer and teach no more."""
MIN_UNITS, MAX_UNITS = 12, 48
"""Limits of the units of a hidden layer."""


class ModuleProblems(WideProblems):
    """Wide problems whose agents train small networks; there must be no servers and no mini-batches."""

    def draw(self, generator: torch.Generator, *, validation: bool = False) -> Problem:
        """Draw a problem and the network that its agents train."""
        problem = super().draw(generator, validation=validation)
        task = problem.task
        return replace(problem, trained=random_network(task.features, task.classes, generator))

    def _population(self, generator: torch.Generator) -> Population:
        label = torch.zeros(1, dtype=torch.int64)
        while True:
            population = super()._population(generator)
            features = population.draw(label, generator, test=False).shape[1]
            if features <= MAX_FEATURES and population.classes <= MAX_CLASSES:
                return population

    def _units(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return a shift and a scale that make features about centred, with a spread of about 1."""
        centre = x.mean(0)
        size = float((x - centre).square().mean().sqrt().clamp(min=1e-6))
        offset = uniform(0, 0.5, generator) if chance(0.3, generator) else 0.0
        centre = centre + offset * size * torch.randn(x.shape[1], generator=generator)
        return centre, log_uniform(0.6, 1.7, generator) / size


def random_network(features: int, classes: int, generator: torch.Generator) -> ModuleModel:
    """Draw a perceptron with up to two hidden layers, with tanh or ReLU."""
    activation = nn.Tanh if chance(0.5, generator) else nn.ReLU
    hidden = 1
    if chance(0.3, generator):
        hidden = 0 if chance(0.3, generator) else 2
    layers: list[nn.Module] = []
    width = features
    for _ in range(hidden):
        units = round(log_uniform(MIN_UNITS, MAX_UNITS, generator))
        layers += [nn.Linear(width, units, device="meta"), activation()]
        width = units
    # On the meta device no weights are drawn: only the structure of a module is used.
    return ModuleModel(nn.Sequential(*layers, nn.Linear(width, classes, device="meta")))


def pretrain_for_modules(
    config: ModulePretrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> tuple[GradientTransfer, dict[str, Any]]:
    """Meta-train an optimizer of modules, as `pretrain` meta-trains one of softmax heads."""
    optimizer = GradientTransfer(config.optimizer, seeded(config.seed, "parameters"))
    problems = ModuleProblems(config.problems, config.seed)
    training = MetaTraining(optimizer, problems, config.surf, seed=config.seed)
    return train_into(path, training, config, lambda: optimizer, resume=resume, observers=observers)
