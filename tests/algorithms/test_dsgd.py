"""DSGD against a loop over agents, and what one example a step does."""

import decentralised
import naive
import networkx as nx
import pytest
import torch
from convex import Ridge, heterogeneous_task, optimum
from hypothesis import given
from hypothesis import strategies as st
from random_data import real_examples, seeded
from random_data import task as draw_task

from fedsurf.algorithms import DGD, Start
from fedsurf.algorithms.dsgd import DSGD
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph

HEAD = SoftmaxHead(3, 3)


@given(agents=st.integers(1, 5), seed=st.integers(0, 1000), masked=st.booleans())
def test_dsgd_equals_a_loop_in_which_every_agent_draws_one_example(agents, seed, masked):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
    task, network = draw_task(seed, agents, masked=masked), Network(graph, "metropolis")
    method = DSGD(HEAD, step_size=0.7)
    state = method.init(task, network, seeded(seed))
    rows, random, twin = state.weights.tolist(), seeded(1), seeded(1)
    for _ in range(3):
        state = method.step(state, task, network, random)
        chosen = real_examples(task.train.draw(1, twin))
        assert [len(own) for own in chosen] == [1] * agents
        slopes = decentralised.slopes(rows, chosen, 3)
        rows = [
            decentralised.combination((1, mixed), (-0.7, slope))
            for mixed, slope in zip(naive.mix(graph, rows, "metropolis"), slopes, strict=True)
        ]
    torch.testing.assert_close(
        state.weights, torch.tensor(rows, dtype=torch.float64), rtol=1e-11, atol=1e-11
    )
    assert state.steps == network.rounds == 3


def test_the_drawn_examples_are_real_ones_of_the_agent_itself():
    task = draw_task(1, agents=6, masked=True)
    own = real_examples(task.train)
    for seed in range(20):
        for agent, drawn in enumerate(real_examples(task.train.draw(1, seeded(seed)))):
            assert drawn[0] in own[agent]


def test_on_all_examples_it_is_dgd():
    task = draw_task(2, agents=6, masked=True)
    ends = [
        decentralised.run(method, task, Network(decentralised.lopsided_graph()), 4).weights
        for method in (DSGD(HEAD, 0.5, batch_size=None), DGD(HEAD, 0.5))
    ]
    assert torch.equal(*ends)


def test_its_noise_keeps_it_around_the_optimum_and_a_smaller_step_keeps_it_nearer():
    task, model = heterogeneous_task(), Ridge(2, 3)
    best = optimum(model, task)
    apart = []
    for step_size in (0.3, 0.03):
        network = Network(nx.complete_graph(6), "metropolis")
        method = DSGD(model, step_size, start=Start(0.0, 0.0))
        state, random, squares = method.init(task, network, seeded(0)), seeded(1), []
        for step in range(700):
            state = method.step(state, task, network, random)
            if step >= 300:
                squares.append(float((state.weights.mean(0) - best).square().sum()))
        apart.append(sum(squares) / len(squares))
    assert apart[0] > 4 * apart[1]
    assert 1e-5 < apart[1] < 0.01


def test_a_single_agent_does_stochastic_gradient_descent():
    task, network = draw_task(3, agents=1), Network(nx.empty_graph(1))
    method = DSGD(HEAD, step_size=0.3)
    state = method.init(task, network, seeded(4))
    weights, random, twin = state.weights, seeded(5), seeded(5)
    for _ in range(4):
        state = method.step(state, task, network, random)
        weights = weights - 0.3 * HEAD.gradient(weights, task.train.draw(1, twin))
    torch.testing.assert_close(state.weights, weights)
    assert network.floats == 0


def test_a_server_only_mixes():
    task, network = draw_task(4), StarNetwork(4, None, seeded(0), "metropolis")
    method = DSGD(HEAD)
    state = method.init(task, network, seeded(0))
    mixed = network.mix(state.weights)
    after = method.step(state, task, network, seeded(0)).weights
    torch.testing.assert_close(after[0], mixed[0])
    assert not torch.isclose(after[1:], mixed[1:]).all(1).any()


def test_permuting_agents_permutes_the_result():
    decentralised.permuting_agents_permutes(DSGD(HEAD, 0.5, batch_size=None))


def test_the_same_seed_gives_the_same_bits():
    decentralised.same_seed_same_bits(DSGD(HEAD))


def test_a_model_with_a_hidden_layer_learns():
    decentralised.one_hidden_layer_learns(lambda model, start: DSGD(model, 0.2, start=start))


def test_one_step_takes_one_round_and_sends_the_weights_over_every_link():
    task, network = draw_task(6), Network(nx.cycle_graph(4))
    decentralised.run(DSGD(HEAD), task, network, 2)
    assert (network.rounds, network.floats) == (2, 2 * 8 * 12)


def test_it_is_called_dsgd_and_draws_one_example_unless_told_otherwise():
    assert DSGD(HEAD).name == "DSGD"
    assert DSGD(HEAD).batch_size == 1
    assert DGD(HEAD).name == "DGD"
    assert DGD(HEAD).batch_size is None


@pytest.mark.parametrize("method", [DGD, DSGD])
@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("step_size", 0.0, "a finite number above 0"),
        ("step_size", -1.0, "a finite number above 0"),
        ("step_size", float("nan"), "a finite number above 0"),
        ("step_size", float("inf"), "a finite number above 0"),
        ("batch_size", 0, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(method, argument, value, wanted):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value}, but it must be {wanted}"):
        method(HEAD, **{argument: value})


def test_a_batch_larger_than_an_agents_examples_is_refused():
    method, network = DSGD(HEAD, batch_size=7), Network(nx.cycle_graph(4))
    state = method.init(draw_task(7), network, seeded(0))
    with pytest.raises(ValueError, match=r"^batch_size: got 7, but it must be between 1 and 6"):
        method.step(state, draw_task(7), network, seeded(0))
