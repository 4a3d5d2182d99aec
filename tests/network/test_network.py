"""Mixing against a loop over neighbours, sparse against dense, and what is counted."""

from dataclasses import replace

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded, weights

from fedsurf.network import (
    FaultConfig,
    GraphConfig,
    LossyNetwork,
    Network,
    NetworkConfig,
    StaleNetwork,
    StarNetwork,
    TimeVaryingNetwork,
    make_graph,
    make_network,
)

SHIFTS = ["adjacency", "metropolis", "laplacian"]


@pytest.mark.parametrize("shift", SHIFTS)
@given(agents=st.integers(1, 8), width=st.integers(1, 3), seed=st.integers(0, 1000))
def test_mixing_equals_a_loop_over_neighbours(shift, agents, width, seed):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))
    values = weights(seed, agents, width)
    mixed = Network(graph, shift).mix(values)
    expected = torch.tensor(naive.mix(graph, values.tolist(), shift), dtype=torch.float64)
    torch.testing.assert_close(mixed, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shift", SHIFTS)
def test_mixing_takes_any_trailing_dimensions(shift):
    network = Network(nx.cycle_graph(5), shift)
    values = torch.randn(5, 2, 3, 4, generator=seeded(0), dtype=torch.float64)
    mixed = network.mix(values)
    assert mixed.shape == values.shape
    torch.testing.assert_close(mixed.flatten(1), network.mix(values.flatten(1)))
    flipped = values.transpose(1, 3)  # not contiguous
    torch.testing.assert_close(network.mix(flipped), mixed.transpose(1, 3))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_networks_mix_and_differentiate_like_dense_ones(shift, dtype):
    graph = make_graph(GraphConfig("regular"), 502, seeded(1))
    network = Network(graph, shift)
    assert network.operator(dtype).is_sparse
    dense = network.operator(torch.float64).to_dense().to(dtype)
    values = weights(2, 502, 6, dtype).reshape(502, 2, 3).requires_grad_()
    upstream = weights(3, 502, 6, dtype).reshape(502, 2, 3)
    results = [network.mix(values), torch.einsum("ij,jab->iab", dense, values)]
    slopes = [torch.autograd.grad(result, values, upstream)[0] for result in results]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*slopes)
    assert results[0].dtype == dtype


@pytest.mark.parametrize("shift", SHIFTS)
def test_derivatives_through_sparse_networks_are_those_of_autograd_to_the_bit(shift):
    network = Network(make_graph(GraphConfig(), 100, seeded(3)), shift)
    operator = network.operator(torch.float32)
    assert operator.is_sparse
    values = weights(4, 100, 33, torch.float32).requires_grad_()
    slope = weights(5, 100, 33, torch.float32)
    plain = torch.sparse.mm(operator, values)
    mixed = network.mix(values)
    assert torch.equal(mixed, plain)
    (expected,) = torch.autograd.grad(plain, values, slope)
    (found,) = torch.autograd.grad(mixed, values, slope)
    assert torch.equal(found, expected)
    few = weights(6, 100, 1).requires_grad_()
    assert torch.autograd.gradcheck(network.mix, few)
    assert torch.autograd.gradgradcheck(network.mix, few)


def test_mixing_is_differentiable():
    network = Network(nx.path_graph(4), "metropolis")
    values = weights(4, 4, 2).requires_grad_()
    assert torch.autograd.gradcheck(network.mix, values)


@pytest.mark.parametrize("shift", ["adjacency", "metropolis"])
def test_agents_who_agree_still_do_after_mixing(shift):
    network = Network(make_graph(GraphConfig("regular"), 10, seeded(2)), shift)
    alike = weights(5, 1, 3).expand(10, 3)
    torch.testing.assert_close(network.mix(alike), alike)


def test_metropolis_mixing_keeps_the_average_and_reaches_consensus():
    network = Network(
        make_graph(GraphConfig("erdos-renyi", probability=0.3), 12, seeded(3)), "metropolis"
    )
    values = weights(6, 12, 3)
    mixed = values
    for _ in range(200):
        mixed = network.mix(mixed)
        torch.testing.assert_close(mixed.mean(0), values.mean(0))
    torch.testing.assert_close(mixed, values.mean(0).expand(12, 3), rtol=1e-6, atol=1e-6)


def test_a_single_agent_keeps_its_values():
    values = weights(7, 1, 3)
    for shift in ("adjacency", "metropolis"):
        assert torch.equal(Network(nx.empty_graph(1), shift).mix(values), values)


def test_two_agents_average():
    mixed = Network(nx.path_graph(2)).mix(torch.tensor([[0.0], [2.0]]))
    assert mixed.tolist() == [[1.0], [1.0]]


