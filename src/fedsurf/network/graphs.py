"""Checks of graphs that become networks, and their numbered nodes."""

from collections.abc import Hashable, Sequence

import networkx as nx

from fedsurf.common.checks import check_kind


def check_graph(graph: nx.Graph) -> nx.Graph:
    """Return a connected graph with its nodes numbered 0, 1, … in their order; raise if it is not one."""
    _check_links(graph, "graph")
    _check_connected(graph, "graph: got")
    return numbered(graph, list(graph))


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
    return [numbered(graph, list(graphs[0])) for graph in graphs]


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


def numbered(graph: nx.Graph, nodes: Sequence[Hashable]) -> nx.Graph:
    """Return the graph with these nodes as 0, 1, …, without attributes and links to themselves."""
    plain = nx.empty_graph(len(nodes))
    number = {node: position for position, node in enumerate(nodes)}
    plain.add_edges_from((number[a], number[b]) for a, b in graph.edges if a != b)
    return plain
