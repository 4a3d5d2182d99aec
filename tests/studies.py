"""A small study on digits, and what its tests have in common."""

from dataclasses import replace

import torch

from fedsurf.evaluation.config import TuneConfig
from fedsurf.evaluation.methods import Entrant
from fedsurf.evaluation.presets import STUDIES
from fedsurf.evaluation.run import FIELDS, Trajectories

SMALL = replace(STUDIES["digits"].config, tasks=2, rounds=6)
ONE_TASK = replace(SMALL, tasks=1, rounds=3)
STAR = replace(STUDIES["digits-star"].config, tasks=1, rounds=4)
UNEQUAL = replace(
    STAR, task=replace(STAR.task, train_examples=16, fewest_train_examples=1, replacement=True)
)
"""Agents with 1 to 16 training examples."""
DGD = Entrant("DGD", "dgd", {"step_size": 0.3, "batch_size": None})
BUDGET = TuneConfig(trials=1, tasks=1, rounds=2)


def same(left: Trajectories, right: Trajectories) -> bool:
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in FIELDS)
