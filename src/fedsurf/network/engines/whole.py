"""The whole network of a federation, which every site makes alike; a `Part` of it lives at each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsurf.network.config import GraphConfig
from fedsurf.network.engines.config import Federation

if TYPE_CHECKING:
    import networkx as nx

    from fedsurf.network.network import Network


def network_of(federation: Federation) -> Network:
    """Return the whole network, simulated and the same at every site, for a `Part` of it.

    Nodes are numbered as in `federation.nodes`. As `FederatedClassifier` does, a graph has
    Metropolis–Hastings weights, and a star the mean.

    Examples
    --------
    >>> from fedsurf.network.engines.config import Agent, Links, Server
    >>> sites = tuple(Agent(f"site-{n}", f"127.0.0.1:{7000 + n}") for n in range(4))
    >>> network_of(Federation("four", sites, Links("ring"))).links.tolist()[0][:4]
    [0, 0, 1, 2]
    >>> star = network_of(Federation("four", sites, server=Server("127.0.0.1:7447", reporting=2)))
    >>> star.nodes, star.reporting
    (5, 2)
    """
    from fedsurf.common.randomness import generator
    from fedsurf.network.network import Network
    from fedsurf.network.star import StarNetwork

    server = federation.server
    if server is None:
        return Network(graph_of(federation), "metropolis", wire=federation.wire)
    drawn = generator(federation.seed, "graph")
    return StarNetwork(
        len(federation.agents),
        server.reporting,
        drawn,
        calling=server.calling,
        wire=federation.wire,
    )


def graph_of(federation: Federation) -> nx.Graph:
    """Return who is linked to whom, by the numbers of nodes."""
    import networkx as nx

    count, links = len(federation.agents), federation.graph
    if links is None:
        return nx.star_graph(count)
    if links.kind is None:
        number = {agent.name: place for place, agent in enumerate(federation.agents)}
        graph = nx.empty_graph(count)
        graph.add_edges_from((number[one], number[other]) for one, other in links.links)
        return graph
    from fedsurf.common.randomness import generator
    from fedsurf.network.build import make_graph

    config = GraphConfig(links.kind, links.degree, links.probability)
    return make_graph(config, count, generator(federation.seed, "graph"))
