"""Graphs, their shift operators, and the networks on which agents talk in counted rounds."""

from fedsurf.network.faults import (
    FaultConfig,
    FaultyNetwork,
    LeavingNetwork,
    LossyNetwork,
    StaleNetwork,
    with_faults,
)
from fedsurf.network.graphs import GraphConfig, GraphKind, check_graph, check_graphs, make_graph
from fedsurf.network.losses import Losses, LostWeights
from fedsurf.network.making import NetworkConfig, make_network, shift_of
from fedsurf.network.network import Network
from fedsurf.network.shift import Shift, shift_operator
from fedsurf.network.star import Calling, StarNetwork
from fedsurf.network.time_varying import TimeVaryingNetwork

__all__ = [
    "Calling",
    "FaultConfig",
    "FaultyNetwork",
    "GraphConfig",
    "GraphKind",
    "LeavingNetwork",
    "Losses",
    "LossyNetwork",
    "LostWeights",
    "Network",
    "NetworkConfig",
    "Shift",
    "StaleNetwork",
    "StarNetwork",
    "TimeVaryingNetwork",
    "check_graph",
    "check_graphs",
    "make_graph",
    "make_network",
    "shift_of",
    "shift_operator",
    "with_faults",
]
