"""From a configuration to its network."""

import torch

from fedsurf.common.checks import check_kind, check_option
from fedsurf.network.config import Calling, FaultConfig, GraphConfig, NetworkConfig, Shift
from fedsurf.network.faults import with_faults
from fedsurf.network.graphs import make_graph
from fedsurf.network.network import Network
from fedsurf.network.star import StarNetwork


def shift_of(config: NetworkConfig) -> Shift:
    """Return the shift operator of a network: the one that is named, or else the one that suits the graph.

    Metropolis–Hastings weights let all agents count alike on a graph of unequal degrees. In a star
    they would weigh the server 1/(1 + agents) at every agent, which then hardly hears of the others.
    """
    if config.shift is not None:
        return config.shift
    return "adjacency" if config.graph.kind == "star" else "metropolis"


def make_network(config: NetworkConfig, agents: int, generator: torch.Generator) -> Network:
    """Build the network that a configuration describes.

    Parameters
    ----------
    config : NetworkConfig
        The graph, the shift operator and faults.
    agents : int
        The number of agents, without a server.
    generator : torch.Generator
        Draws a random graph, and what is random in a network itself: who reports, and faults.
    """
    check_kind(config, NetworkConfig, "config", "a NetworkConfig")
    check_kind(config.graph, GraphConfig, "config.graph", "a GraphConfig")
    check_kind(config.faults, FaultConfig, "config.faults", "a FaultConfig")
    check_kind(generator, torch.Generator, "generator", "a torch.Generator")
    return with_faults(_without_faults(config, agents, generator), config.faults, generator)


def _without_faults(config: NetworkConfig, agents: int, generator: torch.Generator) -> Network:
    if config.graph.kind == "star":
        return StarNetwork(
            agents, config.reporting, generator, shift_of(config), calling=config.calling
        )
    if config.reporting is not None:
        raise ValueError(
            f"reporting: got {config.reporting} with a {config.graph.kind} graph, "
            "but only in a star do some agents report and others not"
        )
    check_option(config.calling, Calling, "calling")
    if config.calling != "random":
        raise ValueError(
            f"calling: got {config.calling!r} with a {config.graph.kind} graph, "
            "but only in a star are agents called"
        )
    return Network(make_graph(config.graph, agents, generator), shift_of(config))
