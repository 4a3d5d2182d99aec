"""Controls and gates against plain sums, their initial values, and the damping of rare classes."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
import transferable_loop
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded, weights
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from transferable_runs import network, states

import fedsurf
from fedsurf import FederatedClassifier, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.transferable.controller import (
    CLASS_SIZE,
    CONTROLS,
    GRAPH_CALLS,
    SCHEDULE_SIZE,
    Controller,
    eased_share,
    schedule,
)
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE

AGENTS, CLASSES = 4, 3
SHARE = torch.tensor([[1.0], [0.5], [0.1], [1.0]], dtype=torch.float64)
HEARD = torch.tensor([[0.1], [0.2], [1.0], [0.03]], dtype=torch.float64)


@pytest.fixture
def controller():
    return Controller(16, 12, seeded(0)).double().requires_grad_(False)


def named(lengths, mixing):
    """Return each control by its name, `[agents]`."""
    return dict(zip(CONTROLS, torch.cat([lengths, mixing], 1).unbind(1), strict=True))


@pytest.mark.parametrize(("step", "steps"), [(0, 1), (0, 20), (7, 20), (19, 20), (39, 40)])
@pytest.mark.parametrize("heard", [1, GRAPH_CALLS, 100])
def test_the_schedule_equals_its_formula(step, steps, heard):
    found = schedule(step, steps, heard, torch.zeros(1, dtype=torch.float64))
    assert found.shape == (SCHEDULE_SIZE,)
    assert found.tolist() == pytest.approx(
        transferable_loop.schedule(step, steps, heard), rel=1e-12
    )
    assert found.isfinite().all()


def test_controls_and_gates_equal_plain_sums(controller):
    for value in controller.parameters():
        value += 0.5 * torch.randn(value.shape, generator=seeded(1), dtype=torch.float64)
    when, described = weights(2, 1, SCHEDULE_SIZE)[0], weights(3, AGENTS, DESCRIPTION_SIZE)
    about = torch.randn(AGENTS, CLASSES, CLASS_SIZE, generator=seeded(4), dtype=torch.float64)
    lengths, mixing, context = controller.controls(when, described, SHARE, HEARD)
    found = named(lengths, mixing)
    gate, offset = controller.gates(about, context)
    assert list(found) == list(CONTROLS)
    assert gate.shape == offset.shape == (AGENTS, CLASSES, 1)
    for agent in range(AGENTS):
        values = transferable_loop.perceptron(
            controller.round_in,
            controller.round_out,
            [
                *when.tolist(),
                *described[agent].tolist(),
                math.log(float(SHARE[agent])) / 2,
                math.log(float(HEARD[agent])) / 3,
            ],
        )
        for name, value in zip(CONTROLS, values, strict=False):
            assert found[name].shape == (AGENTS,)
            assert float(found[name][agent]) == pytest.approx(value)
        assert context[agent].tolist() == pytest.approx(values[len(CONTROLS) :])
        for c in range(CLASSES):
            opening, weight = transferable_loop.perceptron(
                controller.class_in,
                controller.class_out,
                about[agent, c].tolist() + context[agent].tolist(),
            )
            assert float(gate[agent, c]) == pytest.approx(2 / (1 + math.exp(-opening)))
            assert float(offset[agent, c]) == pytest.approx(weight)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_eased_shares_equal_a_plain_loop(sizes):
    shares = [size / sum(sizes) for size in sizes]
    expected, even = [], 1 / len(sizes) * (1 - 1 / len(sizes))
    for share in shares:
        ratio = share * (1 - share) / even if len(sizes) > 1 else 1.0
        expected.append(min(1.0, max(0.02, ratio**2)))
    heard = torch.tensor([shares], dtype=torch.float64)
    for divergence in (0.0, 0.3):
        found = eased_share(heard, torch.tensor([divergence], dtype=torch.float64))
        trusted = [one ** math.exp(-4 * divergence) for one in expected]
        torch.testing.assert_close(found, torch.tensor([trusted], dtype=torch.float64))


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("rare", [False, True])
def test_easing_changes_heads_only_where_classes_are_of_different_size(star, rare):
    x = torch.randn(6, 20, 4, generator=seeded(0), dtype=torch.float64)
    y = (torch.arange(20) < (2 if rare else 10)).long().expand(6, -1)
    part = Examples(x + y[:, :, None], y)
    before, after = (
        states(
            fedsurf.load().requires_grad_(False).on(SoftmaxHead(4, 2), 8, ease_rare=ease),
            Task(part, part, 2),
            network(star=star),
        )[-1].weights
        for ease in (False, True)
    )
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-6) != rare


@pytest.mark.parametrize("rare", [0.1, 0.02])
def test_probabilities_of_rare_classes_are_about_right(rare):
    losses = {"agents": [], "one place": []}
    for seed in range(2):
        x, y = make_classification(
            3000, 15, n_informative=8, weights=[1 - rare], flip_y=0.005, random_state=seed
        )
        x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, stratify=y, random_state=seed)
        model = FederatedClassifier(n_agents=15).fit(x, y)
        share = y.mean()
        assert share / 1.8 < model.predict_proba(x)[:, 1].mean() < 1.35 * share
        for name, one in (("agents", model), ("one place", LogisticRegression().fit(x, y))):
            losses[name].append(log_loss(y_test, one.predict_proba(x_test)))
    assert np.mean(losses["agents"]) < 1.25 * np.mean(losses["one place"])


def test_classes_of_distant_agents_are_not_taken_for_rare():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x), torch.tensor(y)
    held = [torch.nonzero(y == agent // 3).flatten()[agent % 3 :: 3] for agent in range(30)]
    part = Examples.pad([x[rows] for rows in held], [y[rows] for rows in held])
    task, head, right = Task(part, part, 10), SoftmaxHead(64, 10), []
    for ease_rare in (False, True):
        algorithm = fedsurf.load().on(head, 20, ease_rare=ease_rare)
        network = Network(nx.cycle_graph(30), shift="metropolis")
        run = fedsurf.run(algorithm, task, network, algorithm.steps)
        right.append(float(run.pooled_accuracy[-1]))
    assert right[1] > right[0] - 0.02
