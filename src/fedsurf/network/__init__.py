"""Graphs, their shift operators, and the networks on which agents talk in counted rounds."""

from fedsurf.network.graphs import GraphConfig, GraphKind, check_graph, make_graph
from fedsurf.network.network import Network, NetworkConfig, StarNetwork, make_network
from fedsurf.network.shift import Shift, shift_operator

__all__ = [
    "GraphConfig",
    "GraphKind",
    "Network",
    "NetworkConfig",
    "Shift",
    "StarNetwork",
    "check_graph",
    "make_graph",
    "make_network",
    "shift_operator",
]
