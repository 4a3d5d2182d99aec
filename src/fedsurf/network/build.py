"""Networks from configurations."""

import torch

from fedsurf.common.checks import check_kind, check_option, check_share
from fedsurf.network.config import FaultConfig, LostWeights, NetworkConfig, Shift
from fedsurf.network.faults import LeavingNetwork, LossyNetwork, StaleNetwork
from fedsurf.network.graphs import make_graph
from fedsurf.network.network import Network
from fedsurf.network.star import StarNetwork


def shift_of(config: NetworkConfig) -> Shift:
    """Return the shift operator of a configuration, or the default of its graph.

    Metropolis–Hastings weights give all agents the same influence on a graph of unequal degrees. In a
    star the server would have the weight 1/(1 + agents) at every agent, and rounds would change little.
    """
    if config.shift is not None:
        return config.shift
    return "adjacency" if config.graph.kind == "star" else "metropolis"


def make_network(config: NetworkConfig, agents: int, generator: torch.Generator) -> Network:
    """Build the network of a configuration, for a number of agents without a server.

    The generator draws the graph, and then the agents that report in a round, and faults.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.network import GraphConfig
    >>> config = fedsurf.NetworkConfig(GraphConfig("erdos-renyi", probability=0.5))
    >>> network = fedsurf.make_network(config, agents=10, generator=fedsurf.generator(0))
    >>> network.agents, network.links.shape
    (10, torch.Size([2, 42]))
    """
    check_kind(config, NetworkConfig, "config", "a NetworkConfig")
    check_kind(generator, torch.Generator, "generator", "a torch.Generator")
    network: Network
    if config.graph.kind == "star":
        network = StarNetwork(
            agents, config.reporting, generator, shift_of(config), calling=config.calling
        )
    else:
        for name, default in (("reporting", None), ("calling", "random")):
            value = getattr(config, name)
            if value != default:
                raise ValueError(
                    f"{name}: got {value!r} with a {config.graph.kind} graph, but only a star has a "
                    "server that calls agents"
                )
        network = Network(make_graph(config.graph, agents, generator), shift_of(config))
    return with_faults(network, config.faults, generator)


def with_faults(network: Network, config: FaultConfig, generator: torch.Generator) -> Network:
    """Wrap a network in the faults of a configuration; without any, return the network itself.

    Examples
    --------
    >>> import networkx as nx
    >>> import fedsurf
    >>> from fedsurf.network import with_faults
    >>> ring = fedsurf.Network(nx.cycle_graph(5))
    >>> with_faults(ring, fedsurf.FaultConfig(loss=0.1), fedsurf.generator(0)).reliable
    False
    """
    weights = config.weights
    check_option(weights, LostWeights, "weights")
    check_share(config.comeback, "comeback")
    if config.stale:
        network = StaleNetwork(network, config.stale, generator)
    if config.loss:
        network = LossyNetwork(network, config.loss, generator, weights)
    if config.leave:
        network = LeavingNetwork(network, config.leave, config.comeback, generator, weights)
    return network
