"""Links that change: rounds against a loop over the neighbours of each, their counts, and methods on them."""

from types import SimpleNamespace

import known_optima
import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded, weights
from random_data import task as draw_task
from running import begin

from fedsurf import load
from fedsurf.algorithms import EXTRA, DFedAvgM, ExactDiffusion, GradientTracking, Ridge, Start
from fedsurf.evaluation.methods import METHODS
from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import (
    GraphConfig,
    LeavingNetwork,
    LossyNetwork,
    Network,
    StaleNetwork,
    TimeVaryingNetwork,
    make_graph,
)
from fedsurf.unrolled import UDGD, UDGDConfig

SHIFTS = ["adjacency", "metropolis", "laplacian"]
HEAD = SoftmaxHead(3, 3)


def graph_of(agents, *links):
    graph = nx.empty_graph(agents)
    graph.add_edges_from(links)
    return graph


def halves(agents=6):
    """Return the two halves of a ring: in each, every agent has one link."""
    ring = [(agent, (agent + 1) % agents) for agent in range(agents)]
    return [graph_of(agents, *ring[::2]), graph_of(agents, *ring[1::2])]


def random_graphs(agents, count, seed):
    """Return sparse graphs, some of which are not connected, and a path that connects all agents."""
    graphs = [nx.gnp_random_graph(agents, 0.4, seed=seed + number) for number in range(count)]
    return [*graphs, nx.path_graph(agents)]


def exact(rows):
    return torch.tensor(rows, dtype=torch.float64)


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", SHIFTS)
@given(agents=st.integers(1, 7), count=st.integers(0, 3), seed=st.integers(0, 1000))
def test_each_round_equals_a_loop_over_its_neighbours(shift, agents, count, seed):
    graphs = random_graphs(agents, count, seed)
    network = TimeVaryingNetwork(graphs, shift)
    values = weights(seed, agents, 3)
    rows, floats = values.tolist(), 0
    for number in range(2 * len(graphs) + 1):
        graph = graphs[number % len(graphs)]
        entries = naive.mix(graph, torch.eye(agents).tolist(), shift)
        close(network.operator(torch.float64).to_dense(), exact(entries))
        if number % 2:
            parts = network.mix_parts(values[:, :1], values[:, 1:].reshape(agents, 2, 1))
            values = torch.cat([part.flatten(1) for part in parts], 1)
        else:
            values = network.mix(values)
        rows, floats = naive.mix(graph, rows, shift), floats + 3 * 2 * graph.number_of_edges()
        close(values, exact(rows))
        assert (network.rounds, network.floats) == (number + 1, floats)


def test_floats_are_counted_on_the_links_of_the_round():
    network = TimeVaryingNetwork([graph_of(3, (0, 1)), graph_of(3, (1, 2))])
    links = list(map(tuple, network.links.T.tolist()))
    assert sorted(links) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    for values in (torch.zeros(3, 5), torch.zeros(3, 2, 2), torch.zeros(3, 1)):
        network.mix(values)
    network.mix(torch.zeros(3, 8), floats=2)
    counted = dict(zip(links, network.link_floats.tolist(), strict=True))
    assert counted == {(0, 1): 6, (1, 0): 6, (1, 2): 6, (2, 1): 6}
    assert (network.rounds, network.floats) == (4, 24)


def test_a_reset_begins_with_the_first_graph():
    network, values = TimeVaryingNetwork(halves(), "metropolis"), weights(0, 6, 2)
    first, second = network.mix(values), network.mix(values)
    assert not torch.equal(first, second)
    network.mix(values)
    network.reset(seeded(0))
    assert (network.rounds, network.floats) == (0, 0)
    assert torch.equal(network.mix(values), first)


def test_the_order_of_the_graphs_may_be_a_function_of_the_round():
    graphs, values = halves(), weights(1, 6, 2)
    network = TimeVaryingNetwork(graphs, "metropolis", order=lambda number: int(number >= 2))
    for index in (0, 0, 1, 1, 1):
        close(network.mix(values), exact(naive.mix(graphs[index], values.tolist(), "metropolis")))


