"""Agents of graphs with two sides keep some of what they sent, so that nothing swings and grows."""

import itertools

import naive
import naive_transfer
import networkx as nx
import pytest
import random_data
import torch
from odd_federations import OddCase

import fedsurf
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import FaultConfig, Network, TimeVaryingNetwork, with_faults
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable.graph import (
    CALM_EIGENVALUE,
    SWINGING_EIGENVALUE,
    laziness,
    mix_lazily,
)
from fedsurf.unrolled.transferable.summaries import SKETCH_WIDTH, sketch_directions

CALM_GRAPHS = {
    "one agent": nx.empty_graph(1),
    "two agents": nx.path_graph(2),
    "a ring of two sides": nx.cycle_graph(12),
    "everyone with everyone": nx.complete_graph(15),
    "3-regular": nx.random_regular_graph(3, 30, seed=0),
    "3-regular of two sides": nx.hypercube_graph(3),
    "a server's graph": nx.star_graph(9),
}
SWINGING_GRAPHS = {
    "two groups": nx.complete_bipartite_graph(10, 10),
    "two large groups": nx.complete_bipartite_graph(30, 30),
    "a hypercube": nx.hypercube_graph(5),
    "a torus of two sides": nx.grid_2d_graph(4, 6, periodic=True),
}


def network(graph, shift="metropolis"):
    return Network(nx.convert_node_labels_to_integers(graph), shift)


def eigenvalues(operator):
    """Return the eigenvalues of any square matrix; those of an S are real."""
    found = torch.linalg.eigvals(operator.to_dense())
    assert found.imag.abs().max() < 1e-8
    return found.real


@pytest.mark.parametrize("graph", CALM_GRAPHS.values(), ids=CALM_GRAPHS)
def test_on_most_graphs_nobody_is_lazy(graph):
    over = network(graph)
    values = random_data.weights(1, over.nodes, 3)
    mixed = over.mix(values)
    assert laziness(over) == 0
    assert mix_lazily(over, [values], [mixed])[0] is mixed


@pytest.mark.parametrize("shift", ["metropolis", "adjacency"])
@pytest.mark.parametrize("graph", SWINGING_GRAPHS.values(), ids=SWINGING_GRAPHS)
def test_where_agents_would_swing_they_keep_just_enough(graph, shift):
    over = network(graph, shift)
    assert over.lowest_eigenvalue < SWINGING_EIGENVALUE
    unit = torch.eye(over.nodes, dtype=torch.float64)
    (lazy,) = mix_lazily(over, [unit], [over.mix(unit)])
    torch.testing.assert_close(lazy.sum(1), torch.ones(over.nodes, dtype=torch.float64))
    assert float(eigenvalues(lazy).min()) == pytest.approx(CALM_EIGENVALUE, abs=1e-9)
    share = laziness(over)
    assert 0 < share < 0.5
    own, others = random_data.weights(2, over.nodes, 4), random_data.weights(3, over.nodes, 2)
    found = mix_lazily(over, [own, others], over.mix_parts(own, others))
    for part, sent in zip(found, (own, others), strict=True):
        rows = naive.mix(over.graph, sent.tolist(), shift)
        for agent, place in itertools.product(range(over.nodes), range(sent.shape[1])):
            expected = (1 - share) * rows[agent][place] + share * float(sent[agent, place])
            assert float(part[agent, place]) == pytest.approx(expected)


def test_faults_change_nothing_of_it_and_of_changing_graphs_the_worst_counts():
    calm, swinging = nx.cycle_graph(20), nx.complete_bipartite_graph(10, 10)
    faulty = with_faults(network(swinging), FaultConfig(stale=3, loss=0.2), random_data.seeded(0))
    assert laziness(faulty) == laziness(network(swinging)) > 0
    both = TimeVaryingNetwork([calm, swinging], "metropolis")
    assert both.lowest_eigenvalue == network(swinging).lowest_eigenvalue
    assert laziness(TimeVaryingNetwork([calm, nx.path_graph(20)], "metropolis")) == 0


def test_a_whole_run_equals_a_loop_in_which_agents_are_lazy():
    graph, agents, classes, rounds = nx.complete_bipartite_graph(5, 5), 10, 3, 6
    over = network(graph)
    task = random_data.task(3, agents, 6, 5, 20, classes)
    learned = (
        Transferable(TransferableConfig(), random_data.seeded(1)).double().requires_grad_(False)
    )
    algorithm = learned.on(SoftmaxHead(20, classes), rounds)
    state = algorithm.init(task, over, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, over, random_data.seeded(1))
    lowest = 1 / 6 - 5 / 6
    share = (CALM_EIGENVALUE - lowest) / (1 - lowest)

    def mix(rows):
        mixed = naive.mix(graph, rows, "metropolis")
        return [
            naive_transfer.plus((1 - share, new), (share, own))
            for new, own in zip(mixed, rows, strict=True)
        ]

    federation = naive_transfer.Federation(
        random_data.real_examples(task.train),
        classes,
        sketch_directions(20, torch.float64, SKETCH_WIDTH),
    )
    rows = federation.over_graph(learned.graph, rounds, mix, [6] * agents)
    expected = torch.tensor(rows, dtype=torch.float64)
    size = float(expected.abs().max())
    torch.testing.assert_close(state.weights, expected, rtol=0, atol=1e-8 * size)


@torch.no_grad()
def accuracy(algorithm, task, over):
    state = algorithm.init(task, over, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, over, random_data.seeded(0))
    return float(algorithm.model.pooled_accuracy(state.weights, task.test).mean())


@pytest.mark.parametrize("rounds", [20, 40])
@pytest.mark.parametrize("single_class", [False, True])
@pytest.mark.parametrize("graph", SWINGING_GRAPHS.values(), ids=SWINGING_GRAPHS)
def test_the_pretrained_optimizer_learns_on_graphs_of_two_sides(graph, single_class, rounds):
    over = network(graph)
    task, _ = OddCase(agents=over.nodes, single_class=single_class)(random_data.seeded(0))
    model = SoftmaxHead(task.features, task.classes)
    assert accuracy(fedsurf.load().on(model, rounds), task, over) > 0.8


@pytest.mark.parametrize("graph", ["two groups", "a hypercube"])
def test_so_does_that_of_modules(graph):
    over = network(SWINGING_GRAPHS[graph])
    task, _ = OddCase(agents=over.nodes, single_class=True)(random_data.seeded(0))
    layers = torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)
    model = ModuleModel(torch.nn.Sequential(*layers).double())
    assert accuracy(fedsurf.load_for_modules().on(model, 40), task, over) > 0.8
