"""Graphs: who is linked to whom. Families by name, or any networkx graph of one's own."""

from collections.abc import Callable, Hashable, Sequence
from typing import get_args

import networkx as nx
import torch

from fedsurf.common.checks import check_kind, check_number, check_whole
from fedsurf.common.randomness import next_seed
from fedsurf.common.text import counted
from fedsurf.network.config import GraphConfig, GraphKind

_DRAWS = 100
"""How many random graphs are drawn in search of a connected one."""


def make_graph(config: GraphConfig, agents: int, generator: torch.Generator) -> nx.Graph:
    """Draw a connected graph of the family over `agents` agents, numbered from 0.

    A star has one node more, the server, as node 0. Random families are drawn again until the graph
    is connected, which is an error after a hundred vain draws.
    """
    check_whole(agents, "agents")
    if agents < 1:
        raise ValueError(f"agents: got {agents}, but a network has at least one agent")
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
            check_whole(config.degree, "degree")
            _check_degree(config.degree, agents, even=agents * config.degree % 2 == 0)
            return _connected(
                lambda: nx.random_regular_graph(config.degree, agents, seed=next_seed(generator)),
                "degree",
                config.degree,
            )
        case "erdos-renyi":
            _check_probability(config.probability)
            return _connected(
                lambda: nx.gnp_random_graph(agents, config.probability, seed=next_seed(generator)),
                "probability",
                config.probability,
            )
        case "small-world":
            _check_probability(config.probability)
            # networkx would round an odd degree down without a word.
            check_whole(config.degree, "degree")
            _check_degree(config.degree, agents, even=config.degree % 2 == 0)
            return _connected(
                lambda: nx.watts_strogatz_graph(
                    agents, config.degree, config.probability, seed=next_seed(generator)
                ),
                "degree",
                config.degree,
            )
    raise ValueError(f"kind: got {config.kind!r}, but it must be one of {get_args(GraphKind)}")


def check_graph(graph: nx.Graph) -> nx.Graph:
    """Return `graph` with its nodes numbered 0, 1, … in their order, or raise if it cannot serve."""
    _check_links(graph, "graph")
    _check_connected(graph, "graph: got")
    return _numbered(graph, list(graph))


def check_graphs(graphs: Sequence[nx.Graph]) -> list[nx.Graph]:
    """Return graphs of the same nodes, numbered 0, 1, … in the order of the first.

    Each alone may fall apart. Together they must be connected: with all their links in one graph,
    every node must reach every other.
    """
    if isinstance(graphs, nx.Graph):
        raise TypeError("graphs: got one networkx graph, but it must be a sequence of them")
    if not len(graphs):
        raise ValueError("graphs: got none, but there must be at least one")
    nodes: list[Hashable] = []
    for place, graph in enumerate(graphs):
        _check_links(graph, f"graphs[{place}]")
        nodes = nodes or list(graph)
        other = set(nodes) ^ set(graph)
        if other:
            raise ValueError(
                f"graphs[{place}]: got other nodes than the first graph has, such as "
                f"{min(other, key=str)!r}, but all graphs must be of the same agents"
            )
    _check_connected(nx.compose_all(graphs), "graphs: got, with all links together,")
    return [_numbered(graph, nodes) for graph in graphs]


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
    """Return the graph with these nodes, in this order, as 0, 1, …, without attributes and loops."""
    plain = nx.Graph()
    plain.add_nodes_from(range(len(nodes)))
    number = {node: position for position, node in enumerate(nodes)}
    plain.add_edges_from((number[a], number[b]) for a, b in graph.edges if a != b)
    return plain


def _torus(agents: int) -> nx.Graph:
    rows = max(r for r in range(1, int(agents**0.5) + 1) if agents % r == 0)
    if rows < 2:
        raise ValueError(
            f"agents: got {agents}, but a torus needs a number of agents with two factors above 1"
        )
    grid = nx.grid_2d_graph(rows, agents // rows, periodic=True)
    return check_graph(grid)


def _connected(draw: Callable[[], nx.Graph], argument: str, value: float) -> nx.Graph:
    for _ in range(_DRAWS):
        graph = draw()
        if nx.is_connected(graph):
            # networkx may list the nodes of a random graph in any order: agents are 0, 1, …
            ordered = nx.Graph()
            ordered.add_nodes_from(range(len(graph)))
            ordered.add_edges_from(sorted(tuple(sorted(edge)) for edge in graph.edges))
            return ordered
    raise ValueError(
        f"{argument}: got {value}, with which none of {_DRAWS} random graphs was connected; "
        "it must be larger"
    )


def _check_degree(degree: int, agents: int, *, even: bool) -> None:
    if not 1 <= degree < agents or not even:
        raise ValueError(
            f"degree: got {degree} for {counted(agents, 'agent')}, but it must be between 1 and {agents - 1}, "
            "and degree times agents must be even; in a small world, degree itself"
        )


def _check_probability(probability: float) -> None:
    check_number(probability, "probability")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability: got {probability}, but it must be between 0 and 1")
