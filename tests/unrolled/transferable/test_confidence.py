"""How sure heads should be: what the perceptron sees, that predictions stay, and what it is good for."""

import math

import networkx as nx
import numpy as np
import pytest
import random_data
import torch
from decentralised import lopsided_graph
from served import calls
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import fedsurf
from fedsurf import FederatedClassifier, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable.confidence import (
    CONFIDENCE_SUMS,
    INPUTS_SIZE,
    MAX_LOG_FACTOR,
    Confidence,
    confidence_inputs,
    own_confidence_sums,
)
from fedsurf.unrolled.transferable.controller import SCHEDULE_SIZE, schedule
from fedsurf.unrolled.transferable.newton import by_feature
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE, FederationEstimate

AGENTS, ROUNDS = 6, 5


def optimizer(size=0.5):
    """Draw an optimizer with much to say about how sure heads should be."""
    learned = Transferable(TransferableConfig(confidence_width=5), random_data.seeded(1)).double()
    random = random_data.seeded(2)
    with torch.no_grad():
        for value in learned.confidence.parameters():
            value += size * torch.randn(value.shape, generator=random, dtype=torch.float64)
    return learned.requires_grad_(False)


def network(*, server):
    if server:
        return StarNetwork(AGENTS, 3, random_data.seeded(4))
    return Network(lopsided_graph(), "metropolis")


def states(learned, task, over, rounds=ROUNDS, **options):
    """Return the algorithm, and its states after every layer."""
    algorithm = learned.on(SoftmaxHead(task.features, task.classes), rounds, **options)
    state, found = algorithm.init(task, over, random_data.seeded(0)), []
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, over, random_data.seeded(1))
        found.append(state)
    return algorithm, found


def heard(agents, classes, seed=0):
    share = (
        torch.rand(agents, classes, generator=random_data.seeded(seed), dtype=torch.float64) + 0.01
    )
    share = share / share.sum(1, keepdim=True)
    signals = torch.randn(
        agents, DESCRIPTION_SIZE, generator=random_data.seeded(seed), dtype=torch.float64
    )
    one = share[:, 0]
    return FederationEstimate(
        share, share, one, torch.full_like(one, 4), 3 + one, 30 + one, signals
    )


@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("server", [False, True])
def test_what_it_sees_is_what_a_plain_loop_puts_together(classes, server):
    of, when = heard(3, classes), torch.arange(SCHEDULE_SIZE, dtype=torch.float64)
    agents = torch.tensor([[1.0], [0.5], [0.1]], dtype=torch.float64)
    confidence_sums = torch.tensor([[0.5, 2.0], [-3.0, 0.1], [0.0, 0.0]], dtype=torch.float64)
    found = confidence_inputs(when, of, confidence_sums, agents, server=server)
    assert found.shape == (3, INPUTS_SIZE)
    for agent in range(3):
        share = of.classes[agent].tolist()
        relative = [math.log(classes * one) for one in share]
        uneven = sum(one * log for one, log in zip(share, relative, strict=True))
        slope, spread = (float(one) / float(of.examples[agent]) for one in confidence_sums[agent])
        step = min(MAX_LOG_FACTOR, max(-MAX_LOG_FACTOR, -slope / (spread + 1e-3)))
        weights = 4 * max(1, classes - 1) / float(of.total[agent])
        expected = [step, math.log(weights), math.log(spread + 1e-3) / 3]
        expected += [*when.tolist(), *of.description[agent].tolist()]
        expected += [uneven / max(0.5, math.log(classes)), max(-6, sum(relative) / classes) / 2]
        expected += [math.log(float(agents[agent])) / 3, float(server)]
        assert found[agent].tolist() == pytest.approx(expected)


def test_it_is_a_perceptron_with_a_bounded_outcome():
    confidence = optimizer().confidence
    known = torch.randn(4, INPUTS_SIZE, generator=random_data.seeded(3), dtype=torch.float64)
    first, second = confidence.first, confidence.second
    for row, found in zip(known, confidence(known), strict=True):
        hidden = [
            math.tanh(sum(w * k for w, k in zip(weights, row.tolist(), strict=True)) + bias)
            for weights, bias in zip(first.weight.tolist(), first.bias.tolist(), strict=True)
        ]
        out = sum(w * h for w, h in zip(second.weight[0].tolist(), hidden, strict=True))
        out += float(second.bias[0])
        doubtful = 1 / (1 + 0.05 / math.exp(float(row[1])))
        expected = MAX_LOG_FACTOR * math.tanh((float(row[0]) + doubtful * out) / MAX_LOG_FACTOR)
        assert float(found) == pytest.approx(expected)
    with torch.no_grad():
        second.bias.fill_(1e6)
    assert confidence(known).max() <= MAX_LOG_FACTOR


