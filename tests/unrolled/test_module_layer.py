"""The layer for modules against a plain loop, its symmetries, its locality and its messages."""

import math
from dataclasses import replace

import naive
import pytest
import random_data
import running
import torch
from running import advance, begin, lopsided_graph, streams
from torch import nn

from fedsurf.algorithms import SharedStart, Start
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Task
from fedsurf.unrolled.module_layer import (
    CONTROLS,
    LENGTHS,
    SUMMARY_SIZE,
    GradientTransfer,
    GradientTransferConfig,
)

AGENTS, FEATURES, UNITS, CLASSES = 6, 4, 5, 3
START = Start(0.0, 0.4)
"""Agents that start apart, so that mixing matters from the first round."""


def module():
    return nn.Sequential(nn.Linear(FEATURES, UNITS), nn.Tanh(), nn.Linear(UNITS, CLASSES))


MODEL = ModuleModel(module())


def optimizer(seed=1, size=0.4, local_steps=3):
    """Draw parameters that are larger than the initial ones, so that every control matters."""
    config = GradientTransferConfig(width=7, local_steps=local_steps)
    made = GradientTransfer(config, random_data.seeded(seed)).double()
    random = random_data.seeded(seed + 1)
    with torch.no_grad():
        for value in made.parameters():
            noise = torch.randn(value.shape, generator=random, dtype=torch.float64)
            value += size * noise / (value.shape[1] ** 0.5 if value.dim() == 2 else 1)
    return made.requires_grad_(False)


def draw_task(seed=3, **options):
    return random_data.task(seed, AGENTS, 7, 5, FEATURES, CLASSES, **options)


def network():
    return Network(lopsided_graph(), "metropolis")


def run(task, over, rounds=5, learned=None, start=START, model=MODEL):
    learned = optimizer() if learned is None else learned
    algorithm = learned.on(model, rounds, start)
    return running.run(algorithm, task, over, algorithm.steps)


def look(row, examples):
    """Return the loss and the gradient of one agent, tensor by tensor, by autograd."""
    net = module().double()
    with torch.no_grad():
        for value, piece in zip(net.parameters(), row, strict=True):
            value.copy_(piece.reshape(value.shape))
    x = torch.tensor([x for x, _ in examples], dtype=torch.float64)
    loss = nn.functional.cross_entropy(net(x), torch.tensor([y for _, y in examples]))
    loss.backward()
    return loss.item(), [value.grad.flatten() for value in net.parameters()]


def rms(values, unit=1.0):
    return math.log(sum((float(v) / unit) ** 2 for v in values) / len(values) + 1e-10) / 2


def clamp(value, limit=4.0):
    return max(-limit, min(limit, value))


