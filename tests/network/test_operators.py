"""Shift operators against their definitions, entry by entry."""

import naive
import networkx as nx
import pytest
import torch
from drawn import seeded
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.network import GraphConfig, make_graph, shift_operator
from fedsurf.network.operators import SPARSE_ABOVE

SHIFTS = ["adjacency", "metropolis", "laplacian"]
graphs = st.builds(
    lambda agents, seed: make_graph(
        GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed)
    ),
    st.integers(1, 8),
    st.integers(0, 1000),
)


@pytest.mark.parametrize("shift", SHIFTS)
@given(graph=graphs)
def test_every_entry_is_as_defined(shift, graph):
    operator = shift_operator(graph, shift)
    assert operator.dtype == torch.float64
    expected = [[naive.shift_entry(graph, i, j, shift) for j in graph] for i in graph]
    torch.testing.assert_close(
        operator, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14
    )


@given(graph=graphs)
def test_adjacency_takes_means_over_oneself_and_ones_neighbours(graph):
    operator = shift_operator(graph, "adjacency")
    torch.testing.assert_close(operator.sum(1), torch.ones(len(graph)).double())
    assert (operator >= 0).all()


@given(graph=graphs)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(graph):
    operator = shift_operator(graph, "metropolis")
    torch.testing.assert_close(operator, operator.T)
    torch.testing.assert_close(operator.sum(1), torch.ones(len(graph)).double())
    assert (operator >= -1e-15).all()
    assert (operator.diagonal() > 0).all()


@given(graph=graphs)
def test_the_laplacian_is_symmetric_with_its_spectrum_between_0_and_2(graph):
    operator = shift_operator(graph, "laplacian")
    torch.testing.assert_close(operator, operator.T)
    spectrum = torch.linalg.eigvalsh(operator)
    assert abs(float(spectrum[0])) < 1e-12
    assert float(spectrum[-1]) < 2 + 1e-12
    if len(graph) > 1:
        assert float(spectrum[1]) > 1e-9  # connected: a single eigenvalue of 0


def test_the_laplacian_of_a_bipartite_graph_reaches_2():
    spectrum = torch.linalg.eigvalsh(shift_operator(nx.star_graph(5), "laplacian"))
    torch.testing.assert_close(spectrum[-1], torch.tensor(2.0).double())


@pytest.mark.parametrize("shift", SHIFTS)
def test_large_operators_of_few_links_are_sparse_and_equal_to_dense_ones(shift):
    graph = nx.cycle_graph(SPARSE_ABOVE + 1)
    operator = shift_operator(graph, shift)
    assert operator.is_sparse
    expected = torch.zeros(len(graph), len(graph)).double()
    for i in graph:
        for j in (i, *graph.neighbors(i)):
            expected[i, j] = naive.shift_entry(graph.subgraph(_around(graph, i)), i, j, shift)
    torch.testing.assert_close(operator.to_dense(), expected)


def _around(graph, node):
    """Return what entries of `node` depend on: its neighbours, and theirs for their degrees."""
    near = {node, *graph.neighbors(node)}
    return near | {far for one in near for far in graph.neighbors(one)}


def test_small_operators_and_those_of_many_links_are_dense():
    assert not shift_operator(nx.cycle_graph(SPARSE_ABOVE)).is_sparse
    assert not shift_operator(nx.complete_graph(SPARSE_ABOVE + 1)).is_sparse


def test_an_unknown_shift_is_refused():
    with pytest.raises(ValueError, match=r"^shift: got 'identity'"):
        shift_operator(nx.path_graph(2), "identity")
