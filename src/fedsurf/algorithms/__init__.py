"""Federated optimization methods, one a file, all on the one `Algorithm` interface."""

from fedsurf.algorithms.algorithm import Algorithm, Start, State, check_fits, node_gradient
from fedsurf.algorithms.dgd import DGD

__all__ = ["DGD", "Algorithm", "Start", "State", "check_fits", "node_gradient"]
