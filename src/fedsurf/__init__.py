"""fedsurf: learned federated optimizers.

Stochastic Unrolled Federated Learning (SURF) and its classical companions. The usual path:

    experiment = fedsurf.Experiment(fedsurf.preset("demo"))
    experiment.train(Path("run"))                      # meta-train U-DGD by SURF
    result = fedsurf.compare(experiment, tasks=10)     # beside DGD and centralised training
"""

from importlib.metadata import version

from fedsurf.algorithms import DGD, Algorithm, Start, State
from fedsurf.comparison import Comparison, compare
from fedsurf.evaluation import Trajectories, Trajectory, run, run_all
from fedsurf.experiment import Experiment, ExperimentConfig
from fedsurf.models import Model, ModuleModel, SoftmaxHead
from fedsurf.network import GraphConfig, Network, NetworkConfig, StarNetwork, make_network
from fedsurf.presets import preset
from fedsurf.randomness import generator
from fedsurf.surf import DescentConfig, MetaTraining, SurfConfig
from fedsurf.tasks.distribution import MetaTasks, TaskConfig, TaskDistribution, meta_tasks
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.features import FeatureConfig, Features, load_features
from fedsurf.tasks.task import Task
from fedsurf.unrolled import UDGD, UDGDConfig

__version__ = version("fedsurf")

__all__ = [
    "DGD",
    "UDGD",
    "Algorithm",
    "Comparison",
    "DescentConfig",
    "Examples",
    "Experiment",
    "ExperimentConfig",
    "FeatureConfig",
    "Features",
    "GraphConfig",
    "MetaTasks",
    "MetaTraining",
    "Model",
    "ModuleModel",
    "Network",
    "NetworkConfig",
    "SoftmaxHead",
    "StarNetwork",
    "Start",
    "State",
    "SurfConfig",
    "Task",
    "TaskConfig",
    "TaskDistribution",
    "Trajectories",
    "Trajectory",
    "UDGDConfig",
    "compare",
    "generator",
    "load_features",
    "make_network",
    "meta_tasks",
    "preset",
    "run",
    "run_all",
]
