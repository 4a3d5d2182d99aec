"""fedsurf: learned federated optimizers.

Stochastic Unrolled Federated Learning (SURF) and its classical companions. The usual path:

    experiment = fedsurf.Experiment(fedsurf.preset("demo"))
    experiment.train(Path("run"))                      # meta-train U-DGD by SURF
    result = fedsurf.evaluate(experiment, tasks=10)     # beside DGD and centralised training
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsurf.algorithms import DGD, Algorithm, Start, State
    from fedsurf.audited import Audit
    from fedsurf.auditing import Subject, audit
    from fedsurf.certificate import Certificate, certify
    from fedsurf.classifier import FederatedClassifier
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
    from fedsurf.tasks.distribution import (
        Draws,
        MetaTasks,
        TaskConfig,
        TaskDistribution,
        meta_tasks,
    )
    from fedsurf.tasks.examples import Examples
    from fedsurf.tasks.features import FeatureConfig, Features, load_features
    from fedsurf.tasks.task import Task
    from fedsurf.tuning import TuneConfig
    from fedsurf.unrolled import UDGD, Transferable, TransferableConfig, UDGDConfig

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

_HOMES = {
    "Algorithm": "algorithms",
    "DGD": "algorithms",
    "Start": "algorithms",
    "State": "algorithms",
    "Audit": "audited",
    "Subject": "auditing",
    "audit": "auditing",
    "Certificate": "certificate",
    "certify": "certificate",
    "FederatedClassifier": "classifier",
    "Comparison": "comparison",
    "evaluate": "comparison",
    "Trajectories": "evaluation",
    "Trajectory": "evaluation",
    "run": "evaluation",
    "run_all": "evaluation",
    "Experiment": "experiment",
    "ExperimentConfig": "experiment",
    "Choice": "methods",
    "LogRange": "methods",
    "METHODS": "methods",
    "Method": "methods",
    "Model": "models",
    "ModuleModel": "models",
    "SoftmaxHead": "models",
    "FaultConfig": "network",
    "GraphConfig": "network",
    "LeavingNetwork": "network",
    "LossyNetwork": "network",
    "Network": "network",
    "NetworkConfig": "network",
    "StaleNetwork": "network",
    "StarNetwork": "network",
    "TimeVaryingNetwork": "network",
    "make_network": "network",
    "STUDIES": "presets",
    "preset": "presets",
    "load": "pretrained",
    "load_for_modules": "pretrained",
    "generator": "randomness",
    "Score": "scores",
    "score": "scores",
    "Entrant": "study",
    "Study": "study",
    "StudyConfig": "study",
    "DescentConfig": "surf",
    "FixedProblems": "surf",
    "MetaTraining": "surf",
    "Problem": "surf",
    "SurfConfig": "surf",
    "Draws": "tasks.distribution",
    "MetaTasks": "tasks.distribution",
    "TaskConfig": "tasks.distribution",
    "TaskDistribution": "tasks.distribution",
    "meta_tasks": "tasks.distribution",
    "Examples": "tasks.examples",
    "FeatureConfig": "tasks.features",
    "Features": "tasks.features",
    "load_features": "tasks.features",
    "Task": "tasks.task",
    "TuneConfig": "tuning",
    "Transferable": "unrolled",
    "TransferableConfig": "unrolled",
    "UDGD": "unrolled",
    "UDGDConfig": "unrolled",
}
"""In which module each of them is: it is imported when it is asked for, as torch takes seconds."""


def __getattr__(name: str) -> Any:
    """Import what is asked for, a name of the package or a module in it."""
    if name in _HOMES:
        found = getattr(import_module(f"fedsurf.{_HOMES[name]}"), name)
    elif find_spec(f"fedsurf.{name}") is not None:
        found = import_module(f"fedsurf.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