@pytest.mark.parametrize("server", [False, True])
def test_weights_are_heads_times_the_factor_of_what_each_knows(server):
    learned, task, over = optimizer(), random_data.task(0, AGENTS), network(server=server)
    algorithm, found = states(learned, task, over)
    for layer, state in enumerate(found):
        done = min(ROUNDS, 2 * (layer + 1))
        vary = torch.full((over.nodes,), 3.0, dtype=torch.float64)
        of = FederationEstimate.of(state.sums, state.progress, vary, features=3, agents=AGENTS)
        for node in range(over.nodes):
            source = 0 if server else node
            about = FederationEstimate(*(value[source : source + 1] for value in of))
            hears = 3 if server else 1 + len(lopsided_graph()[node])
            when = schedule(done - 1, ROUNDS, 3 if server else 20, state.head)
            share = torch.tensor([[hears / AGENTS]], dtype=torch.float64)
            confidence_sums = state.confidence_sums[source : source + 1]
            known = confidence_inputs(when, about, confidence_sums, share, server=server)
            factor = learned.confidence(known).exp()
            expected = by_feature(state.head[source : source + 1], 3) * factor
            torch.testing.assert_close(state.weights[node], expected[0])
        rows = algorithm.inputs(state, over)
        assert rows.shape == (1 if server else AGENTS, INPUTS_SIZE)


@pytest.mark.parametrize("server", [False, True])
def test_no_agent_predicts_otherwise_and_two_more_numbers_are_sent(server):
    sure, plain = optimizer(), optimizer()
    plain.confidence = None
    task, runs = random_data.task(0, AGENTS), []
    for learned in (sure, plain):
        over = network(server=server)
        _, found = states(learned, task, over)
        runs.append((found[-1], over.floats))
    (after, floats), (before, same) = runs
    messages = 3 * ROUNDS if server else ROUNDS * sum(dict(lopsided_graph().degree).values())
    assert floats == same + CONFIDENCE_SUMS * messages
    assert torch.equal(after.head, before.head)
    model, pool = SoftmaxHead(3, 3), task.test.pooled()
    one, other = (model.logits(state.weights, pool.x) for state in (after, before))
    assert torch.equal(one.argmax(2), other.argmax(2))
    assert not torch.allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_what_agents_tell_are_derivatives_by_the_factor_s_logarithm(factor):
    logits = torch.randn(2, 3, 5, generator=random_data.seeded(0), dtype=torch.float64)
    real = torch.tensor([[1.0] * 5, [1.0] * 3 + [0.0] * 2], dtype=torch.float64)[:, None]
    chosen = torch.randint(3, (2, 5), generator=random_data.seeded(1))
    labels = torch.nn.functional.one_hot(chosen, 3).mT * real
    for agent in range(2):

        def loss(logarithm, agent=agent):
            scores = (logarithm.exp() * factor * logits[agent]).log_softmax(0)
            return -(scores * labels[agent]).sum()

        zero = torch.zeros((), dtype=torch.float64)
        slope = torch.autograd.functional.jacobian(loss, zero)
        bend = torch.autograd.functional.hessian(loss, zero)
        probabilities = (factor * logits).softmax(1) * real
        found = own_confidence_sums(factor * logits, probabilities, labels)[agent]
        torch.testing.assert_close(found, torch.stack([slope, bend - slope]))


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize(("features", "examples"), [(3, 6), (5, 3), (40, 4), (40, 50)])
def test_what_is_heard_of_it_is_averaged_and_half_forgotten(server, features, examples):
    """In the first round heads are zero and tell nothing; then each tells of the head that it heard."""
    task = random_data.task(0, AGENTS, train=examples, features=features)
    model, over = SoftmaxHead(features, 3), network(server=server)
    algorithm = optimizer().on(model, 2)
    first = algorithm.round
    middle = first(
        algorithm.init(task, over, random_data.seeded(0)), task, over, random_data.seeded(1)
    )
    assert not middle.confidence_sums.any()
    after = first(middle, task, over, random_data.seeded(1))
    heads = by_feature(middle.fitted if server else middle.head, features)
    labels = torch.nn.functional.one_hot(task.train.y, 3).mT
    logits = model.logits(over.agent_rows(heads), task.train.x).mT
    own = own_confidence_sums(logits, logits.softmax(1), labels)
    if server:
        expected = own[calls(AGENTS, 3, 4, 2)[1]].mean(0) / 2
        torch.testing.assert_close(after.confidence_sums[0], expected)
    else:
        torch.testing.assert_close(after.confidence_sums, over.operator(torch.float64) @ own / 2)


