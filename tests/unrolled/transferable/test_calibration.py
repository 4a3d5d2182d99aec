"""Standardisation by communication: what agents come to believe, what it costs, and that it is exact."""

import math
from collections import namedtuple

import naive
import networkx as nx
import pytest
import random_data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable.local import (
    ENOUGH_ROWS,
    feature_units,
    own_spreads,
    pooled_spreads,
    without_squared_means,
)
from fedsurf.unrolled.transferable.optimizer import SHARED_ROUNDS
from fedsurf.unrolled.transferable.summaries import FederationEstimate

AGENTS, FEATURES, CLASSES = 4, 3, 3
HEAD = SoftmaxHead(FEATURES, CLASSES)


Units = namedtuple("Units", ["centre", "unit"])


@pytest.fixture
def optimizer():
    """One that was never trained: what is said here holds for any parameters."""
    return Transferable(TransferableConfig(), random_data.seeded(0)).requires_grad_(False)


def standards(part, network, *, every=True):
    """Return what agents believe after two rounds, and all of them of a server."""
    spreads, dtype = own_spreads(part), part.x.dtype
    if not network.server:
        for _ in range(2):
            spreads = network.mix(spreads)
        return Units(*feature_units(spreads, dtype, every=every, agents=network.agents))
    total = torch.zeros(spreads.shape[1], dtype=torch.float64)
    for _ in range(2):
        called = network.call()
        sent = network.upload(without_squared_means(spreads[called]), called)
        total = pooled_spreads(total, sent)
    found = feature_units(total[None], dtype, every=every)
    return Units(*(one.expand(network.agents, -1) for one in found))


def trained(algorithm, task, network):
    """Return the heads that a whole run leaves, `[nodes, parameters]`."""
    state = algorithm.init(task, network, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, network, random_data.seeded(1))
    return state.weights


def moved(task, shift, unit):
    """Return the task with features in other units, from another origin."""

    def part(examples):
        x = examples.x * unit + shift
        if examples.mask is not None:
            x = x * examples.mask[:, :, None]
        return Examples(x, examples.y, examples.mask)

    return Task(part(task.train), part(task.test), task.classes)


def columns(part):
    """Return each agent's real examples, feature by feature."""
    return [
        [[x[feature] for x, _ in own] for feature in range(part.features)]
        for own in random_data.real_examples(part)
    ]


@pytest.mark.parametrize("masked", [False, True])
def test_over_a_graph_agents_find_what_a_plain_loop_finds(masked):
    graph = nx.path_graph(AGENTS)
    network = Network(graph, shift="metropolis")
    part = random_data.examples(3, AGENTS, 5, FEATURES, masked=masked)
    found = standards(part, network)
    own = columns(part)
    parts = [
        [[len(one[0])] for one in own],
        [list(map(sum, one)) for one in own],
        [[sum(value**2 for value in feature) for feature in one] for one in own],
    ]
    for _ in range(2):
        parts = [naive.mix(graph, rows, "metropolis") for rows in parts]
    counts, sums, squares = parts
    means, second = (
        [[value / count[0] for value in row] for row, count in zip(rows, counts, strict=True)]
        for rows in (sums, squares)
    )
    unit = [
        [(square - mean**2) ** 0.5 for square, mean in zip(*rows, strict=True)]
        for rows in zip(second, means, strict=True)
    ]
    torch.testing.assert_close(found.centre, torch.tensor(means, dtype=torch.float64))
    torch.testing.assert_close(found.unit, torch.tensor(unit, dtype=torch.float64))


@pytest.mark.parametrize("server", [False, True])
def test_where_all_hear_all_the_standards_are_those_of_the_pooled_examples(server):
    network = Network(nx.complete_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, None, random_data.seeded(0))
    part = random_data.examples(5, AGENTS, 6, FEATURES, masked=True)
    pool = part.pooled().x[0]
    found = standards(part, network)
    torch.testing.assert_close(found.centre, pool.mean(0).expand(AGENTS, -1))
    torch.testing.assert_close(found.unit, pool.std(0, correction=0).expand(AGENTS, -1))


def alike(task):
    """Return the task with every agent's examples standardised: they know from the start what all will."""
    x = task.train.x
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)
    return Task(Examples(x, task.train.y), task.test, task.classes)


