"""Rounds over a graph: weights of mixing, lazy mixing, dynamic averages, and weighted sums."""

import itertools

import naive
import networkx as nx
import pytest
import random_data
import torch
import transferable_loop
from odd_federations import OddCase
from random_data import weights as normal
from running import begin, run, streams
from transferable_runs import AGENTS, CLASSES, assert_same, heads, make, network, optimizer

import fedsurf
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import FaultConfig, Network, TimeVaryingNetwork, with_faults
from fedsurf.unrolled.transferable.graph import (
    CALM_EIGENVALUE,
    MIXING_LIMITS,
    SWINGING_EIGENVALUE,
    laziness,
    mix_lazily,
    mixing_weights,
    weighted_sum,
)
from fedsurf.unrolled.transferable.local import LocalExamples
from fedsurf.unrolled.transferable.optimizer import SHARED_ROUNDS
from fedsurf.unrolled.transferable.summaries import sketch_directions, unpack

CALM_GRAPHS = {
    "one agent": nx.empty_graph(1),
    "two agents": nx.path_graph(2),
    "a ring of two sides": nx.cycle_graph(12),
    "a complete graph": nx.complete_graph(15),
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


def over_graph(graph, shift="metropolis"):
    return Network(nx.convert_node_labels_to_integers(graph), shift)


def test_mixing_weights_sum_to_one_within_their_limits():
    correction, weights = mixing_weights(100 * normal(1, 500, len(MIXING_LIMITS)))
    torch.testing.assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))
    found = torch.cat([correction, weights[:, 1:]], 1)
    for values, (below, above) in zip(found.T, MIXING_LIMITS.values(), strict=True):
        assert -below <= values.min() < -0.9 * below
        assert 0.9 * above < values.max() <= above


def test_large_controls_of_mixing_keep_a_slope():
    controls = torch.full((1, len(MIXING_LIMITS)), 50.0, requires_grad=True)
    correction, weights = mixing_weights(controls)
    (correction.sum() + weights[:, 1:].sum()).backward()
    assert (controls.grad > 0).all()


@pytest.mark.parametrize("graph", CALM_GRAPHS.values(), ids=CALM_GRAPHS)
def test_on_most_graphs_mixing_is_not_lazy(graph):
    over = over_graph(graph)
    values = random_data.weights(1, over.nodes, 3)
    mixed = over.mix(values)
    assert laziness(over) == 0
    assert mix_lazily(over, [values], [mixed])[0] is mixed


@pytest.mark.parametrize("shift", ["metropolis", "adjacency"])
@pytest.mark.parametrize("graph", SWINGING_GRAPHS.values(), ids=SWINGING_GRAPHS)
def test_lazy_mixing_raises_the_lowest_eigenvalue_to_the_calm_one(graph, shift):
    over = over_graph(graph, shift)
    assert over.facts.spectrum.lowest_eigenvalue < SWINGING_EIGENVALUE
    unit = torch.eye(over.nodes, dtype=torch.float64)
    (lazy,) = mix_lazily(over, [unit], [over.mix(unit)])
    torch.testing.assert_close(lazy.sum(1), torch.ones(over.nodes, dtype=torch.float64))
    assert float(torch.linalg.eigvals(lazy).real.min()) == pytest.approx(CALM_EIGENVALUE, abs=1e-9)
    share = laziness(over)
    assert 0 < share < 0.5
    own, others = random_data.weights(2, over.nodes, 4), random_data.weights(3, over.nodes, 2)
    found = mix_lazily(over, [own, others], over.mix_parts(own, others))
    for part, sent in zip(found, (own, others), strict=True):
        rows = naive.mix(over.graph, sent.tolist(), shift)
        for agent, place in itertools.product(range(over.nodes), range(sent.shape[1])):
            expected = (1 - share) * rows[agent][place] + share * float(sent[agent, place])
            assert float(part[agent, place]) == pytest.approx(expected)


def test_laziness_ignores_faults_and_follows_the_worst_of_changing_graphs():
    calm, swinging = nx.cycle_graph(20), nx.complete_bipartite_graph(10, 10)
    faulty = with_faults(
        over_graph(swinging), FaultConfig(stale=3, loss=0.2), random_data.seeded(0)
    )
    assert laziness(faulty) == laziness(over_graph(swinging)) > 0
    found, expected = (
        one.facts.spectrum.lowest_eigenvalue
        for one in (TimeVaryingNetwork([calm, swinging], "metropolis"), over_graph(swinging))
    )
    assert found == expected
    assert laziness(TimeVaryingNetwork([calm, nx.path_graph(20)], "metropolis")) == 0