def test_rounds_and_floats_are_counted_link_by_link():
    network = Network(nx.path_graph(3))
    assert sorted(map(tuple, network.links.T.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert (network.rounds, network.floats) == (0, 0)
    network.mix(torch.zeros(3, 5))
    network.mix(torch.zeros(3, 2, 2))
    assert network.rounds == 2
    assert network.link_floats.tolist() == [9, 9, 9, 9]
    assert network.floats == 36
    network.reset()
    assert (network.rounds, network.floats) == (0, 0)


@pytest.mark.parametrize(
    "network",
    [
        Network(nx.path_graph(3)),
        TimeVaryingNetwork([nx.path_graph(3), nx.complete_graph(3)]),
        StarNetwork(2, 1, seeded(0)),
        LossyNetwork(Network(nx.path_graph(3)), 0.3, seeded(0)),
    ],
)
def test_a_count_that_was_looked_at_stays_what_it_was(network):
    before = network.link_floats
    network.mix(torch.zeros(3, 5))
    between = network.link_floats
    network.mix(torch.zeros(3, 2))
    assert before.tolist() == [0] * network.links.shape[1]
    assert set((between - before).tolist()) <= {0, 5}
    assert set((network.link_floats - between).tolist()) <= {0, 2}
    assert int(between.sum()) > 0


def test_a_message_in_fewer_bits_counts_as_the_floats_that_it_is_said_to_be():
    values = weights(8, 4, 5)
    for network in (Network(nx.path_graph(4)), StarNetwork(3, None, seeded(0))):
        mixed = network.mix(values, floats=2)
        assert network.link_floats.tolist() == [2] * 6
        torch.testing.assert_close(mixed, network.mix(values))
        assert network.link_floats.tolist() == [7] * 6


def test_a_single_agent_sends_nothing():
    network = Network(nx.empty_graph(1))
    network.mix(torch.zeros(1, 5))
    assert (network.rounds, network.floats) == (1, 0)


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), (3,), ()])
def test_values_of_the_wrong_shape_are_refused_and_not_counted(shape):
    network = Network(nx.path_graph(3))
    with pytest.raises(ValueError, match=r"^values: got shape .* 3 nodes"):
        network.mix(torch.zeros(shape))
    assert network.rounds == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_refused_and_not_counted(dtype):
    network = Network(nx.path_graph(3))
    counts = torch.ones(3, 2, dtype=dtype)
    for mix in (network.mix, lambda one: network.mix_parts(torch.zeros(3, 1), one)):
        with pytest.raises(TypeError, match=r"^values: got torch\.\w+, .* floating type$"):
            mix(counts)
    assert network.rounds == network.floats == 0


def test_a_graph_of_ones_own_is_checked():
    with pytest.raises(ValueError, match=r"^graph: got 2 components"):
        Network(nx.Graph([(0, 1), (2, 3)]))


def test_permuting_the_graph_permutes_the_mixing():
    graph, order = (
        make_graph(GraphConfig("erdos-renyi", probability=0.5), 6, seeded(4)),
        [3, 1, 5, 0, 2, 4],
    )
    moved = nx.Graph()
    moved.add_nodes_from(range(6))
    moved.add_edges_from((order.index(a), order.index(b)) for a, b in graph.edges)
    values = weights(8, 6, 2)
    for shift in SHIFTS:
        torch.testing.assert_close(
            Network(moved, shift).mix(values[order]), Network(graph, shift).mix(values)[order]
        )


def test_a_configuration_becomes_its_network():
    regular = make_network(NetworkConfig(), 10, seeded(5))
    assert (regular.nodes, regular.agents, regular.server) == (10, 10, False)
    assert regular.links.shape == (2, 30)
    star = make_network(NetworkConfig(GraphConfig("star"), reporting=4), 10, seeded(5))
    assert isinstance(star, StarNetwork)
    assert (star.nodes, star.agents, star.server, star.reporting) == (11, 10, True, 4)
    metropolis = make_network(NetworkConfig(shift="metropolis"), 10, seeded(5))
    assert metropolis.shift == "metropolis"
    with pytest.raises(ValueError, match=r"^reporting: got 4 with a ring"):
        make_network(NetworkConfig(GraphConfig("ring"), reporting=4), 10, seeded(5))


def test_a_configuration_says_how_a_server_calls():
    star = NetworkConfig(GraphConfig("star"), reporting=4)
    assert make_network(star, 10, seeded(5)).calling == "random"
    assert make_network(replace(star, calling="in-turn"), 10, seeded(5)).calling == "in-turn"
    faulty = replace(star, calling="in-turn", faults=FaultConfig(loss=0.1))
    assert make_network(faulty, 10, seeded(5)).inner.calling == "in-turn"
    ring = NetworkConfig(GraphConfig("ring"))
    with pytest.raises(ValueError, match=r"^calling: got 'in-turn' with a ring graph, but only"):
        make_network(replace(ring, calling="in-turn"), 10, seeded(5))
    with pytest.raises(
        ValueError, match=r"^calling: got 'x', but it must be 'random' or 'in-turn'"
    ):
        make_network(replace(star, calling="x"), 10, seeded(5))


def test_all_nodes_but_a_server_are_agents():
    values = torch.arange(4.0)[:, None]
    assert torch.equal(Network(nx.path_graph(4)).agent_rows(values), values)
    star = StarNetwork(3, None, seeded(0))
    assert torch.equal(star.agent_rows(values), values[1:])


class Doubling(Network):
    """Every neighbour hears twice what was sent."""

    def exchange(self, values, sent, lost, floats):
        return super().exchange(values, [2 * part for part in sent], lost, floats + 1)


def test_mixing_messages_of_several_parts_and_faults_go_through_carry():
    graph, values = nx.path_graph(4), weights(9, 4, 3)
    plain = Network(graph).operator(torch.float64)
    expected = (2 * plain - plain.diag().diag()) @ values
    network = Doubling(graph)
    torch.testing.assert_close(network.mix(values), expected)
    one, other = network.mix_parts(values[:, :1], values[:, 1:])
    torch.testing.assert_close(torch.cat([one, other], 1), expected)
    faulty = StaleNetwork(network, 1, seeded(0))
    torch.testing.assert_close(faulty.mix(values), expected)
    assert network.link_floats.tolist() == [12] * 6
