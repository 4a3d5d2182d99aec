"""The confidence of heads: its inputs and outputs against plain loops, and its use."""

import math

import numpy as np
import pytest
import random_data
import torch
from running import begin, calls, lopsided_graph, streams
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from transferable_runs import AGENTS, network
from transferable_runs import optimizer as draw_optimizer
from transferable_runs import states as all_states

import fedsurf
from fedsurf import FederatedClassifier, SoftmaxHead
from fedsurf.unrolled import TransferableConfig
from fedsurf.unrolled.transferable.confidence import (
    CONFIDENCE_SUMS,
    INPUTS_SIZE,
    MAX_LOG_FACTOR,
    confidence_inputs,
    own_confidence_sums,
)
from fedsurf.unrolled.transferable.controller import SCHEDULE_SIZE, schedule
from fedsurf.unrolled.transferable.newton import by_feature
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE, FederationEstimate

ROUNDS = 5


def optimizer():
    return draw_optimizer(config=TransferableConfig(confidence_width=5))


def states(learned, task, over, rounds=ROUNDS, **options):
    """Return the algorithm, and its states after every layer."""
    algorithm = learned.on(SoftmaxHead(task.features, task.classes), rounds, **options)
    return algorithm, all_states(algorithm, task, over)[1:]


def estimate_of(agents, classes, seed=0):
    share = (
        torch.rand(agents, classes, generator=random_data.seeded(seed), dtype=torch.float64) + 0.01
    )
    share = share / share.sum(1, keepdim=True)
    described = torch.randn(
        agents, DESCRIPTION_SIZE, generator=random_data.seeded(seed), dtype=torch.float64
    )
    one = share[:, 0]
    return FederationEstimate(
        share, share, one, torch.full_like(one, 4), 3 + one, 30 + one, described
    )


@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("server", [False, True])
def test_inputs_equal_a_plain_loop(classes, server):
    of, when = estimate_of(3, classes), torch.arange(SCHEDULE_SIZE, dtype=torch.float64)
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


def test_the_factor_is_that_of_a_perceptron_and_bounded():
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
        doubt = 1 / (1 + 0.05 / math.exp(float(row[1])))
        expected = MAX_LOG_FACTOR * math.tanh((float(row[0]) + doubt * out) / MAX_LOG_FACTOR)
        assert float(found) == pytest.approx(expected)
    with torch.no_grad():
        second.bias.fill_(1e6)
    assert confidence(known).max() <= MAX_LOG_FACTOR


@pytest.mark.parametrize("server", [False, True])
def test_weights_are_heads_times_the_factor_of_each_agent(server):
    learned, task, over = optimizer(), random_data.task(0, AGENTS), network(star=server)
    algorithm, found = states(learned, task, over)
    for layer, state in enumerate(found):
        done = min(ROUNDS, 2 * (layer + 1))
        vary = torch.full((len(state.head),), 3.0, dtype=torch.float64)
        of = FederationEstimate.of(state.sums, state.progress, vary, features=3, agents=AGENTS)
        for row in range(1 if server else AGENTS):
            about = FederationEstimate(*(value[row : row + 1] for value in of))
            hears = 3 if server else 1 + len(lopsided_graph()[row])
            when = schedule(done - 1, ROUNDS, 3 if server else 20, state.head)
            share = torch.tensor([[hears / AGENTS]], dtype=torch.float64)
            confidence_sums = state.confidence_sums[row : row + 1]
            known = confidence_inputs(when, about, confidence_sums, share, server=server)
            factor = learned.confidence(known).exp()
            expected = by_feature(state.head[row : row + 1], 3) * factor
            torch.testing.assert_close(state.weights[row], expected[0])
        rows = algorithm.inputs(state, over)
        assert rows.shape == (1 if server else AGENTS, INPUTS_SIZE)


@pytest.mark.parametrize("server", [False, True])
def test_confidence_keeps_predictions_and_sends_two_more_numbers(server):
    sure, plain = optimizer(), optimizer()
    plain.confidence = None
    task, runs = random_data.task(0, AGENTS), []
    for learned in (sure, plain):
        over = network(star=server)
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
def test_confidence_sums_are_derivatives_by_the_logarithm_of_the_factor(factor):
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
def test_confidence_sums_are_averaged_and_decay(server, features, examples):
    """In the first round heads are zero and so are the sums; then they are of the received heads."""
    task = random_data.task(0, AGENTS, train=examples, features=features)
    model, over = SoftmaxHead(features, 3), network(star=server)
    algorithm = optimizer().on(model, 2)
    middle = algorithm.round(begin(algorithm, task, over), task, over, streams(over, 0, 0))
    assert not middle.confidence_sums.any()
    after = algorithm.round(middle, task, over, streams(over, 0, 1))
    heads = by_feature(middle.fitted if server else middle.head, features)
    labels = torch.nn.functional.one_hot(task.train.y, 3).mT
    logits = model.logits(heads.expand(AGENTS, -1), task.train.x).mT
    own = own_confidence_sums(logits, logits.softmax(1), labels)
    if server:
        expected = own[calls(AGENTS, 3, 4, 2)[1]].mean(0) / 2
        torch.testing.assert_close(after.confidence_sums[0], expected)
    else:
        torch.testing.assert_close(after.confidence_sums, over.operator(torch.float64) @ own / 2)


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize(("source", "most"), [(load_digits, 0.97), (load_breast_cancer, 1.0)])
def test_the_shipped_confidence_improves_probabilities_on_new_data(source, most, server):
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
