"""SURF: the primal-dual meta-training of unrolled optimizers, under descending constraints."""

from fedsurf.surf.descent import DescentConfig, gradient_norm, slack
from fedsurf.surf.meta_training import (
    DivergedError,
    MetaTraining,
    StepRecord,
    SurfConfig,
    Unrolled,
    UnrolledOptimizer,
    ValidationRecord,
)
from fedsurf.surf.problems import FixedProblems, Problem, Problems

__all__ = [
    "DescentConfig",
    "DivergedError",
    "FixedProblems",
    "MetaTraining",
    "Problem",
    "Problems",
    "StepRecord",
    "SurfConfig",
    "Unrolled",
    "UnrolledOptimizer",
    "ValidationRecord",
    "gradient_norm",
    "slack",
]
