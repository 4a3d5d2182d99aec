"""Shift operators against their definitions entry by entry, and their eigenvalues."""

import math

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.network import GraphConfig, Network, make_graph, operators
from fedsurf.network.operators import MAX_DENSE_LOWEST, MAX_DENSE_NODES

SHIFTS = ["adjacency", "metropolis", "laplacian"]
graphs = st.builds(
    lambda agents, seed: make_graph(
        GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed)
    ),
    st.integers(1, 8),
    st.integers(0, 1000),
)


def shift_operator(graph, shift):
    return Network(graph, shift).operator(torch.float64)


def eigenvalues(operator):
    """Return the eigenvalues of any square matrix; those of an S are real."""
    found = torch.linalg.eigvals(operator.to_dense())
    assert found.imag.abs().max() < 1e-8
    return found.real


@pytest.mark.parametrize("shift", SHIFTS)
@given(graph=graphs)
def test_every_entry_is_as_defined(shift, graph):
    expected = [[naive.shift_entry(graph, i, j, shift) for j in graph] for i in graph]
    torch.testing.assert_close(
        shift_operator(graph, shift),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-14,
        atol=1e-14,
    )


@pytest.mark.parametrize("shift", SHIFTS)
def test_only_large_operators_with_few_links_are_sparse(shift):
    ring = nx.cycle_graph(MAX_DENSE_NODES + 1)
    operator = shift_operator(ring, shift)
    assert operator.is_sparse
    expected = [[naive.shift_entry(ring, i, j, shift) for j in ring] for i in ring]
    torch.testing.assert_close(operator.to_dense(), torch.tensor(expected, dtype=torch.float64))
    assert not shift_operator(nx.cycle_graph(MAX_DENSE_NODES), shift).is_sparse
    assert not shift_operator(nx.complete_graph(MAX_DENSE_NODES + 1), shift).is_sparse


def test_an_unknown_shift_is_refused():
    with pytest.raises(ValueError, match=r"^shift: got 'identity'"):
        Network(nx.path_graph(2), "identity")


@pytest.mark.parametrize("shift", ["metropolis", "adjacency"])
@given(graph=graphs)
def test_the_lowest_eigenvalue_is_that_of_the_spectrum(shift, graph):
    expected = eigenvalues(shift_operator(graph, shift)).min()
    found = Network(graph, shift).facts.spectrum.lowest_eigenvalue
    assert found == pytest.approx(float(expected), abs=1e-7)


@pytest.mark.parametrize("shift", ["metropolis", "adjacency"])
@pytest.mark.parametrize(
    "graph",
    [
        nx.random_regular_graph(3, MAX_DENSE_LOWEST + 2, seed=1),
        nx.complete_bipartite_graph(40, MAX_DENSE_LOWEST),
        nx.barabasi_albert_graph(MAX_DENSE_LOWEST + 20, 2, seed=2),
    ],
)
def test_the_lowest_eigenvalue_of_many_nodes_is_found_without_the_spectrum(graph, shift):
    network, again = Network(graph, shift), Network(graph, shift)
    expected = float(eigenvalues(network.operator(torch.float64)).min())
    found = network.facts.spectrum.lowest_eigenvalue
    assert found == pytest.approx(expected, abs=2e-3)
    assert found == again.facts.spectrum.lowest_eigenvalue


@pytest.mark.parametrize("agents", [3, 70, 301])
def test_the_second_eigenvalue_of_a_ring_is_the_known_one(agents, monkeypatch):
    operator = shift_operator(nx.cycle_graph(agents), "metropolis")
    known = (1 + 2 * math.cos(2 * math.pi / agents)) / 3
    assert operators.second_eigenvalue(operator) == pytest.approx(known, abs=1e-12)
    if agents > 100:
        monkeypatch.setattr(operators, "MAX_DENSE_SECOND", 100)
        large = operators.second_eigenvalue(operator)
        assert 1 - large == pytest.approx(1 - known, rel=1e-6)
        assert operators.second_eigenvalue(operator) == large


def test_negative_eigenvalues_count_by_their_absolute_value():
    network = Network(nx.complete_bipartite_graph(4, 4), "metropolis")
    spectrum = torch.linalg.eigvalsh(network.operator(torch.float64))
    assert -spectrum[0] > spectrum[-2] + 0.1
    assert network.facts.spectrum.second_eigenvalue == pytest.approx(-float(spectrum[0]))
