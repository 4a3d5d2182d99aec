"""fedsurf: learned federated optimizers.

Stochastic Unrolled Federated Learning (SURF) and its classical companions. The usual path:

    experiment = fedsurf.Experiment(fedsurf.preset("demo"))
    experiment.train(Path("run"))                      # meta-train U-DGD by SURF
    result = fedsurf.evaluate(experiment, tasks=10)     # beside DGD and centralised training
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedsurf.algorithms import DGD, Algorithm, Start, State
from fedsurf.audit import Audit, Subject, audit
from fedsurf.certificate import Certificate, certify
from fedsurf.comparison import Comparison, evaluate
from fedsurf.evaluation import Trajectories, Trajectory, run, run_all
from fedsurf.experiment import Experiment, ExperimentConfig
from fedsurf.methods import METHODS, Choice, LogRange, Method
from fedsurf.models import Model, ModuleModel, SoftmaxHead
from fedsurf.network import (
    FaultConfig,
    GraphConfig,
    LeavingNetwork,
    LossyNetwork,
    Network,
    NetworkConfig,
    StaleNetwork,
    StarNetwork,
    TimeVaryingNetwork,
    make_network,
)
from fedsurf.presets import STUDIES, preset
from fedsurf.pretrained import load, load_for_modules
from fedsurf.randomness import generator
from fedsurf.scores import Score, score
from fedsurf.study import Entrant, Study, StudyConfig
from fedsurf.surf import DescentConfig, FixedProblems, MetaTraining, Problem, SurfConfig
from fedsurf.tasks.distribution import Draws, MetaTasks, TaskConfig, TaskDistribution, meta_tasks
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.features import FeatureConfig, Features, load_features
from fedsurf.tasks.task import Task
from fedsurf.tuning import TuneConfig
from fedsurf.unrolled import UDGD, Transferable, TransferableConfig, UDGDConfig

if TYPE_CHECKING:
    from fedsurf.classifier import FederatedClassifier

__version__ = version("fedsurf")

__all__ = [
    "DGD",
    "METHODS",
    "STUDIES",
    "UDGD",
    "Algorithm",
    "Audit",
    "Certificate",
    "Choice",
    "Comparison",
    "DescentConfig",
    "Draws",
    "Entrant",
    "Examples",
    "Experiment",
    "ExperimentConfig",
    "FaultConfig",
    "FeatureConfig",
    "Features",
    "FederatedClassifier",
    "FixedProblems",
    "GraphConfig",
    "LeavingNetwork",
    "LogRange",
    "LossyNetwork",
    "MetaTasks",
    "MetaTraining",
    "Method",
    "Model",
    "ModuleModel",
    "Network",
    "NetworkConfig",
    "Problem",
    "Score",
    "SoftmaxHead",
    "StaleNetwork",
    "StarNetwork",
    "Start",
    "State",
    "Study",
    "StudyConfig",
    "Subject",
    "SurfConfig",
    "Task",
    "TaskConfig",
    "TaskDistribution",
    "TimeVaryingNetwork",
    "Trajectories",
    "Trajectory",
    "Transferable",
    "TransferableConfig",
    "TuneConfig",
    "UDGDConfig",
    "audit",
    "certify",
    "evaluate",
    "generator",
    "load",
    "load_features",
    "load_for_modules",
    "make_network",
    "meta_tasks",
    "preset",
    "run",
    "run_all",
    "score",
]


def __getattr__(name: str) -> Any:
    """Import scikit-learn with the estimator only: that takes as long as everything else together."""
    if name == "FederatedClassifier":
        from fedsurf.classifier import FederatedClassifier

        return FederatedClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
