"""MOON: its representations by autograd, and where MOON is FedAvg."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, calls, run
from torch import nn
from torch.nn import functional

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.moon import MOON
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import StarNetwork


def perceptron():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def filled(module, row):
    """Write flat weights into a module."""
    nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return module


def hidden(module, x):
    """The output of a perceptron's hidden layer."""
    return module[1](module[0](x))


def naive_training(own, server, previous, x, y, *, steps, step_size, mu, temperature):
    """One agent's steps on its own module by autograd, example after example."""
    module = filled(perceptron(), own)
    fixed = [filled(perceptron(), row) for row in (server, previous)]
    plain = torch.optim.SGD(module.parameters(), lr=step_size)
    for _ in range(steps):
        plain.zero_grad()
        for one, label in zip(x, y, strict=True):
            z = hidden(module, one)
            near, far = (
                functional.cosine_similarity(z, hidden(other, one).detach(), dim=0)
                for other in fixed
            )
            contrast = -torch.log(
                (near / temperature).exp()
                / ((near / temperature).exp() + (far / temperature).exp())
            )
            loss = functional.cross_entropy(module(one), label) + mu * contrast
            (loss / len(y)).backward()
        plain.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@settings(max_examples=8)
@given(agents=st.integers(1, 4), seed=st.integers(0, 1000), masked=st.booleans(), data=st.data())
def test_on_hidden_features_moon_equals_a_loop_over_the_called_agents(agents, seed, masked, data):
    reporting = data.draw(st.integers(1, agents))
    task, network = (
        draw_task(seed, agents, masked=masked),
        StarNetwork(agents, reporting, seeded(7)),
    )
    moon = MOON(ModuleModel(perceptron()), 2, 0.5, None, "examples", mu=3.0, temperature=0.4)
    state = begin(moon, task, network, seed)
    server = state.weights[0]
    previous = [server] * agents
    for called in calls(agents, reporting, 7, 3):
        state = advance(moon, state, task, network, seed)
        local, sizes = [], []
        for agent in called:
            real = slice(None) if task.train.mask is None else task.train.mask[agent]
            x, y = task.train.x[agent][real], task.train.y[agent][real]
            row = naive_training(
                server, server, previous[agent], x, y,
                steps=2, step_size=0.5, mu=3.0, temperature=0.4,
            )  # fmt: skip
            local.append(row)
            sizes.append(len(y))
        for agent, row in zip(called, local, strict=True):
            previous[agent] = row
        server = sum(n * row for n, row in zip(sizes, local, strict=True)) / sum(sizes)
    torch.testing.assert_close(state.weights[0], server, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.previous, torch.stack(previous), rtol=1e-9, atol=1e-9)
    assert state.steps == network.rounds == 3


def ends(methods, task, reporting=3, count=5):
    star = [StarNetwork(task.agents, reporting, seeded(0)) for _ in methods]
    return [
        run(method, task, network, count).weights
        for method, network in zip(methods, star, strict=True)
    ]


def test_on_frozen_features_moon_is_fedavg_bit_for_bit():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    assert torch.equal(*ends([MOON(head, 4, 0.5, 5, mu=10.0), FedAvg(head, 4, 0.5, 5)], task))


@pytest.mark.parametrize("representation", ["features", "logits"])
def test_without_its_term_moon_is_fedavg_bit_for_bit(representation):
    task, model = draw_task(1, agents=6, train=12), ModuleModel(perceptron())
    moon = MOON(model, 4, 0.5, 5, mu=0.0, representation=representation)
    assert torch.equal(*ends([moon, FedAvg(model, 4, 0.5, 5)], task))


@pytest.mark.parametrize(
    ("model", "representation"),
    [(SoftmaxHead(3, 3), "logits"), (ModuleModel(perceptron()), "features")],
)
def test_where_representations_depend_on_the_weights_moon_differs_from_the_second_time_on(
    model, representation
):
    task = draw_task(1, agents=3, train=12)
    methods = [
        MOON(model, 4, 0.5, 5, mu=5.0, representation=representation),
        FedAvg(model, 4, 0.5, 5),
    ]
    # At first the previous and the server's model are the same: the term is log 2 everywhere.
    torch.testing.assert_close(*ends(methods, task, count=1), rtol=1e-12, atol=1e-12)
    moon, fedavg = ends(methods, task, count=2)
    assert (moon - fedavg).abs().max() > 1e-3


def test_the_term_keeps_representations_nearer_to_the_servers():
    task, model = draw_task(1, agents=4, train=12), ModuleModel(perceptron())
    network = StarNetwork(4, None, seeded(0))
    near = []
    for mu in (0.0, 1.0):
        moon = MOON(model, 8, 0.3, None, mu=mu)
        state = run(MOON(model, 8, 0.3, None, mu=0.0), task, network, 2)
        network.reset(seeded(3))
        after = advance(moon, state, task, network)
        here, there = (
            model.representation(rows, task.train.x)
            for rows in (after.previous, state.agent_weights(network))
        )
        near.append(float(functional.cosine_similarity(here, there, dim=2).mean()))
    assert near[1] > near[0] + 1e-4


def test_the_representation_may_be_a_function():
    task, head = draw_task(1, agents=6, train=12), SoftmaxHead(3, 3)
    given_function = MOON(head, 4, 0.5, 5, mu=5.0, representation=head.logits)
    named = MOON(head, 4, 0.5, 5, mu=5.0, representation="logits")
    assert torch.equal(*ends([given_function, named], task))


def test_a_hidden_layer_that_is_all_zero_gives_finite_steps():
    dead = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    task = draw_task(2, agents=4, train=8, masked=True, dtype=torch.float32)
    model = ModuleModel(dead)
    state = run(MOON(model, 4, 0.5, None, mu=5.0), task, StarNetwork(4, 2, seeded(0)), 5)
    assert state.weights.isfinite().all()
    zero = torch.zeros(4, model.parameters)
    moon = MOON(model, 4, 0.5, None, mu=5.0)
    network = StarNetwork(4, 2, seeded(0))
    begun = begin(moon, task, network)
    blank = replace(begun, weights=zero[:1], previous=zero)
    assert advance(moon, blank, task, network).weights.isfinite().all()
