"""The agents' own examples: centres, units by communication, and groups of similar size."""

import math

import networkx as nx
import numpy as np
import pytest
import random_data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_data import seeded
from transferable_runs import as_drawn, network, optimizer, states

import fedsurf
from fedsurf import FederatedClassifier
from fedsurf.estimator.fit import alone_accuracy
from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks import groups
from fedsurf.tasks.groups import UnpaddedExamples
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.transferable.local import (
    ENOUGH_ROWS,
    FeatureRangeError,
    LocalExamples,
    feature_units,
    own_spreads,
    pooled_spreads,
    without_squared_means,
)
from fedsurf.unrolled.transferable.optimizer import SHARED_ROUNDS

AGENTS, FEATURES, CLASSES = 4, 3, 3
HEAD = SoftmaxHead(FEATURES, CLASSES)
SIZES = [9, 1, 30, 8, 2, 28]
"""Numbers of examples of six agents in groups."""


def normal(seed, *shape):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("features", [3, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_recentred_examples_are_those_of_the_other_centre(features, masked):
    examples = random_data.examples(12, AGENTS, 6, features, CLASSES, masked=masked)
    centre, unit = normal(13, AGENTS, features), normal(14, AGENTS, features).exp()
    first = LocalExamples.of(examples, CLASSES, unit=unit)
    view = first.recentred(normal(19, AGENTS, features)).recentred(centre)
    expected = LocalExamples.of(examples, CLASSES, centre, unit)
    for name in ("gram", "centre", "raw_sum", "unit", "labels", "real", "count"):
        torch.testing.assert_close(getattr(view, name), getattr(expected, name))
    torch.testing.assert_close((view.x + view.moved[:, None]) * view.real, expected.x)
    assert torch.equal(view.x, first.x) == view.wide
    for agent, own in enumerate(random_data.real_examples(examples)):
        raw = torch.tensor([x for x, _ in own], dtype=torch.float64)
        torch.testing.assert_close(view.raw_sum[agent], raw.sum(0))
        seen = (raw - centre[agent]) / unit[agent]
        omega = normal(15, features, 2)
        kept = first.sketch(omega) if view.wide else None
        for sketch in (view.sketch(omega), view.sketch(omega, kept)):
            torch.testing.assert_close(sketch[agent], omega.T @ seen.T @ seen)
        assert float(view.count[agent]) == len(own)
        counts = [sum(label == c for _, label in own) for c in range(CLASSES)]
        assert view.labels[agent].sum(1).tolist() == counts


def units_of(part, network, *, every=True):
    """Return centres and units after two rounds of communication."""
    spreads, dtype = own_spreads(part), part.x.dtype
    if not network.server:
        for _ in range(2):
            spreads = network.mix(spreads)
        return feature_units(spreads, dtype, every=every, agents=network.agents)
    total = torch.zeros(spreads.shape[1], dtype=torch.float64)
    for _ in range(2):
        called = network.call()
        sent = network.upload(without_squared_means(spreads[called.here]), called)
        total = pooled_spreads(total, sent)
    found = feature_units(total[None], dtype, every=every)
    return [one.expand(network.agents, -1) for one in found]


def trained(algorithm, task, network):
    """Return the heads after a run, `[agents, parameters]`."""
    return states(algorithm, task, network)[-1].agent_weights(network)


def moved(task, shift, unit):
    """Return the task with features in other units, from another origin."""

    def part(examples):
        x = examples.x * unit + shift
        if examples.mask is not None:
            x = x * examples.mask[:, :, None]
        return Examples(x, examples.y, examples.mask)

    return Task(part(task.train), part(task.test), task.classes)


@pytest.mark.parametrize("server", [False, True])
def test_units_in_a_complete_graph_are_those_of_the_pooled_examples(server):
    network = Network(nx.complete_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, None, random_data.seeded(0))
    part = random_data.examples(5, AGENTS, 6, FEATURES, masked=True)
    pool = part.pooled().x[0]
    centre, units = units_of(part, network)
    torch.testing.assert_close(centre, pool.mean(0).expand(AGENTS, -1))
    torch.testing.assert_close(units, pool.std(0, correction=0).expand(AGENTS, -1))


def standardised(task):
    """Return the task with each agent's examples standardised: all have the same units from the start."""
    x = task.train.x
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)
    return Task(Examples(x, task.train.y), task.test, task.classes)


@pytest.mark.parametrize("scaling", ["features", "auto"])
@pytest.mark.parametrize(
    ("graph", "rounds"),
    [(nx.path_graph(1), 10), (nx.path_graph(4), SHARED_ROUNDS), (nx.complete_graph(4), 10)],
)
def test_training_is_that_on_data_standardised_by_hand(graph, rounds, scaling):
    network = Network(graph, shift="metropolis")
    by_hand = standardised(random_data.task(7, len(graph), train=20))
    unit = torch.tensor([1e-3, 5.0, 40.0], dtype=torch.float64)
    wild = moved(by_hand, torch.tensor([2.0, -300.0, 0.0], dtype=torch.float64), unit)
    logits = []
    for task, how in ((wild, scaling), (by_hand, "whole")):
        network.reset(random_data.seeded(2))
        weights = trained(as_drawn().on(HEAD, rounds=rounds, scaling=how), task, network)
        logits.append(HEAD.logits(weights, task.test.x))
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("server", [False, True])
def test_origin_and_units_of_the_features_do_not_matter(server):
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, 2, random_data.seeded(0))
    task = random_data.task(9, AGENTS, train=40, masked=True)
    assert task.train.counts.min() >= ENOUGH_ROWS  # spreads of fewer rows are not trusted
    unit = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)
    other = moved(task, torch.tensor([10.0, -7.0, 1e6], dtype=torch.float64), unit)
    algorithm = as_drawn().on(HEAD, rounds=8, scaling="features")
    logits = []
    for one in (task, other):
        network.reset(random_data.seeded(2))
        weights = trained(algorithm, one, network)
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
        _, units = units_of(part, network)
        assert (units[:, [0, 2]] == 1).all()
        expected = part.x[:, :, 1].double().std(correction=0).to(dtype)
        # In float32 the spread between agents is lost in the offset's square; that within stays.
        torch.testing.assert_close(units[:, 1], expected.expand(AGENTS), rtol=0.05, atol=0)


