"""Rare classes: how much less their steps are damped, and what that is good for."""

import math

import networkx as nx
import numpy as np
import pytest
import random_data
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import fedsurf
from fedsurf import FederatedClassifier, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.controller import eased_share

AGENTS, FEATURES = 6, 4


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_classes_are_eased_as_a_plain_loop_eases_them(sizes):
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


@pytest.mark.parametrize("classes", [1, 2, 3, 100])
def test_classes_of_one_size_are_damped_as_ever(classes):
    even = torch.full((2, classes), 1 / classes)
    assert torch.allclose(eased_share(even, torch.zeros(2)), torch.ones(2, classes))


def trained(task, network, *, ease_rare):
    """Return what a pretrained optimizer leaves, `[agents, parameters]`."""
    head = SoftmaxHead(task.features, task.classes)
    algorithm = fedsurf.load().on(head, 8, ease_rare=ease_rare)
    network.reset(random_data.seeded(3))
    state = algorithm.init(task, network, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, network, random_data.seeded(1))
    return network.agent_rows(state.weights)


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("rare", [False, True])
def test_it_matters_where_classes_are_of_different_size_only(server, rare):
    x = torch.randn(AGENTS, 20, FEATURES, generator=random_data.seeded(0), dtype=torch.float64)
    y = (torch.arange(20) < (2 if rare else 10)).long().expand(AGENTS, -1)
    x = x + y[:, :, None]
    part = Examples(x, y)
    network = Network(nx.cycle_graph(AGENTS), shift="metropolis")
    if server:
        network = StarNetwork(AGENTS, 3, random_data.seeded(0))
    with torch.no_grad():
        before, after = (
            trained(Task(part, part, 2), network, ease_rare=ease) for ease in (False, True)
        )
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-6) != rare


@pytest.mark.parametrize("rare", [0.1, 0.02])
def test_rare_classes_are_about_as_likely_as_they_are(rare):
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


def test_classes_that_agents_have_not_heard_of_yet_are_not_taken_for_rare():
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