@pytest.mark.parametrize("scaling", ["features", "auto"])
@pytest.mark.parametrize(
    ("graph", "rounds"),
    [(nx.path_graph(1), 10), (nx.path_graph(4), SHARED_ROUNDS), (nx.complete_graph(4), 10)],
)
def test_training_is_as_on_data_that_were_standardised_by_hand(optimizer, graph, rounds, scaling):
    """For as long as agents tell of their examples either way, or where there is nothing more to hear."""
    network = Network(graph, shift="metropolis")
    by_hand = alike(random_data.task(7, len(graph), train=20))
    unit = torch.tensor([1e-3, 5.0, 40.0], dtype=torch.float64)
    wild = moved(by_hand, torch.tensor([2.0, -300.0, 0.0], dtype=torch.float64), unit)
    logits = []
    for task, how in ((wild, scaling), (by_hand, "whole")):
        network.reset(random_data.seeded(2))
        weights = trained(optimizer.on(HEAD, rounds=rounds, scaling=how), task, network)
        logits.append(HEAD.logits(network.agent_rows(weights), task.test.x))
    torch.testing.assert_close(*logits)


def test_agents_learn_in_the_first_round_already(optimizer):
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    task = random_data.task(7, AGENTS, train=20)
    for scaling in ("features", "auto"):
        weights = trained(optimizer.on(HEAD, rounds=1, scaling=scaling), task, network)
        assert (weights.abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("server", [False, True])
def test_origin_and_units_of_the_features_do_not_matter(optimizer, server):
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, 2, random_data.seeded(0))
    task = random_data.task(9, AGENTS, train=40, masked=True)
    assert task.train.counts.min() >= ENOUGH_ROWS  # of fewer rows, spreads are not quite believed
    unit = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)
    other = moved(task, torch.tensor([10.0, -7.0, 1e6], dtype=torch.float64), unit)
    algorithm = optimizer.on(HEAD, rounds=8, scaling="features")
    logits = []
    for one in (task, other):
        network.reset(random_data.seeded(2))
        weights = network.agent_rows(trained(algorithm, one, network))
        logits.append(HEAD.logits(weights, one.train.x))
    real = task.train.mask
    torch.testing.assert_close(logits[0][real], logits[1][real], rtol=1e-5, atol=1e-5)


def test_constant_features_have_unit_1_and_small_units_survive_large_offsets():
    network = Network(nx.complete_graph(AGENTS), shift="metropolis")
    for dtype, offset, unit in ((torch.float32, 1e4, 0.5), (torch.float64, 1e7, 1e-2)):
        part = random_data.examples(11, AGENTS, 8, FEATURES, dtype=torch.float64)
        x = part.x.clone()
        x[:, :, 0] = 0.1
        x[:, :, 1] = offset + unit * x[:, :, 1]
        x[:, :, 2] = 0.0
        part = Examples(x.to(dtype), part.y)
        found = standards(part, network)
        assert (found.unit[:, [0, 2]] == 1).all()
        expected = part.x[:, :, 1].double().std(correction=0).to(dtype)
        # In float32 what agents differ by is lost in the offset's square, and what is left is theirs.
        torch.testing.assert_close(found.unit[:, 1], expected.expand(AGENTS), rtol=0.05, atol=0)


def test_standardising_takes_no_round_of_its_own_and_is_counted(optimizer):
    task = random_data.task(1, AGENTS)
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    floats = {}
    for scaling in ("whole", "features"):
        algorithm = optimizer.on(HEAD, rounds=9, scaling=scaling)
        found = run(algorithm, task, network, algorithm.steps)
        assert found.rounds.tolist() == [0, 2, 4, 6, 8, 9]
        floats[scaling] = found.floats
    more = (floats["features"] - floats["whole"]) / (2 * AGENTS)
    spreads, moments = 3 * FEATURES + 1, FEATURES + FEATURES * (FEATURES + 1) // 2
    # In the fourth round agents tell of their examples once more than without units.
    assert more.tolist() == [0, 2 * spreads, *[4 * spreads + moments] * 4]


def test_a_server_tells_agents_whenever_the_units_are_new_to_them(optimizer):
    task = random_data.task(1, AGENTS)
    network = StarNetwork(AGENTS, 2, random_data.seeded(4))
    floats = {}
    for scaling in ("whole", "features"):
        algorithm = optimizer.on(HEAD, rounds=20, scaling=scaling)
        found = run(algorithm, task, network, algorithm.steps)
        assert found.rounds[-1] == 20
        floats[scaling] = int(found.floats[-1])
    # In four rounds 2 agents send numbers, sums and squares. Mean and unit go to those of the three rounds in
    # between, and later once to all.
    sent, told = 4 * 2 * (2 * FEATURES + 1), (3 * 2 + AGENTS) * 2 * FEATURES
    assert floats["features"] - floats["whole"] == sent + told