def test_standardising_takes_floats_but_no_rounds():
    task = random_data.task(1, AGENTS)
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    floats = {}
    for scaling in ("whole", "features"):
        algorithm = as_drawn().on(HEAD, rounds=9, scaling=scaling)
        found = run(algorithm, task, network, algorithm.steps)
        assert found.rounds.tolist() == [0, 2, 4, 6, 8, 9]
        floats[scaling] = found.floats
    more = (floats["features"] - floats["whole"]) / (2 * AGENTS)
    spreads, moments = 3 * FEATURES + 1, FEATURES + FEATURES * (FEATURES + 1) // 2
    # In the fourth round agents send moments once more than without units.
    assert more.tolist() == [0, 2 * spreads, *[4 * spreads + moments] * 4]


def loop_units(deviations, trust=1.0):
    """Return units by plain loops."""
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


def units_for(deviations, *, server=False):
    """Return units where each agent has two examples with these deviations."""
    x = torch.tensor([deviations, [-one for one in deviations]], dtype=torch.float64)
    part = Examples(x.expand(AGENTS, -1, -1), torch.zeros(AGENTS, 2, dtype=torch.long))
    network = Network(nx.complete_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, None, random_data.seeded(0))
    return units_of(part, network, every=False)[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(-4, 4).map(lambda power: 10.0**power)),
        min_size=1,
        max_size=12,
    )
)
def test_units_equal_plain_loops(deviations):
    for server in (False, True):
        found = units_for(deviations, server=server)
        expected = torch.tensor(loop_units(deviations), dtype=torch.float64)
        torch.testing.assert_close(found, expected.expand(AGENTS, -1))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("rows", "agents", "trust"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1 / 3), (1, 4, 2 / 3), (2, 2, 2 / 3), (5, 1, 1), (2, 9, 1)],
)
def test_small_spreads_of_few_rows_are_not_trusted(rows, agents, trust, every):
    deviations = torch.tensor([1e-4, 0.1, 1.0, 30.0, 0.0, 1e4], dtype=torch.float64)
    zero = torch.zeros(6, dtype=torch.float64)
    spreads = torch.cat([torch.ones(1, dtype=torch.float64), zero, deviations**2, zero])
    heard = torch.tensor([[agents]])
    found = feature_units(rows * spreads[None], torch.float64, every=every, agents=heard)[1][0]
    expected = loop_units(deviations.tolist(), trust)
    if every:
        expected = [max(one, one**trust) or 1.0 for one in deviations.tolist()]  # the median is 1
        expected[4] = 1.0
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.fixture
def grouped(monkeypatch):
    """Divide small problems into groups, too."""
    monkeypatch.setattr(groups, "MAX_ORDINARY_SIZE", 0)
    monkeypatch.setattr(groups, "MAX_PADDING", 20)
    monkeypatch.setattr(groups, "MAX_PADDING_SHARE", 0.0)


