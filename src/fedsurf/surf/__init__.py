"""SURF: the primal-dual meta-training of unrolled optimizers, under descending constraints."""

from fedsurf.surf.config import SurfConfig
from fedsurf.surf.descent import DescentConfig, gradient_norm, slack
from fedsurf.surf.meta_training import DivergedError, MetaTraining
from fedsurf.surf.problems import FixedProblems, Problem, Problems
from fedsurf.surf.records import StepRecord, ValidationRecord
from fedsurf.surf.running import Observer
from fedsurf.surf.unrolled_optimizer import Unrolled, UnrolledOptimizer

__all__ = [
    "DescentConfig",
    "DivergedError",
    "FixedProblems",
    "MetaTraining",
    "Observer",
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