def loop(learned, task, rows, rounds, local_steps):
    """Compute a whole run, agent by agent and tensor by tensor; `rows` are flat."""
    fans, outputs, vectors = [FEATURES] * 2 + [UNITS] * 2, [UNITS] * 2 + [CLASSES] * 2, [0, 1, 0, 1]
    sizes = [FEATURES * UNITS, UNITS, UNITS * CLASSES, CLASSES]
    data = random_data.real_examples(task.train)
    w = [list(torch.split(row, sizes)) for row in rows]
    before, fitted = [list(own) for own in w], [list(own) for own in w]
    squares = [[torch.zeros_like(piece) for piece in own] for own in w]
    gaps = [[math.log(1e-10) / 2] * 4 for _ in w]
    heard = [[0.0] * 4 for _ in w]
    graph, guess = lopsided_graph(), math.log(CLASSES)
    for r in range(rounds):
        left = rounds - 1 - r
        when = [r / max(1, rounds - 1) - 0.5, math.exp(-r / 3), math.exp(-left / 3)]
        when += [math.exp(-r), math.exp(-left), math.log(rounds / 20), 0.0]
        messages, controls, new_fitted = [], [], []
        for i, own in enumerate(data):
            m = len(own)
            loss, g = look(w[i], own)
            facts = [(math.log(m) - 3.5) / 2, math.log(m * AGENTS / sum(sizes)) / 2]
            facts += [(guess - 2.3) / 1.5, (math.log(AGENTS) - 3.5) / 2]
            of_tensors = []
            for t in range(4):
                unit, moved = fans[t] ** -0.5, w[i][t] - before[i][t]
                lengths = g[t].square().mean() * moved.square().mean()
                angle = float((g[t] * moved).mean() / (lengths + 1e-20).sqrt())
                about = [vectors[t], 2 * t / 3 - 1, float(t >= 2)]
                about += [math.log(fans[t]) - 3.5, math.log(outputs[t]) - 3]
                motion = [rms(g[t], unit), rms(w[i][t], unit), rms(moved, unit), 3 * angle]
                motion = [clamp(value / 3) for value in [*motion, gaps[i][t]]]
                seen = [*when, *(clamp(v) for v in heard[i]), *facts, *about, *motion]
                hidden = torch.tanh(learned.first(torch.tensor(seen, dtype=torch.float64)))
                of_tensors.append(dict(zip(CONTROLS, learned.second(hidden).tolist(), strict=True)))
            v, momentum, losses = list(w[i]), [0.0] * 4, []
            for k in range(local_steps):
                if k:
                    value, g = look(v, own)
                    losses.append(value)
                for t, control in enumerate(of_tensors):
                    eta, nu, rho = (
                        math.exp(min(3, max(-14, control[name])))
                        for name in ("gradient", "normalised", "decay")
                    )
                    beta = 1 / (1 + math.exp(-control["momentum"]))
                    new = 1.0 if r == k == 0 else 0.1
                    squares[i][t] = (1 - new) * squares[i][t] + new * g[t].square()
                    momentum[t] = beta * momentum[t] + (1 - beta) * g[t]
                    floor = 0.03 * squares[i][t].mean() + 1e-20
                    unit = fans[t] ** -0.5
                    move = eta * momentum[t] + rho * v[t]
                    move = move + nu * unit * momentum[t] / (squares[i][t] + floor).sqrt()
                    longest = 0.3 * max(1.0, math.exp(rms(v[t], unit)))
                    v[t] = v[t] - move * min(1.0, longest / math.exp(rms(move, unit)))
            sent = [
                v[t] + (math.tanh(control["correction"]) * (w[i][t] - fitted[i][t]) if r else 0.0)
                for t, control in enumerate(of_tensors)
            ]
            told = [loss / guess - 0.5, losses[0] / guess - 0.5, math.log(loss / guess) / 2]
            told = [clamp(value) for value in [*told, math.log(m) - 3.5]]
            if r:
                told = [(mine + theirs) / 2 for mine, theirs in zip(told, heard[i], strict=True)]
            messages.append([*torch.cat(sent).tolist(), *told])
            controls.append(of_tensors)
            new_fitted.append(v)
        mixed = torch.tensor(naive.mix(graph, messages, "metropolis"), dtype=torch.float64)
        for i in range(AGENTS):
            sent = torch.split(torch.tensor(messages[i][:-4], dtype=torch.float64), sizes)
            received = torch.split(mixed[i, :-4], sizes)
            heard[i] = mixed[i, -4:].tolist()
            mine = []
            for t, control in enumerate(controls[i]):
                a, b, e = (math.tanh(control[name]) for name in ("keep", "stay", "memory"))
                gaps[i][t] = rms(received[t] - sent[t], fans[t] ** -0.5)
                mine.append(
                    (1 - a - b - e) * received[t] + a * sent[t] + b * w[i][t] + e * before[i][t]
                )
            before[i], w[i], fitted[i] = w[i], mine, new_fitted[i]
    return torch.stack([torch.cat(own) for own in w])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rounds", [1, 5])
def test_a_whole_run_equals_a_loop_over_agents_tensors_and_neighbours(rounds, masked):
    task, learned = draw_task(masked=masked), optimizer()
    state = run(task, network(), rounds, learned)
    start = START.draw(MODEL, streams(network()), task.train.x)
    expected = loop(learned, task, start, rounds, 3)
    assert (expected - start).abs().max() > 0.05
    torch.testing.assert_close(state.weights, expected, rtol=1e-9, atol=1e-9)
    assert state.rounds == rounds
    assert state.steps == (rounds + 1) // 2


@pytest.mark.parametrize("beyond", [-100, 100])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_run_whose_lengths_are_at_their_limits_equals_the_loop(length, beyond):
    task, learned = draw_task(), optimizer()
    learned.second.bias[list(CONTROLS).index(length)] += beyond
    start = START.draw(MODEL, streams(network()), task.train.x)
    expected = loop(learned, task, start, 2, 3)
    found = run(task, network(), 2, learned).weights
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_no_control_and_no_input_is_idle_at_the_parameters_of_these_tests():
    """Otherwise the loop above would agree whatever the control did."""
    task, learned = draw_task(), optimizer()
    before = run(task, network(), 5, learned).weights
    for place in range(len(CONTROLS)):
        learned.second.bias[place] += 0.1
        assert (run(task, network(), 5, learned).weights - before).abs().max() > 1e-5
        learned.second.bias[place] -= 0.1
    idle = 6  # the number of agents that a server calls
    for place in range(learned.first.weight.shape[1]):
        learned.first.weight[:, place] += 0.1
        moved = (run(task, network(), 5, learned).weights - before).abs().max()
        learned.first.weight[:, place] -= 0.1
        assert (moved < 1e-12) == (place == idle)


