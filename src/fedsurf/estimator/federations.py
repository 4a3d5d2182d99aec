"""From the data that a user gives to a federation: checked rows, the agent of each, and the agents' network."""

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast, get_args

import networkx as nx
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from fedsurf.common.checks import check_count
from fedsurf.common.text import counted
from fedsurf.network import (
    Calling,
    GraphConfig,
    GraphKind,
    Network,
    StarNetwork,
    Wire,
    check_graph,
    make_graph,
)
from fedsurf.tasks.groups import UnpaddedExamples
from fedsurf.unrolled.transferable.local import FeatureRangeError

Array = NDArray[Any]

MAX_DEFAULT_AGENTS = 10
"""Default number of agents that rows are dealt to."""
MIN_DEFAULT_ROWS = 20
"""Rows of an agent below which the default number of agents is smaller."""
DEFAULT_REWIRED = 0.1
"""Default share of links that a small world rewires."""


def check_features(x: Any) -> None:
    """Raise if features are masked, or dates, of which NumPy would make numbers."""
    check_not_masked("X", x)
    types = x.dtypes if isinstance(x, pd.DataFrame) else [np.asarray(x).dtype]
    dated = [str(kind) for kind in types if kind.kind in "mM"]
    if dated:
        raise TypeError(f"X: got features of type {dated[0]}, but they must be numbers")


def check_labels(y: Any) -> None:
    """Raise if labels are masked or missing."""
    check_not_masked("y", y)
    given = np.asarray(y, dtype=object)  # NumPy makes text of a NaN among text
    missing = np.flatnonzero(pd.isna(given))
    if given.ndim == 1 and missing.size:
        raise ValueError(
            f"y: got no label for row {missing[0]} ({missing.size} in all), but each row needs one"
        )