def test_a_feature_that_is_constant_around_an_agent_is_zero_there():
    graph = nx.path_graph(6)
    part = random_data.examples(13, 6, 8, FEATURES)
    x = part.x.clone()
    x[:, :, 0] = 0.0
    x[0, 0, 0] = 5.0  # seen by agent 0 only, once
    part = Examples(x, part.y)
    found = standards(part, Network(graph, shift="metropolis"))
    seen = ((part.x - found.centre[:, None]) / found.unit[:, None])[:, :, 0]
    assert seen[3:].abs().max() < 1e-12
    assert seen[1:3].abs().max() < 1
    assert seen[0].abs().max() < 8


def eased_share(deviations, trust=1.0):
    """The units of features that are left as they are where they are alike, by plain loops."""
    logs = sorted(math.log(one) for one in deviations if one > 0)
    if not logs:
        return [1.0] * len(deviations)

    def at(share):
        return logs[round(share * (len(logs) - 1))]

    def unlike(apart):
        return min(1.0, max(0.0, (apart - math.log(10)) / (math.log(100) - math.log(10))))

    middle, units = at(0.5), []
    for one in deviations:
        own = math.log(one) - middle if one > 0 else 0.0
        power = max(unlike(at(0.9) - at(0.1)), unlike(abs(own)))
        power *= trust if own < 0 else 1.0
        units.append(math.exp(middle + power * own))
    return units


def units(deviations, *, server=False):
    """What agents find, each of whom has two examples as far from their mean as features deviate."""
    x = torch.tensor([deviations, [-one for one in deviations]], dtype=torch.float64)
    part = Examples(x.expand(AGENTS, -1, -1), torch.zeros(AGENTS, 2, dtype=torch.long))
    network = Network(nx.complete_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, None, random_data.seeded(0))
    return standards(part, network, every=False).unit


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(-4, 4).map(lambda power: 10.0**power)),
        min_size=1,
        max_size=12,
    )
)
def test_units_of_what_is_alike_are_those_of_plain_loops(deviations):
    for server in (False, True):
        found = units(deviations, server=server)
        expected = torch.tensor(eased_share(deviations), dtype=torch.float64)
        torch.testing.assert_close(found, expected.expand(AGENTS, -1))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("rows", "agents", "trust"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1 / 3), (1, 4, 2 / 3), (2, 2, 2 / 3), (5, 1, 1), (2, 9, 1)],
)
def test_small_spreads_of_few_rows_are_not_believed(rows, agents, trust, every):
    deviations = torch.tensor([1e-4, 0.1, 1.0, 30.0, 0.0, 1e4], dtype=torch.float64)
    zero = torch.zeros(6, dtype=torch.float64)
    spreads = torch.cat([torch.ones(1, dtype=torch.float64), zero, deviations**2, zero])
    heard = torch.tensor([[agents]])
    found = feature_units(rows * spreads[None], torch.float64, every=every, agents=heard)[1][0]
    expected = eased_share(deviations.tolist(), trust)
    if every:
        expected = [max(one, one**trust) or 1.0 for one in deviations.tolist()]  # the median is 1
        expected[4] = 1.0
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("deviations", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 9.0], [3.0] * 5),
        ([1e-3, 1.0, 1e3], [1e-3, 1.0, 1e3]),
        ([2.0] * 20 + [1e6], [2.0] * 20 + [1e6]),
        ([2.0] * 20 + [1e-6], [2.0] * 20 + [1e-6]),
        ([5.0], [5.0]),
        ([0.0, 4.0, 0.0, 4.0], [4.0] * 4),
        ([0.0, 0.0], [1.0, 1.0]),
    ],
)
def test_features_of_one_unit_keep_it_and_others_are_standardised(deviations, expected):
    found = units(deviations)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).expand_as(found))


@pytest.mark.parametrize("scaling", ["features", "auto"])
def test_a_server_forgets_what_was_told_in_units_that_are_no_longer(optimizer, scaling):
    """Of agents with a single row, who know nothing of units, it would never hear the end."""
    part = random_data.examples(3, 6, 60, FEATURES, masked=False)
    wild = part.x * torch.tensor([1e6, 1.0, 1e-3], dtype=torch.float64)
    mask = torch.arange(60) < torch.tensor([1, 1, 1, 1, 1, 60])[:, None]
    train = Examples(wild * mask[:, :, None], part.y * mask, mask)
    task = Task(train, Examples(wild, part.y), CLASSES)
    for seed in range(5):
        network = StarNetwork(6, 1, random_data.seeded(seed))
        algorithm = optimizer.on(HEAD, rounds=20, scaling=scaling)
        state = algorithm.init(task, network, random_data.seeded(0))
        for _ in range(algorithm.steps):
            state = algorithm.step(state, task, network, random_data.seeded(1))
        of_server = state.sums[:1], state.progress[:1], state.varying[:1]
        heard = FederationEstimate.of(*of_server, features=FEATURES, agents=6)
        assert float(heard.varying) == FEATURES
        assert 0.1 < float(heard.scale) < 10
