"""Networks and their graphs from configurations."""

from functools import partial

import networkx as nx
import torch

from fedsurf.common.checks import check_count, check_kind, check_option, check_share, check_whole
from fedsurf.common.randomness import next_seed
from fedsurf.common.text import counted
from fedsurf.network.config import (
    FaultConfig,
    GraphConfig,
    GraphKind,
    LostWeights,
    NetworkConfig,
    Shift,
)
from fedsurf.network.faults import LeavingNetwork, LossyNetwork, StaleNetwork
from fedsurf.network.graphs import check_graph, numbered
from fedsurf.network.network import Network
from fedsurf.network.star import StarNetwork

MAX_DRAWS = 100
"""Number of random graphs that are drawn until one is connected."""


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
            agents,
            config.reporting,
            generator,
            shift_of(config),
            calling=config.calling,
            wire=config.wire,
        )
    else:
        for name, default in (("reporting", None), ("calling", "random")):
            value = getattr(config, name)
            if value != default:
                raise ValueError(
                    f"{name}: got {value!r} with a {config.graph.kind} graph, but only a star has a "
                    "server that calls agents"
                )
        graph = make_graph(config.graph, agents, generator)
        network = Network(graph, shift_of(config), wire=config.wire)
    return with_faults(network, config.faults, generator)


def with_faults(network: Network, config: FaultConfig, generator: torch.Generator) -> Network:
    """Wrap a network in the faults of a configuration; without any, return the network itself.

    Examples
    --------
    >>> import networkx as nx
    >>> import fedsurf
    >>> from fedsurf.network import with_faults
    >>> ring = fedsurf.Network(nx.cycle_graph(5))
    >>> with_faults(ring, fedsurf.FaultConfig(loss=0.1), fedsurf.generator(0)).facts.reliable
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


def make_graph(config: GraphConfig, agents: int, generator: torch.Generator) -> nx.Graph:
    """Draw a connected graph of a family over `agents` agents, numbered from 0.

    A star has one more node, the server, as node 0. A random graph that is not connected is drawn
    again, up to a hundred times.
    """
    check_count(agents, "agents")
    check_option(config.kind, GraphKind, "kind")
    degree, probability = config.degree, config.probability
    if config.kind == "star":
        return nx.star_graph(agents)
    if agents == 1:
        return nx.empty_graph(1)
    match config.kind:
        case "ring":
            return nx.cycle_graph(agents) if agents > 2 else nx.path_graph(agents)
        case "complete":
            return nx.complete_graph(agents)
        case "torus":
            return _torus(agents)
        case "regular":
            _check_degree(degree, agents, even=agents * degree % 2 == 0)
            draw = partial(nx.random_regular_graph, degree, agents)
        case "erdos-renyi":
            check_share(probability, "probability")
            draw = partial(nx.gnp_random_graph, agents, probability)
        case "small-world":
            check_share(probability, "probability")
            _check_degree(degree, agents, even=degree % 2 == 0)  # networkx would round it down
            draw = partial(nx.watts_strogatz_graph, agents, degree, probability)
    for _ in range(MAX_DRAWS):
        graph = draw(seed=next_seed(generator))
        if nx.is_connected(graph):
            return numbered(graph, sorted(graph))  # networkx lists nodes in any order
    name = "probability" if config.kind == "erdos-renyi" else "degree"
    raise ValueError(
        f"{name}: got {getattr(config, name)}, with which none of {MAX_DRAWS} random graphs was "
        "connected; it must be larger"
    )


def _torus(agents: int) -> nx.Graph:
    rows = max(r for r in range(1, int(agents**0.5) + 1) if agents % r == 0)
    if rows < 2:
        raise ValueError(
            f"agents: got {agents}, but a torus needs a number of agents with two factors above 1"
        )
    return check_graph(nx.grid_2d_graph(rows, agents // rows, periodic=True))


def _check_degree(degree: int, agents: int, *, even: bool) -> None:
    check_whole(degree, "degree")
    if not 1 <= degree < agents or not even:
        raise ValueError(
            f"degree: got {degree} for {counted(agents, 'agent')}, but it must be between 1 and "
            f"{agents - 1}, and degree times agents must be even; in a small world, degree itself"
        )