@pytest.mark.parametrize("index", [2, -1])
def test_an_order_that_names_no_graph_raises_and_is_not_counted(index):
    network = TimeVaryingNetwork(halves(), order=lambda _: index)
    with pytest.raises(ValueError, match=rf"^order: got {index} for round 0, .* between 0 and 1"):
        network.mix(torch.zeros(6, 1))
    assert network.rounds == 0


def test_one_graph_gives_the_bits_of_a_network():
    graph = make_graph(GraphConfig("regular"), 100, seeded(0))
    constant, changing = Network(graph, "metropolis"), TimeVaryingNetwork([graph], "metropolis")
    values = weights(2, 100, 3)
    for fault in (lambda inner: inner, lambda inner: LossyNetwork(inner, 0.3, seeded(1))):
        assert torch.equal(fault(constant).mix(values), fault(changing).mix(values))
    assert torch.equal(constant.link_floats, changing.link_floats)
    assert torch.equal(constant.links, changing.links)
    assert changing.facts.reliable


def test_nodes_are_numbered_as_in_the_first_graph():
    first, second = nx.Graph([("c", "a"), ("a", "b")]), nx.Graph([("a", "b"), ("b", "c")])
    network, values = TimeVaryingNetwork([first, second]), weights(3, 3, 2)
    for graph in (graph_of(3, (0, 1), (1, 2)), graph_of(3, (1, 2), (2, 0))):
        close(network.mix(values), exact(naive.mix(graph, values.tolist(), "adjacency")))


@pytest.mark.parametrize(
    ("graphs", "error", "message"),
    [
        ([], ValueError, "graphs: got an empty sequence"),
        (nx.path_graph(3), ValueError, "graphs: got one networkx graph, but it must be a seq"),
        ([nx.path_graph(3), "ring"], TypeError, r"graphs\[1\]: got 'ring'"),
        ([nx.path_graph(3), nx.path_graph(4)], ValueError, r"graphs\[1\]: got other .* 3, but"),
        ([nx.path_graph(3), nx.DiGraph([(0, 1)])], ValueError, r"graphs\[1\]: got a directed"),
        ([nx.empty_graph(0)], ValueError, r"graphs\[0\]: got one without nodes"),
        ([graph_of(4, (0, 1)), graph_of(4, (2, 3))], ValueError, "graphs: got, .* 2 components"),
    ],
)
def test_invalid_graphs_raise(graphs, error, message):
    with pytest.raises(error, match=f"^{message}"):
        TimeVaryingNetwork(graphs)


class Recorded(TimeVaryingNetwork):
    """Keeps the lost messages of the last round."""

    def exchange(self, values, sent, lost, floats):
        self.lost = lost
        return super().exchange(values, sent, lost, floats)


@pytest.mark.parametrize(
    ("shift", "rule"),
    [
        ("adjacency", "renormalised"),
        ("metropolis", "renormalised"),
        ("adjacency", "kept-by-receiver"),
        ("laplacian", "kept-by-receiver"),
    ],
)
def test_rounds_with_faults_equal_a_loop_over_the_messages_that_arrived(shift, rule):
    graphs = random_graphs(6, 2, 5)
    inner = Recorded(graphs, shift)
    late = StaleNetwork(inner, 2, seeded(0))
    network = LeavingNetwork(LossyNetwork(late, 0.3, seeded(1), rule), 0.2, 0.5, seeded(2), rule)
    before, floats = None, 0
    for number in range(8):
        values = weights(number, 6, 2)
        mixed = network.mix(values)
        graph, sent = graphs[number % len(graphs)], values.tolist()
        if before is not None:
            for agent in late.stale_agents.tolist():
                sent[agent] = before[agent]
        before = values.tolist()
        moment = SimpleNamespace(graph=graph, shift=shift, nodes=6, agents=6, links=network.links)
        close(mixed, naive.mix_with_losses(moment, values.tolist(), sent, inner.lost))
        for sender, receiver in graph.edges:
            floats += 4 * (not inner.lost.absent[[sender, receiver]].any())
        assert (network.rounds, network.floats) == (number + 1, floats)