def check_not_masked(argument: str, values: Any) -> None:
    """Raise if values of an array are masked: NumPy would use the numbers below the mask."""
    masked = values.mask.sum() if isinstance(values, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(f"{argument}: got {masked} masked values, but no value may be missing")


def check_label_types(y: Array) -> None:
    """Raise unless scikit-learn takes labels for classes: all numbers, or all text."""
    try:
        check_classification_targets(y)
    except (TypeError, ValueError) as error:
        if y.dtype.kind not in "OS":  # scikit-learn's message names the trouble with numbers
            raise
        kinds = sorted({type(label).__name__ for label in y.flat})
        raise type(error)(
            f"y: got labels of the type {' and '.join(kinds)}, but they must be all numbers or all text "
            f"({error})"
        ) from error


@contextmanager
def training_errors(network: Network) -> Iterator[None]:
    """Name X in errors of numbers out of range and of divergence."""
    try:
        yield
    except FeatureRangeError as error:
        raise FeatureRangeError(str(error).replace("task", "X", 1)) from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged(network) from error


def diverged(network: Network) -> ValueError:
    """Return the error of a run whose heads are not finite."""
    return ValueError(
        f"X: got features with which training diverged (round {network.rounds}); "
        "are some of them larger than 1e15?"
    )


def default_agents(rows: int) -> int:
    """Return the default number of agents."""
    return max(1, min(MAX_DEFAULT_AGENTS, rows // MIN_DEFAULT_ROWS))


def assign_rows(
    agents: Any, n_agents: int | None, graph: Any, rows: int, random: torch.Generator
) -> tuple[Array, Array]:
    """Return the ids of the agents, and the place of each row's agent among them, `[rows]`.

    The agents are those of `agents`, an id for each row, or the nodes of a networkx graph, or
    0, 1, …, n_agents − 1; without `agents`, rows are dealt to them at random.
    """
    if agents is not None:
        ids, owner = owners(agents, rows)
        if n_agents not in (None, len(ids)):
            raise ValueError(
                f"n_agents: got {n_agents}, but agents says whose each row is, and has "
                f"{counted(len(ids), 'id')}"
            )
        return ids, owner
    if not isinstance(graph, nx.Graph):
        count = default_agents(rows) if n_agents is None else n_agents
        return np.arange(count), deal(rows, count, random)
    check_graph(graph)
    nodes = list(graph)
    if len(nodes) > rows:
        raise ValueError(
            f"graph: got {len(nodes)} nodes for {counted(rows, 'row')}, but each agent needs a row"
        )
    if n_agents not in (None, len(nodes)):
        raise ValueError(
            f"n_agents: got {n_agents}, but the graph has {counted(len(nodes), 'node')}"
        )
    ids = np.empty(len(nodes), dtype=object)
    ids[:] = nodes
    return ids, deal(rows, len(nodes), random)


def deal(rows: int, agents: int, generator: torch.Generator) -> Array:
    """Deal rows to agents at random, in numbers that differ by at most one: agents, `[rows]`."""
    if not 1 <= agents <= rows:
        raise ValueError(
            f"n_agents: got {agents}, but it must be between 1 and {rows}, the number of rows: "
            "each agent needs one"
        )
    owner: Array = np.empty(rows, dtype=np.int64)
    owner[torch.randperm(rows, generator=generator, device="cpu").numpy()] = (
        np.arange(rows) % agents
    )
    return owner


def owners(agents: Any, rows: int) -> tuple[Array, Array]:
    """Return the sorted ids of the agents, and the place of each row's agent among them, `[rows]`."""
    check_not_masked("agents", agents)
    ids = np.asarray(agents)
    if ids.ndim != 1 or len(ids) != rows:
        raise ValueError(
            f"agents: got shape {list(ids.shape)}, but it must be [{rows}], an id for each row"
        )
    # NumPy makes text of all items of a list if some are text, of a NaN too: judge the original.
    given = np.asarray(agents, dtype=object) if ids.dtype.kind == "U" else ids
    missing = np.flatnonzero(pd.isna(given))
    if missing.size:
        raise ValueError(
            f"agents: got no id for row {missing[0]} ({missing.size} in all), but each row needs one"
        )
    try:
        found, owner = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"agents: got ids without an order ({error}), but they must be all numbers, all text, all dates "
            "or all tuples of such"
        ) from error
    return found.astype(ids.dtype), owner


def own_rows(agents: Any, own: Array, rows: int) -> Array:
    """Return the place of each row's agent among `own`, the ids of the agents that live here, `[rows]`.

    Without `agents`, all rows are those of the only agent.
    """
    if agents is None and len(own) == 1:
        return np.zeros(rows, dtype=np.int64)
    ids, owner = (np.array([]), own) if agents is None else owners(agents, rows)
    if not np.array_equal(ids, own):
        raise ValueError(
            f"agents: got {'no ids' if agents is None else ids.tolist()}, but they must be the ids of the "
            f"agents that live here, {own.tolist()}, each with a row"
        )
    return owner


def examples_of(x: Array, labels: Array, owner: Array, agents: int) -> UnpaddedExamples:
    """Group rows by their agents."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=agents).tolist()
    rows, their_labels = (
        torch.from_numpy(x[order]),
        torch.from_numpy(labels[order].astype(np.int64)),
    )
    return UnpaddedExamples(rows, their_labels, sizes)


def family(
    kind: str, agents: int, degree: int = 3, probability: float | None = None
) -> GraphConfig:
    """Return the family of graphs nearest to `kind` that exists for a number of agents.

    - `regular`: an odd degree with an odd number of agents becomes one more; degree 2 is a ring.
    - `small-world`: an odd degree becomes one more.
    - Both, with no more agents than neighbours: the complete graph.
    - `torus`: a ring, if the agents fill no rectangle.
    - `erdos-renyi`: the default probability is 0.1 or 2 ln(n)/n, whichever is larger, with which a graph
      of n agents is almost always connected.

    Examples
    --------
    >>> family("regular", 9).degree, family("torus", 13).kind
    (4, 'ring')
    """
    if not isinstance(kind, str) or kind not in get_args(GraphKind):
        raise ValueError(
            f"graph: got {repr(kind)[:60]}, but it must be a networkx graph or one of "
            f"{', '.join(get_args(GraphKind))}"
        )
    check_count(degree, "degree")
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
        probability = DEFAULT_REWIRED
        if kind == "erdos-renyi":
            probability = min(1.0, max(0.1, 2 * math.log(max(2, agents)) / agents))
    return GraphConfig(cast(GraphKind, kind), degree, probability)


def federation_network(
    graph: str | nx.Graph,
    ids: Sequence[Hashable],
    generator: torch.Generator,
    *,
    degree: int = 3,
    probability: float | None = None,
    reporting: int | None = None,
    calling: Calling = "random",
    wire: Wire = "float32",
) -> Network:
    """Return the network of a custom graph, or of the family nearest to a name.

    Its weights are Metropolis–Hastings weights. A star's node 0 is a server.
    """
    named = not isinstance(graph, nx.Graph)
    config = family(graph, len(ids), degree, probability) if named else None
    if config is not None and config.kind == "star":
        return StarNetwork(len(ids), reporting, generator, calling=calling, wire=wire)
    if reporting is not None:
        kind = f"the graph {graph!r}" if named else "a custom graph"
        raise ValueError(
            f"reporting: got {reporting} with {kind}, but only through a server, with graph='star', do some "
            "agents report and others not"
        )
    built = _ordered(graph, ids) if config is None else make_graph(config, len(ids), generator)
    return Network(built, shift="metropolis", wire=wire)


def _ordered(graph: nx.Graph, ids: Sequence[Hashable]) -> nx.Graph:
    """Return a graph with its nodes in the order of the agents' ids.

    Its nodes are ids, or the numbers 0, 1, …. Graphs and tables from files may have numbers as text: 7
    and "7" are the same, unless two nodes or ids have the same text.
    """
    check_graph(graph)
    known, numbers = set(graph), range(len(ids))
    by_text, texts = {str(node): node for node in graph}, [str(name) for name in ids]
    if known == set(ids):
        order: Sequence[Hashable] = ids
    elif len(by_text) == len(known) == len(ids) and set(by_text) == set(texts):
        order = [by_text[text] for text in texts]
    elif known == set(numbers):
        order = numbers
    else:
        different = sorted(map(repr, known ^ set(ids)))
        raise ValueError(
            f"graph: got {counted(len(graph), 'node')} for {counted(len(ids), 'agent')}, but its nodes "
            f"must be the agents' ids, or the whole numbers 0 … {len(ids) - 1} in the order of these; "
            f"different are {', '.join(different[:3])}"
        )
    ordered = nx.Graph()
    ordered.add_nodes_from(order)
    ordered.add_edges_from(graph.edges())
    return ordered
