"""SURF: the primal-dual meta-training of unrolled optimizers, under descending constraints."""

from fedsurf.surf.descent import DescentConfig, gradient_norm, slack
from fedsurf.surf.meta_training import (
    DivergedError,
    MetaTraining,
    StepRecord,
    SurfConfig,
    UnrolledOptimizer,
    ValidationRecord,
)

__all__ = [
    "DescentConfig",
    "DivergedError",
    "MetaTraining",
    "StepRecord",
    "SurfConfig",
    "UnrolledOptimizer",
    "ValidationRecord",
    "gradient_norm",
    "slack",
]