def unequal(features, *, gaps=False):
    """Draw a task of agents of unequal size; with gaps, padding is also between examples."""
    random = random_data.seeded(3)
    xs = [torch.randn(size, features, generator=random, dtype=torch.float64) for size in SIZES]
    ys = [torch.randint(CLASSES, (size,), generator=random) for size in SIZES]
    examples = Examples.pad([x + 2 * y[:, None] for x, y in zip(xs, ys, strict=True)], ys)
    if gaps:
        mask = examples.mask & (torch.arange(examples.mask.shape[1]) % 4 != 0)
        mask[:, 1] = examples.mask[:, 1]
        mask[1, 0] = True
        x, y = examples.x * mask[:, :, None], examples.y * mask
        examples = Examples(x, y, mask)
    return Task(examples, examples, CLASSES)


def run_of(task, *, star=False, learned=None, **options):
    """Return the last state of a run."""
    learned = optimizer(config=fedsurf.load().config) if learned is None else learned
    algorithm = learned.on(SoftmaxHead(task.features, CLASSES), 7, **options)
    return states(algorithm, task, network(star=star))[-1]


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"ease_rare": True, "weigh_agents": True}, {"scaling": "features"}, {"batch_size": 30}],
)
@pytest.mark.parametrize("features", [5, 40])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_run_in_groups_is_that_of_all_agents_at_once(request, gaps, features, options, star):
    task = unequal(features, gaps=gaps)
    alone = run_of(task, star=star, **options)
    assert len(groups.group_agents(task.train)) == 1
    request.getfixturevalue("grouped")
    found = run_of(task, star=star, **options)
    assert len(groups.group_agents(task.train)) >= 3
    assert alone.weights.abs().max() > 0.01
    names = ["weights", "sums", "progress", "moments", "confidence_sums", "unit"]
    for name in names if star else [*names, "own_sums", "own_moments"]:
        torch.testing.assert_close(getattr(found, name), getattr(alone, name))


@pytest.mark.parametrize("star", [False, True])
def test_derivatives_in_groups_are_those_of_all_agents_at_once(request, star):
    def derivatives():
        learned = optimizer().requires_grad_()
        run_of(unequal(5), star=star, learned=learned).weights.square().sum().backward()
        return [value.grad for value in learned.parameters() if value.grad is not None]

    alone = derivatives()
    request.getfixturevalue("grouped")
    assert len(alone) == 8
    for found, wanted in zip(derivatives(), alone, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize(
    "options", [{"standardize": True}, {"standardize": False}, {"batch_size": 3}]
)
def test_no_agent_is_padded_to_the_largest_of_all(grouped, monkeypatch, graph, options):
    def padded(_):
        raise AssertionError("padded to the largest agent")

    def trimmed(examples, agents):
        found = plain(examples, agents)
        sizes.append(found.y.numel())
        return found

    plain, sizes = UnpaddedExamples.trimmed, []
    monkeypatch.setattr(UnpaddedExamples, "trimmed", trimmed)
    monkeypatch.setattr(UnpaddedExamples, "_padded", property(padded))
    pool = unequal(7).train.pooled()
    x, y, owner = pool.x[0].numpy(), pool.y[0].numpy(), np.repeat(np.arange(6), SIZES)
    model = FederatedClassifier(graph=graph, rounds=8, **options).fit(x, y, agents=owner)
    assert model.score(x, y) > 0.6
    assert alone_accuracy(x, y, owner, x, y) > 0.4
    assert max(sizes) <= sum(SIZES) < 6 * max(SIZES)
    with pytest.raises(FeatureRangeError, match=r"^X: got features as large as"):
        model.fit(1e200 * x, y, agents=owner)
