"""Partitions: which labels each agent's examples have. Exact counts, and an error where they cannot be had."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.checks import check_number, check_option
from fedsurf.common.randomness import numpy_generator
from fedsurf.tasks.config import PartitionKind, TaskConfig

_DRAWS = 1000
"""How often label distributions are drawn in search of one that the pool can serve."""


class Partition(Protocol):
    """Decides the labels of all agents' examples before any example is chosen."""

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return the labels of each agent's examples, in random order.

        Parameters
        ----------
        available : Tensor
            How many examples of each class there are, int64 `[classes]`.
        sizes : Tensor
            How many examples each agent gets, int64 `[agents]`.
        generator : torch.Generator
            Draws everything.
        """
        ...


@dataclass(frozen=True)
class ClassImbalanced:
    """A different label distribution for each task; its examples are spread evenly over the agents.

    The label distribution is drawn from Dirichlet(concentration, …, concentration), conditioned on
    the pool holding enough examples of every class.
    """

    concentration: float = 10.0

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Draw the task's label counts, shuffle the labels and deal them to the agents."""
        _check_positive("concentration", self.concentration)
        classes, total = len(available), int(sizes.sum())
        random = numpy_generator(generator)

        def draw() -> np.ndarray:
            share = random.dirichlet(np.full(classes, self.concentration))
            return random.multinomial(total, share)[None]

        counts = _feasible(draw, available, total)[0]
        labels = torch.arange(classes).repeat_interleave(torch.from_numpy(counts))
        shuffled = labels[torch.randperm(total, generator=generator)]
        return list(torch.split(shuffled, sizes.tolist()))


@dataclass(frozen=True)
class DirichletAgents:
    """Heterogeneous agents: each draws a label distribution of its own from Dirichlet(α, …, α).

    Conditioned on the pool holding enough examples of every class for all agents together.
    """

    alpha: float = 0.3

    def labels(self, available: Tensor, sizes: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Draw each agent's label counts; an agent's own labels are shuffled."""
        _check_positive("alpha", self.alpha)
        classes = len(available)
        random = numpy_generator(generator)

        def draw() -> np.ndarray:
            share = random.dirichlet(np.full(classes, self.alpha), size=len(sizes))
            return random.multinomial(sizes.numpy(), share)

        counts = torch.from_numpy(_feasible(draw, available, int(sizes.sum())))
        labels = torch.arange(classes).repeat(len(sizes)).repeat_interleave(counts.flatten())
        return [
            own[torch.randperm(len(own), generator=generator)]
            for own in torch.split(labels, sizes.tolist())
        ]


def make_partition(config: TaskConfig) -> Partition:
    """Return the partition that `config` names.

    Examples
    --------
    >>> make_partition(TaskConfig(partition="dirichlet", alpha=0.7))
    DirichletAgents(alpha=0.7)
    """
    check_option(config.partition, PartitionKind, "partition")
    if config.partition == "dirichlet":
        return DirichletAgents(config.alpha)
    return ClassImbalanced(config.concentration)


class _Draw(Protocol):
    def __call__(self) -> np.ndarray: ...


def _feasible(draw: _Draw, available: Tensor, total: int) -> np.ndarray:
    """Draw counts `[…, classes]` until no class is asked for more often than it is available."""
    if not available.any():
        raise ValueError(f"pool: got no examples, but a task needs {total}")
    if total > int(available.sum()):
        raise ValueError(
            f"pool: got {int(available.sum())} examples, but a task needs {total} different ones; "
            "take fewer agents or examples, or sample with replacement"
        )
    limit = available.numpy()
    wanted = np.zeros_like(limit)
    for _ in range(_DRAWS):
        counts = draw()
        wanted = counts.sum(0)
        if (wanted <= limit).all():
            return counts
    lacking = np.flatnonzero((limit == 0) & (wanted > 0))
    if lacking.size:  # sampling with replacement would not help
        raise ValueError(
            f"pool: got no examples of the task's class {int(lacking[0])}, and {_DRAWS} draws found no "
            "label distribution without it; take a pool that has examples of every class, or leave "
            "that class out and number the others from 0 on"
        )
    worst = int((wanted - limit).argmax())
    raise ValueError(
        f"pool: got {int(limit[worst])} examples of the task's class {worst}, but it wanted "
        f"{int(wanted[worst])}, and {_DRAWS} draws found no label distribution that the pool can "
        "serve; take a more even distribution, fewer examples, or sample with replacement"
    )


def _check_positive(name: str, value: float) -> None:
    check_number(value, name)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: got {value}, but it must be positive and finite")