def test_a_lazy_run_equals_a_loop():
    graph, agents, rounds = nx.complete_bipartite_graph(5, 5), 10, 6
    task, learned = random_data.task(3, agents, 6, 5, 20, CLASSES), optimizer()
    lowest = 1 / 6 - 5 / 6
    share = (CALM_EIGENVALUE - lowest) / (1 - lowest)

    def mix(rows):
        mixed = naive.mix(graph, rows, "metropolis")
        return [
            transferable_loop.plus((1 - share, new), (share, own))
            for new, own in zip(mixed, rows, strict=True)
        ]

    omega = sketch_directions(20, torch.float64)
    data = random_data.real_examples(task.train)
    federation = transferable_loop.Federation(data, CLASSES, omega)
    rows = federation.over_graph(learned.graph, rounds, mix, [6] * agents)
    found = heads(task, over_graph(graph), rounds, learned)
    assert_same(found, torch.tensor(rows, dtype=torch.float64))


@torch.no_grad()
def accuracy(algorithm, task, over):
    state = run(algorithm, task, over, algorithm.steps)
    return float(algorithm.model.pooled_accuracy(state.weights, task.test).mean())


@pytest.mark.parametrize("rounds", [20, 40])
@pytest.mark.parametrize("single_class", [False, True])
@pytest.mark.parametrize("graph", SWINGING_GRAPHS.values(), ids=SWINGING_GRAPHS)
def test_the_pretrained_optimizer_learns_on_graphs_of_two_sides(graph, single_class, rounds):
    over = over_graph(graph)
    task, _ = OddCase(agents=over.nodes, single_class=single_class)(random_data.seeded(0))
    model = SoftmaxHead(task.features, task.classes)
    assert accuracy(fedsurf.load().on(model, rounds), task, over) > 0.8


@pytest.mark.parametrize("graph", ["two groups", "a hypercube"])
def test_the_pretrained_module_optimizer_learns_on_graphs_of_two_sides(graph):
    over = over_graph(SWINGING_GRAPHS[graph])
    task, _ = OddCase(agents=over.nodes, single_class=True)(random_data.seeded(0))
    layers = torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)
    model = ModuleModel(torch.nn.Sequential(*layers).double())
    assert accuracy(fedsurf.load_for_modules().on(model, 40), task, over) > 0.8


@pytest.mark.parametrize("features", [18, 36])
def test_averages_stay_those_of_the_agents_summaries(features):
    task, over = random_data.task(6, AGENTS, 7, 3, features, CLASSES, masked=True), network()
    algorithm, omega = make(task, 8), sketch_directions(features, torch.float64)
    state = begin(algorithm, task, over)
    data = random_data.real_examples(task.train)
    federation = transferable_loop.Federation(data, CLASSES, omega)
    centres = []
    for count in range(1, 9):
        state = algorithm.round(state, task, over, streams(over, 0, count))
        assert state.rounds == count
        torch.testing.assert_close(state.sums.mean(0), state.own_sums.mean(0))
        torch.testing.assert_close(state.moments.mean(0), state.own_moments.mean(0))
        assert not torch.allclose(state.sums, state.own_sums)
        contributed = [
            federation.contribution(i, state.centre[i], centred=False) for i in range(AGENTS)
        ]
        sketch = unpack(state.own_moments[:, features:], *omega.shape).mT.flatten(1)
        own_moments = torch.cat([state.own_moments[:, :features], sketch], 1)
        for found, place in ((state.own_sums, 0), (own_moments, 1)):
            expected = torch.tensor([one[place] for one in contributed], dtype=torch.float64)
            torch.testing.assert_close(found, expected)
        centres.append(state.centre)
    assert not torch.equal(centres[SHARED_ROUNDS - 2], centres[SHARED_ROUNDS - 1])
    assert torch.equal(centres[SHARED_ROUNDS - 1], centres[-1])
    # Three rounds do not average perfectly, but they bring the centres close to the one mean.
    pool = task.train.pooled().x[0].mean(0)
    own = LocalExamples.of(task.train, CLASSES).centre
    assert (centres[-1] - pool).norm() < 0.5 * (own - pool).norm()


def test_a_weighted_sum_equals_a_loop():
    weights = normal(0, 4, 3)
    terms = [normal(10 + seed, 4, 5) for seed in range(3)]
    found = weighted_sum(weights, *terms)
    for row in range(4):
        for column in range(5):
            expected = sum(float(weights[row, k] * terms[k][row, column]) for k in range(3))
            assert float(found[row, column]) == pytest.approx(expected, rel=1e-12)
    plus = normal(20, 4, 5)
    torch.testing.assert_close(weighted_sum(weights, *terms, plus=plus), plus + found)


def test_derivatives_of_a_weighted_sum_are_those_of_finite_differences():
    given = [normal(0, 4, 3), *(normal(10 + seed, 4, 5) for seed in range(3))]
    given = [value.requires_grad_() for value in given]
    assert torch.autograd.gradcheck(weighted_sum, given)

    def on_top(plus, *others):
        return weighted_sum(*others, plus=plus) + plus  # `plus` is used twice

    assert torch.autograd.gradcheck(on_top, [normal(20, 4, 5).requires_grad_(), *given])
