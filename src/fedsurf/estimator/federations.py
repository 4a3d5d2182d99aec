"""From a table of examples to a federation: who holds which rows, and who talks to whom."""

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, cast, get_args

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from fedsurf.common.checks import check_whole
from fedsurf.common.text import counted
from fedsurf.estimator.columns import missing_in
from fedsurf.network import (
    Calling,
    GraphConfig,
    GraphKind,
    Network,
    StarNetwork,
    check_graph,
    make_graph,
)
from fedsurf.tasks.unpadded import UnpaddedExamples

Array = NDArray[Any]

USUAL_AGENTS = 10
"""How many agents rows are dealt to where nobody says."""
USUAL_ROWS = 20
"""Of small tables, each of them gets at least so many rows; the agents are fewer, down to one."""
REWIRED = 0.1
"""The share of links that a small world rewires where nobody says."""


def usual_agents(rows: int) -> int:
    """Return how many agents so many rows are dealt to where nobody says."""
    return max(1, min(USUAL_AGENTS, rows // USUAL_ROWS))


def deal(rows: int, agents: int, generator: torch.Generator) -> Array:
    """Deal rows to agents at random, in numbers that differ by at most one: agents, `[rows]`."""
    if not 1 <= agents <= rows:
        raise ValueError(
            f"n_agents: got {agents}, but it must be between 1 and {rows}, the number of rows: "
            "each agent needs one"
        )
    owner: Array = np.empty(rows, dtype=np.int64)
    owner[torch.randperm(rows, generator=generator).numpy()] = np.arange(rows) % agents
    return owner


def owners(agents: Any, rows: int) -> tuple[Array, Array]:
    """Return the sorted ids of the agents, and the number of each row's agent, `[rows]`."""
    ids = np.asarray(agents)
    if ids.ndim != 1 or len(ids) != rows:
        raise ValueError(
            f"agents: got shape {list(ids.shape)}, but it must be [{rows}], an id for each row"
        )
    # Where some of a list is text, NumPy makes text of all, of a NaN too: judge what was given.
    given = np.asarray(agents, dtype=object) if ids.dtype.kind == "U" else ids
    missing = missing_in(given)
    if missing.any():
        raise ValueError(
            f"agents: got no id for row {int(np.flatnonzero(missing)[0])} "
            f"({int(missing.sum())} in all), but each row needs one"
        )
    try:
        found, owner = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"agents: got ids of different kinds ({error}), but they must be all numbers or all text"
        ) from error
    if given.dtype.kind == "O":
        _check_order(found)
    return found.astype(ids.dtype), owner


def _check_order(ids: Array) -> None:
    """Raise unless ids can be nodes of a graph, and each comes before the next: sets, say, may do neither."""
    wanted = "but ids must be numbers, text, bytes, dates or tuples of such"
    for one in ids.tolist():
        try:
            hash(one)
        except TypeError as error:
            raise ValueError(f"agents: got {repr(one)[:60]}, {wanted}") from error
    for one, after in pairwise(ids.tolist()):
        if not one < after:
            raise ValueError(
                f"agents: got {repr(one)[:60]} and {repr(after)[:60]}, of which none comes first, {wanted}"
            )


def names_of(ids: Array) -> list[Hashable]:
    """Return ids as Python has them, or as NumPy does where Python has none: dates to the nanosecond."""
    names: list[Hashable] = ids.tolist()
    if ids.dtype.kind in "mM" and any(isinstance(name, int) for name in names):
        return list(ids)
    return names


def examples_of(x: Array, labels: Array, owner: Array, agents: int) -> UnpaddedExamples:
    """Give every agent its rows."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=agents).tolist()
    rows, their_labels = torch.from_numpy(x[order]), torch.tensor(labels[order], dtype=torch.int64)
    return UnpaddedExamples(rows, their_labels, sizes)


def family(
    kind: str, agents: int, degree: int = 3, probability: float | None = None
) -> GraphConfig:
    """Return a family of graphs that exists for so many agents, the nearest to what was asked for.

    - `regular`: with an odd number of agents and an odd degree, one neighbour more. Of two
      neighbours, a ring, which is the only such graph that is connected.
    - `small-world`: with an odd degree, one neighbour more.
    - Either, with no more agents than neighbours: the complete graph.
    - `torus`: a ring, where the agents fill no rectangle.
    - `erdos-renyi`: without a probability, 0.1 or 2 ln(n)/n, whichever is larger, with which a graph
      of n agents is connected almost always.
    """
    if not isinstance(kind, str) or kind not in get_args(GraphKind):
        raise ValueError(
            f"graph: got {repr(kind)[:60]}, but it must be a networkx graph or one of "
            f"{', '.join(get_args(GraphKind))}"
        )
    check_whole(degree, "degree")
    if degree < 1:
        raise ValueError(f"degree: got {degree}, but it must be at least 1")
    if kind == "regular" and degree == 2:
        kind = "ring"
    if kind == "regular":
        degree += agents * degree % 2
    if kind == "small-world":
        degree += degree % 2
    if kind in ("regular", "small-world") and degree >= agents:
        kind = "complete"
    if kind == "torus" and all(agents % rows for rows in range(2, math.isqrt(agents) + 1)):
        kind = "ring"
    if probability is None:
        probability = REWIRED
        if kind == "erdos-renyi":
            probability = min(1.0, max(0.1, 2 * math.log(max(2, agents)) / agents))
    return GraphConfig(cast(GraphKind, kind), degree, probability)


def named_network(
    kind: str,
    agents: int,
    generator: torch.Generator,
    *,
    degree: int = 3,
    probability: float | None = None,
    reporting: int | None = None,
    calling: Calling = "random",
) -> Network:
    """Draw a network of the family nearest to `kind`, with Metropolis–Hastings weights."""
    config = family(kind, agents, degree, probability)
    if config.kind == "star":
        return StarNetwork(agents, reporting, generator, calling=calling)
    if reporting is not None:
        raise ValueError(
            f"reporting: got {reporting} with the graph {kind!r}, "
            "but only through a server, in a star, do some agents report and others not"
        )
    return Network(make_graph(config, agents, generator), shift="metropolis")


def own_network(graph: nx.Graph, ids: Sequence[Hashable]) -> Network:
    """Return the network of one's own graph, whose nodes are the agents' ids, or numbers.

    A number may be text in one of both, as in graphs and tables that were read from files: where no
    text stands for two nodes or ids, that says who is who.
    """
    check_graph(graph)
    known, numbers = set(graph), range(len(ids))
    written, named = {str(node): node for node in graph}, [str(one) for one in ids]
    if known == set(ids):
        order: Sequence[Hashable] = ids
    elif len(written) == len(known) == len(ids) and set(written) == set(named):
        order = [written[name] for name in named]
    elif known == set(numbers):
        order = numbers
    else:
        strange = sorted(map(repr, known ^ set(ids)))
        raise ValueError(
            f"graph: got {counted(len(graph), 'node')} for {counted(len(ids), 'agent')}, but its nodes "
            f"must be the agents' ids, or the whole numbers 0 … {len(ids) - 1} in the order of these; "
            f"only one of both has {', '.join(strange[:3])}"
        )
    ordered = nx.Graph()
    ordered.add_nodes_from(order)
    ordered.add_edges_from(graph.edges())
    return Network(ordered, shift="metropolis")
