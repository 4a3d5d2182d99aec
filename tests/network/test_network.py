"""Mixing against a loop over neighbours, sparse against dense, and the counts of rounds and floats."""

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
def test_values_may_have_any_trailing_dimensions_and_strides(shift):
    network = Network(nx.cycle_graph(5), shift)
    values = torch.randn(5, 2, 3, 4, generator=seeded(0), dtype=torch.float64)
    mixed = network.mix(values)
    assert mixed.shape == values.shape
    torch.testing.assert_close(mixed.flatten(1), network.mix(values.flatten(1)))
    torch.testing.assert_close(network.mix(values.transpose(1, 3)), mixed.transpose(1, 3))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_networks_mix_and_differentiate_like_dense_ones(shift, dtype):
    network = Network(make_graph(GraphConfig("regular"), 502, seeded(1)), shift)
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
def test_derivatives_through_sparse_networks_have_the_bits_of_autograd(shift):
    network = Network(make_graph(GraphConfig(), 100, seeded(3)), shift)
    values = weights(4, 100, 33, torch.float32).requires_grad_()
    slope = weights(5, 100, 33, torch.float32)
    plain, mixed = torch.sparse.mm(network.operator(torch.float32), values), network.mix(values)
    assert torch.equal(mixed, plain)
    (expected,) = torch.autograd.grad(plain, values, slope)
    (found,) = torch.autograd.grad(mixed, values, slope)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("agents", [4, 100])
def test_mixing_is_twice_differentiable(agents):
    network = Network(nx.cycle_graph(agents), "metropolis")
    values = weights(6, agents, 1).requires_grad_()
    assert torch.autograd.gradcheck(network.mix, values)
    assert torch.autograd.gradgradcheck(network.mix, values)


@pytest.mark.parametrize("shift", ["adjacency", "metropolis"])
def test_agents_with_equal_values_keep_them(shift):
    network = Network(make_graph(GraphConfig("regular"), 10, seeded(2)), shift)
    equal = weights(5, 1, 3).expand(10, 3)
    torch.testing.assert_close(network.mix(equal), equal)
    single, values = Network(nx.empty_graph(1), shift), weights(7, 1, 3)
    assert torch.equal(single.mix(values), values)
    assert (single.rounds, single.floats) == (1, 0)


def test_metropolis_mixing_keeps_the_average_and_reaches_consensus():
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.3), 12, seeded(3))
    network, values = Network(graph, "metropolis"), weights(6, 12, 3)
    mixed = values
    for _ in range(200):
        mixed = network.mix(mixed)
        torch.testing.assert_close(mixed.mean(0), values.mean(0))
    torch.testing.assert_close(mixed, values.mean(0).expand(12, 3), rtol=1e-6, atol=1e-6)


def test_rounds_and_floats_are_counted_link_by_link():
    network = Network(nx.path_graph(3))
    assert sorted(map(tuple, network.links.T.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    network.mix(torch.zeros(3, 5))
    network.mix_parts(torch.zeros(3, 1), torch.zeros(3, 3))
    network.mix(torch.zeros(3, 2, 2), floats=1)
    assert network.link_floats.tolist() == [10] * 4
    assert (network.rounds, network.floats) == (3, 40)
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
def test_earlier_references_to_the_counts_keep_their_values(network):
    before = network.link_floats
    network.mix(torch.zeros(3, 5))
    between = network.link_floats
    network.mix(torch.zeros(3, 2))
    assert before.tolist() == [0] * network.links.shape[1]
    assert set((between - before).tolist()) <= {0, 5}
    assert set((network.link_floats - between).tolist()) <= {0, 2}
    assert int(between.sum()) > 0


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), (3,), ()])
def test_values_of_the_wrong_shape_raise_and_are_not_counted(shape):
    network = Network(nx.path_graph(3))
    for mix in (network.mix, lambda part: network.mix_parts(torch.zeros(3, 1), part)):
        with pytest.raises(ValueError, match=r"^values: got shape .* 3 rows"):
            mix(torch.zeros(shape))
    assert network.rounds == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_raise_and_are_not_counted(dtype):
    network = Network(nx.path_graph(3))
    counts = torch.ones(3, 2, dtype=dtype)
    for mix in (network.mix, lambda part: network.mix_parts(torch.zeros(3, 1), part)):
        with pytest.raises(TypeError, match=r"^values: got torch\.\w+, .* floating type$"):
            mix(counts)
    assert network.rounds == network.floats == 0


def test_permuting_the_graph_permutes_the_mixing():
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), 6, seeded(4))
    order, values = [3, 1, 5, 0, 2, 4], weights(8, 6, 2)
    moved = nx.empty_graph(6)
    moved.add_edges_from((order.index(a), order.index(b)) for a, b in graph.edges)
    for shift in SHIFTS:
        torch.testing.assert_close(
            Network(moved, shift).mix(values[order]), Network(graph, shift).mix(values)[order]
        )


def test_a_configuration_gives_its_network():
    regular = make_network(NetworkConfig(), 10, seeded(5))
    assert (regular.nodes, regular.agents, regular.server) == (10, 10, False)
    assert regular.links.shape == (2, 30)
    assert make_network(NetworkConfig(shift="metropolis"), 10, seeded(5)).shift == "metropolis"
    config = NetworkConfig(GraphConfig("star"), reporting=4)
    star = make_network(config, 10, seeded(5))
    assert isinstance(star, StarNetwork)
    assert (star.nodes, star.agents, star.server, star.reporting) == (11, 10, True, 4)
    assert star.calling == "random"
    faulty = replace(config, calling="in-turn", faults=FaultConfig(loss=0.1))
    assert make_network(faulty, 10, seeded(5)).inner.calling == "in-turn"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("ring", {"reporting": 4}, "reporting: got 4 with a ring"),
        ("ring", {"calling": "in-turn"}, "calling: got 'in-turn' with a ring graph, but only"),
        ("star", {"calling": "x"}, "calling: got 'x', but it must be 'random' or 'in-turn'"),
    ],
)
def test_settings_of_a_server_raise_errors_on_other_graphs(kind, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make_network(NetworkConfig(GraphConfig(kind), **settings), 10, seeded(5))


def test_all_nodes_except_a_server_are_agents():
    values = torch.arange(4.0)[:, None]
    assert torch.equal(Network(nx.path_graph(4)).agent_rows(values), values)
    assert torch.equal(StarNetwork(3, None, seeded(0)).agent_rows(values), values[1:])


class Doubling(Network):
    """Neighbours receive twice what was sent."""

    def exchange(self, values, sent, lost, floats):
        return super().exchange(values, [2 * part for part in sent], lost, floats + 1)


def test_mixing_messages_of_several_parts_and_faults_use_exchange():
    graph, values = nx.path_graph(4), weights(9, 4, 3)
    plain = Network(graph).operator(torch.float64)
    expected = (2 * plain - plain.diag().diag()) @ values
    network = Doubling(graph)
    torch.testing.assert_close(network.mix(values), expected)
    parts = network.mix_parts(values[:, :1], values[:, 1:])
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    faulty = StaleNetwork(network, 1, seeded(0))
    torch.testing.assert_close(faulty.mix(values), expected)
    assert network.link_floats.tolist() == [12] * 6