def test_degrees_are_averages_over_the_graphs_with_faults_too():
    network = TimeVaryingNetwork(halves(), "metropolis")
    wrapped = StaleNetwork(network, 0, seeded(0))
    for one in (network, wrapped):
        assert not one.facts.reliable
        assert one.facts.degrees.tolist() == [1] * 6
        assert len(one.operators()) == 2
    uneven = TimeVaryingNetwork([graph_of(3, (0, 1)), graph_of(3, (0, 1), (1, 2))])
    assert uneven.facts.degrees.tolist() == [1, 1.5, 0.5]


# Methods


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if one.runs_on != "server"])
def test_every_method_over_a_graph_runs(name):
    task, network = draw_task(1, agents=6, train=12), TimeVaryingNetwork(halves(), "metropolis")
    runs = run(METHODS[name].make(HEAD, Start(), {}), task, network, 6)
    assert runs.loss.isfinite().all()
    if name != "local-only":
        assert int(runs.rounds[-1]) == 6


def test_learned_optimizers_run():
    task = draw_task(2, agents=6, train=12, dtype=torch.float32)
    network = TimeVaryingNetwork(halves(), "metropolis")
    pretrained = load().on(HEAD, 10)
    runs = run(pretrained, task, network, pretrained.steps)
    assert runs.loss[-1] < runs.loss[0]
    assert int(runs.rounds[-1]) == 10
    udgd = UDGD(HEAD, UDGDConfig(layers=2, batch_size=3), seeded(0))
    assert int(run(udgd, task, network, 2).rounds[-1]) == 4


@pytest.mark.parametrize("method", [GradientTracking, EXTRA, ExactDiffusion])
@pytest.mark.parametrize("graphs", [halves(), random_graphs(6, 5, 0)], ids=["halves", "random"])
def test_exact_methods_find_the_optimum_over_changing_links(method, graphs):
    network = TimeVaryingNetwork(graphs, "metropolis")
    found = known_optima.distances(
        method(known_optima.PenalisedHead(2, 3), 0.3),
        known_optima.heterogeneous_task(),
        network,
        800,
    )
    assert found[0] > 1
    assert found[-1] < 1e-8


def test_gossip_over_changing_links_is_not_accelerated():
    task, network = draw_task(3, agents=6, train=12), TimeVaryingNetwork(halves(), "metropolis")
    ends = [run(Ridge(HEAD, accelerated=how), task, network, 7).loss for how in (True, False)]
    assert torch.equal(*ends)


def test_quantised_differences_raise_if_links_change():
    with pytest.raises(ValueError, match=r"^bits: got 8 on a network with .* changing links"):
        begin(DFedAvgM(HEAD, bits=8), draw_task(4), TimeVaryingNetwork(halves(4)))


@pytest.mark.parametrize("method", [EXTRA, GradientTracking])
def test_the_operators_of_all_graphs_must_average(method):
    uneven = TimeVaryingNetwork([nx.cycle_graph(4), nx.path_graph(4)], "adjacency")
    with pytest.raises(ValueError, match=r"^network: got the shift operator 'adjacency'"):
        begin(method(HEAD), draw_task(5), uneven)
    begin(method(HEAD), draw_task(5), TimeVaryingNetwork(halves(4), "adjacency"))


def test_derivatives_flow_through_changing_links():
    network = TimeVaryingNetwork(halves(4), "metropolis")

    def two_rounds(values):
        network.reset()
        return network.mix(network.mix(values))

    assert torch.autograd.gradcheck(two_rounds, weights(6, 4, 2).requires_grad_())
