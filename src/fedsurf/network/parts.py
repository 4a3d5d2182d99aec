"""What a network is made of, whatever it did so far: for telling one from another."""

from typing import Any

import torch

from fedsurf.network.faults import FaultyNetwork
from fedsurf.network.network import Network
from fedsurf.randomness import generator as seeded

_REMADE = {"graph", "inner", "_generator", "_operators", "_weights", "_rounds", "_link_floats"}
"""What is said otherwise, or begins anew with each run."""


def parts(network: Network) -> list[Any]:
    """Return a network's kind and attributes, its nodes and links, and its S; its run begins anew."""
    network.reset(seeded(0, "parts"))
    own = {name: _said(value) for name, value in vars(network).items() if name not in _REMADE}
    if isinstance(network, FaultyNetwork):
        return [type(network), own, *parts(network.inner)]
    operator = network.operator(torch.float64).to_sparse().coalesce()
    graph = [list(network.graph.nodes(data=True)), list(network.graph.edges(data=True))]
    return [type(network), own, graph, operator.indices(), operator.values()]


def _said(value: Any) -> Any:
    """Say networks that are part of one, as those of a network whose links change, in the same way."""
    if isinstance(value, Network):
        return parts(value)
    return [_said(one) for one in value] if isinstance(value, list) else value