def test_an_untrained_optimizer_learns_and_more_rounds_help():
    task = random_data.task(5, AGENTS, 12, 50, 8, CLASSES, dtype=torch.float32)
    learned = GradientTransfer(GradientTransferConfig(), random_data.seeded(0)).requires_grad_(
        False
    )
    model = ModuleModel(nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, CLASSES)))
    losses = []
    for rounds in (1, 5, 20):
        weights = run(task, network(), rounds, learned, SharedStart(), model).weights
        losses.append(float(model.pooled_loss(weights, task.test).mean()))
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.6


def test_it_trains_a_convolution_with_a_normalisation():
    net = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip
    task = random_data.task(5, AGENTS, 12, 50, 16, CLASSES, dtype=torch.float32)
    learned = GradientTransfer(GradientTransferConfig(), random_data.seeded(0)).requires_grad_(
        False
    )
    model, over = ModuleModel(net), network()
    before = SharedStart().draw(model, streams(over), task.train.x)
    after = run(task, over, 20, learned, SharedStart(), model).weights
    first, last = (model.pooled_loss(one, task.test).mean() for one in (before, after))
    assert last < 0.5 * first


def test_a_message_is_the_weights_and_four_numbers():
    over = network()
    run(draw_task(), over, 5)
    assert SUMMARY_SIZE == 4
    assert over.rounds == 5
    assert (over.link_floats == 5 * (MODEL.parameters + 4)).all()


def test_permuting_hidden_units_permutes_the_result():
    order = torch.tensor([3, 0, 4, 1, 2])
    first, rest = FEATURES * UNITS, UNITS * (FEATURES + 1)
    place = torch.arange(MODEL.parameters)
    place[:first] = place[:first].reshape(UNITS, FEATURES)[order].flatten()
    place[first:rest] = first + order
    output = place[rest : rest + UNITS * CLASSES].reshape(CLASSES, UNITS)
    place[rest : rest + UNITS * CLASSES] = output[:, order].flatten()
    task, over, algorithm = draw_task(), network(), optimizer().on(MODEL, 6, START)
    state = begin(algorithm, task, over)
    moved = state.weights[:, place]
    other = replace(state, weights=moved, previous=moved, fitted=moved)
    for _ in range(3):
        state = advance(algorithm, state, task, over)
        other = advance(algorithm, other, task, over)
    assert not torch.allclose(state.weights, other.weights)
    torch.testing.assert_close(state.weights[:, place], other.weights)


def test_a_layer_carries_data_no_farther_than_two_links():
    task = draw_task()
    x = task.train.x.clone()
    x[0] += 1
    other = Task(replace(task.train, x=x), task.test, CLASSES)
    states = []
    for one in (task, other):
        algorithm, over = optimizer().on(MODEL, 6, START), network()
        states.append(running.run(algorithm, one, over, 1).weights)
    differs = (states[0] != states[1]).any(1).tolist()
    assert differs == [True, True, True, False, False, True]


def test_meta_training_reaches_every_parameter():
    task, over = draw_task(), network()
    learned = optimizer().requires_grad_(True)
    weights = run(task, over, 5, learned).weights
    MODEL.pooled_loss(weights, task.test).mean().backward()
    for value in learned.parameters():
        assert value.grad.isfinite().all()
        assert (value.grad != 0).any(-1).all()


def test_invalid_arguments_are_refused():
    learned = optimizer()
    with pytest.raises(TypeError, match=r"^model: got a SoftmaxHead, .* trains a ModuleModel"):
        learned.on(SoftmaxHead(FEATURES, CLASSES))
    with pytest.raises(ValueError, match=r"^rounds: got 201, .* between 1 and 200"):
        learned.on(MODEL, 201)
    for name, least in (("width", 1), ("local_steps", 2)):
        config = GradientTransferConfig(**{name: 0})
        with pytest.raises(ValueError, match=rf"^{name}: got 0, but it must be at least {least}"):
            GradientTransfer(config, random_data.seeded(0))


def test_networks_and_states_that_do_not_fit_are_refused():
    task, over, star = draw_task(), network(), StarNetwork(AGENTS, 3, random_data.seeded(0))
    algorithm = optimizer().on(MODEL, 1)
    with pytest.raises(ValueError, match=r"^network: got a star with a server, .* graphs only"):
        begin(algorithm, task, star)
    with pytest.raises(ValueError, match=r"^network: got the shift operator 'laplacian'"):
        begin(algorithm, task, Network(lopsided_graph(), "laplacian"))
    state = running.run(algorithm, task, over, 1)
    with pytest.raises(ValueError, match=r"^state: got one after 1 rounds, but .* has 1 rounds"):
        advance(algorithm, state, task, over)
