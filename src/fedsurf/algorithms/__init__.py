"""Federated optimization methods, one a file, all on the one `Algorithm` interface."""

from fedsurf.algorithms.algorithm import Algorithm, Start, State, check_fits, node_gradient
from fedsurf.algorithms.centralised import Centralised
from fedsurf.algorithms.class_means import ClassMeans
from fedsurf.algorithms.dfedavgm import DFedAvgM
from fedsurf.algorithms.dgd import DGD
from fedsurf.algorithms.dsgd import DSGD
from fedsurf.algorithms.exact_diffusion import ExactDiffusion
from fedsurf.algorithms.extra import EXTRA
from fedsurf.algorithms.fedadam import FedAdam
from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedavgm import FedAvgM
from fedsurf.algorithms.feddyn import FedDyn
from fedsurf.algorithms.fedprox import FedProx
from fedsurf.algorithms.gradient_tracking import GradientTracking
from fedsurf.algorithms.lda import LDA
from fedsurf.algorithms.local_only import LocalOnly
from fedsurf.algorithms.moon import MOON
from fedsurf.algorithms.one_shot import OneShot
from fedsurf.algorithms.ridge import Ridge
from fedsurf.algorithms.scaffold import SCAFFOLD

__all__ = [
    "DGD",
    "DSGD",
    "EXTRA",
    "LDA",
    "MOON",
    "SCAFFOLD",
    "Algorithm",
    "Centralised",
    "ClassMeans",
    "DFedAvgM",
    "ExactDiffusion",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedProx",
    "GradientTracking",
    "LocalOnly",
    "OneShot",
    "Ridge",
    "Start",
    "State",
    "check_fits",
    "node_gradient",
]
