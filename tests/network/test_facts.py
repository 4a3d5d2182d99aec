"""What everybody knows of a network, against its graph and its matrix S."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.network import (
    GraphConfig,
    LossyNetwork,
    Network,
    StarNetwork,
    TimeVaryingNetwork,
    make_graph,
)
from fedsurf.network.facts import Spectrum

SHIFTS = ["adjacency", "metropolis", "laplacian"]


@pytest.mark.parametrize("shift", SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000))
def test_the_facts_of_a_graph_are_those_of_its_matrix(shift, agents, seed):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))
    facts = Network(graph, shift).facts
    matrix = Network(graph, shift).operator(torch.float64)
    assert (facts.agents, facts.reporting, facts.shift) == (agents, agents, shift)
    assert facts.degrees.tolist() == [degree for _, degree in sorted(graph.degree)]
    assert facts.reliable
    averages = bool((matrix.sum(1) - 1).abs().max() < 1e-12)
    assert facts.spectrum.averages == averages
    assert facts.spectrum.keeps_average == (averages and torch.allclose(matrix, matrix.T))
    if averages:
        values = torch.linalg.eigvals(matrix).real
        assert facts.spectrum.lowest_eigenvalue == pytest.approx(float(values.min()), abs=1e-7)
    if facts.spectrum.keeps_average:
        values = torch.linalg.eigvalsh(matrix).abs().sort().values
        second = float(values[-2]) if agents > 1 else 0.0
        assert facts.spectrum.second_eigenvalue == pytest.approx(second, abs=1e-9)


def test_an_asymmetry_or_an_excess_above_rounding_counts():
    average = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    for size, expected in ((1e-12, True), (1e-6, False)):
        excess, twisted = average.clone(), average.clone()
        excess[0, 0] += size
        twisted[0, 1] += size
        twisted[0, 2] -= size
        assert Spectrum(lambda s=excess: [average, s]).averages == expected
        assert Spectrum(lambda s=twisted: [average, s]).averages
        assert Spectrum(lambda s=twisted: [average, s]).keeps_average == expected


def test_the_matrices_are_read_once_and_only_if_somebody_asks():
    asked = []

    class Watched(Network):
        def operators(self):
            asked.append(self)
            return super().operators()

    network = Watched(nx.cycle_graph(5), "metropolis")
    assert network.facts is network.facts
    assert not asked
    for _ in range(3):
        assert network.facts.spectrum.averages
        assert network.facts.spectrum.second_eigenvalue > 0
    assert len(asked) == 2  # once for each fact


@pytest.mark.parametrize(("reporting", "reliable"), [(None, True), (6, True), (2, False)])
def test_a_star_is_reliable_if_all_agents_report(reporting, reliable):
    facts = StarNetwork(6, reporting, seeded(0), "metropolis").facts
    assert (facts.agents, facts.reporting) == (6, reporting or 6)
    assert facts.reliable == reliable
    assert facts.degrees.tolist() == [6, *[1] * 6]  # the server's row is the first
    assert facts.spectrum.keeps_average
    assert not StarNetwork(6, reporting, seeded(0), "adjacency").facts.spectrum.keeps_average


def test_a_fault_changes_reliability_only():
    inner = Network(nx.cycle_graph(5), "metropolis")
    faulty = LossyNetwork(LossyNetwork(inner, 0.0, seeded(0)), 0.1, seeded(0)).facts
    assert not faulty.reliable
    assert faulty.spectrum is inner.facts.spectrum
    assert faulty.degrees is inner.facts.degrees


def test_over_changing_links_the_spectrum_is_that_of_every_round():
    ring, path = nx.cycle_graph(4), nx.path_graph(4)
    lowest = [Network(g, "adjacency").facts.spectrum.lowest_eigenvalue for g in (ring, path)]
    changing = TimeVaryingNetwork([ring, path], "adjacency").facts.spectrum
    assert changing.lowest_eigenvalue == min(lowest)
    assert changing.averages
    assert not changing.keeps_average  # a path's S is not symmetric
    assert TimeVaryingNetwork([ring, ring], "adjacency").facts.spectrum.keeps_average


def test_agents_have_their_numbers_as_ids_and_a_server_has_minus_one():
    assert Network(nx.path_graph(3)).ids.tolist() == [0, 1, 2]
    star = StarNetwork(3, 2, seeded(0))
    assert star.ids.tolist() == [-1, 0, 1, 2]
    assert (Network(nx.path_graph(3)).servers, star.servers) == (0, 1)
