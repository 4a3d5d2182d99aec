"""Graphs: the links between agents, from families by name or from any networkx graph."""

from collections.abc import Hashable, Sequence
from functools import partial

import networkx as nx
import torch

from fedsurf.common.checks import (
    check_count,
    check_kind,
    check_option,
    check_share,
    check_whole,
    counted,
)
from fedsurf.common.randomness import next_seed
from fedsurf.network.config import GraphConfig, GraphKind

MAX_DRAWS = 100
"""Number of random graphs that are drawn until one is connected."""


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
            return _numbered(graph, sorted(graph))  # networkx lists nodes in any order
    name = "probability" if config.kind == "erdos-renyi" else "degree"
    raise ValueError(
        f"{name}: got {getattr(config, name)}, with which none of {MAX_DRAWS} random graphs was "
        "connected; it must be larger"
    )


def check_graph(graph: nx.Graph) -> nx.Graph:
    """Return a connected graph with its nodes numbered 0, 1, … in their order; raise if it is not one."""
    _check_links(graph, "graph")
    _check_connected(graph, "graph: got")
    return _numbered(graph, list(graph))


def check_graphs(graphs: Sequence[nx.Graph]) -> list[nx.Graph]:
    """Return graphs of the same nodes, numbered in the order of the first; raise if they are not.

    All their links together must connect the nodes; a single graph may fall apart.
    """
    if isinstance(graphs, nx.Graph) or not len(graphs):
        got = "one networkx graph" if isinstance(graphs, nx.Graph) else "an empty sequence"
        raise ValueError(f"graphs: got {got}, but it must be a sequence of networkx graphs")
    for place, graph in enumerate(graphs):
        _check_links(graph, f"graphs[{place}]")
        other = set(graphs[0]) ^ set(graph)
        if other:
            raise ValueError(
                f"graphs[{place}]: got other nodes than in the first graph, such as "
                f"{min(other, key=str)!r}, but all graphs must have the same agents"
            )
    _check_connected(nx.compose_all(graphs), "graphs: got, with all links together,")
    return [_numbered(graph, list(graphs[0])) for graph in graphs]


def _check_links(graph: nx.Graph, argument: str) -> None:
    check_kind(graph, nx.Graph, argument, "a networkx graph")
    if graph.is_directed() or graph.is_multigraph():
        raise ValueError(
            f"{argument}: got a directed or multigraph, but links are simple and undirected"
        )
    if not len(graph):
        raise ValueError(f"{argument}: got one without nodes, but a network has at least one agent")


def _check_connected(graph: nx.Graph, got: str) -> None:
    parts = sorted(nx.connected_components(graph), key=len)
    if len(parts) > 1:
        smallest = sorted(parts[0], key=str)
        raise ValueError(
            f"{got} {len(parts)} components, but it must be connected; "
            f"nodes {smallest[:5]} cannot reach the others"
        )


def _numbered(graph: nx.Graph, nodes: Sequence[Hashable]) -> nx.Graph:
    """Return the graph with these nodes as 0, 1, …, without attributes and links to themselves."""
    plain = nx.empty_graph(len(nodes))
    number = {node: position for position, node in enumerate(nodes)}
    plain.add_edges_from((number[a], number[b]) for a, b in graph.edges if a != b)
    return plain


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
