"""From a configuration to its network."""

from dataclasses import dataclass, field

import torch

from fedsurf.common.checks import check_kind, check_option
from fedsurf.network.faults import FaultConfig, with_faults
from fedsurf.network.graphs import GraphConfig, make_graph
from fedsurf.network.network import Network
from fedsurf.network.operators import Shift
from fedsurf.network.star import Calling, StarNetwork


@dataclass(frozen=True)
class NetworkConfig:
    """Who talks to whom, and how their messages are weighted."""

    graph: GraphConfig = field(default_factory=GraphConfig)
    """The graph."""
    shift: Shift | None = "adjacency"
    """The shift operator: adjacency with self-loops normalised by rows, Metropolis–Hastings
    weights, or the normalised Laplacian. Where None, the averages that suit the graph: adjacency in a
    star, Metropolis–Hastings weights elsewhere."""
    reporting: int | None = None
    """How many agents report to the server in a round of a star; all where None."""
    calling: Calling = field(default="random", metadata={"added_later": True})
    """How the server of a star draws who reports: at random in each round, or in turn, in a random
    order, every agent once before any is called again."""
    faults: FaultConfig = field(default_factory=FaultConfig, metadata={"added_later": True})
    """What goes wrong; nothing by default."""


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