def test_before_it_has_learned_what_agents_told_decides():
    fresh = Transferable(TransferableConfig(confidence_width=5), random_data.seeded(1))
    none = Transferable(TransferableConfig(), random_data.seeded(1))
    task = random_data.task(0, AGENTS, dtype=torch.float32)
    over = network(server=False)
    algorithm, found = states(fresh.requires_grad_(False), task, over)
    plain = states(none.requires_grad_(False), task, network(server=False))[1][-1].weights
    told = algorithm.inputs(found[-1], over)[:, :1]
    assert told.any()
    expected = plain * (MAX_LOG_FACTOR * torch.tanh(told / MAX_LOG_FACTOR)).exp()
    torch.testing.assert_close(found[-1].weights, expected)


@pytest.mark.parametrize("server", [False, True])
def test_classes_agents_and_units_may_change_their_names(server):
    task, over = random_data.task(0, AGENTS), network(server=server)
    algorithm, found = states(optimizer(), task, over)
    known = algorithm.inputs(found[-1], over)
    turn = torch.tensor([2, 0, 1])
    renamed = Task(
        *(Examples(7 * part.x + 3, turn[part.y], part.mask) for part in (task.train, task.test)), 3
    )
    over = network(server=server)
    algorithm, found = states(optimizer(), renamed, over)
    torch.testing.assert_close(algorithm.inputs(found[-1], over), known)
    if not server:
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        parts = (Examples(part.x[order], part.y[order]) for part in (task.train, task.test))
        names = {int(agent): place for place, agent in enumerate(order)}
        graph = nx.empty_graph(AGENTS)
        graph.add_edges_from((names[one], names[other]) for one, other in lopsided_graph().edges)
        over = Network(graph, "metropolis")
        algorithm, found = states(optimizer(), Task(*parts, 3), over)
        torch.testing.assert_close(algorithm.inputs(found[-1], over), known[order])


def test_it_counts_all_rounds_and_whom_a_server_hears():
    task, over = random_data.task(0, AGENTS), network(server=True)
    algorithm, found = states(optimizer(), task, over, scaling="features")
    expected = schedule(4, 5, 3, found[-1].head)
    torch.testing.assert_close(
        algorithm.inputs(found[-1], over)[0, 3 : 3 + SCHEDULE_SIZE], expected
    )


@pytest.mark.parametrize("agents", [1, 2])
def test_it_is_finite_for_one_class_one_agent_and_one_example(agents):
    part = Examples(torch.ones(agents, 1, 2), torch.zeros(agents, 1, dtype=torch.int64))
    graph = Network(nx.complete_graph(agents), "metropolis")
    for over in (graph, StarNetwork(agents, 1, random_data.seeded(0))):
        learned = fedsurf.load()
        _, found = states(learned, Task(part, part, 1), over, rounds=4)
        assert found[-1].weights.isfinite().all()


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize(("source", "most"), [(load_digits, 0.97), (load_breast_cancer, 1.0)])
def test_the_shipped_one_makes_probabilities_better_on_data_it_never_saw(source, most, server):
    x, y = source(return_X_y=True)
    sure, plain = fedsurf.load(), fedsurf.load()
    plain.confidence = None
    losses, given = {}, {"graph": "star", "reporting": 5} if server else {}
    for name, learned in (("sure", sure), ("plain", plain)):
        found = []
        for seed in range(3):
            parts = train_test_split(x, y, train_size=300, stratify=y, random_state=seed)
            model = FederatedClassifier(optimizer=learned, n_agents=10, random_state=seed, **given)
            model.fit(parts[0], parts[2])
            found.append(log_loss(parts[3], model.predict_proba(parts[1])))
        losses[name] = np.mean(found)
    assert losses["sure"] < most * losses["plain"]


def test_what_it_says_of_itself_has_no_random_numbers_of_its_own():
    first, second = (Confidence(5, random_data.seeded(3)) for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not first.second.weight.any()
    assert not first.second.bias.any()
