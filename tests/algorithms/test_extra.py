"""EXTRA against its paper's loop, and its exactness where DGD is biased."""

import decentralised
import naive
import networkx as nx
import pytest
import torch
from convex import Ridge, disagreement_of_optima, distances, heterogeneous_task
from hypothesis import given
from hypothesis import strategies as st
from random_data import real_examples, seeded
from random_data import task as draw_task

from fedsurf.algorithms import DGD, State
from fedsurf.algorithms.extra import EXTRA
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph

HEAD = SoftmaxHead(3, 3)


def naive_run(graph, rows, examples, step_size, *, server=False):
    """Return W after a step for each of `examples`, by the two lines of the paper."""
    before, mixed_before, slopes_before = None, None, None
    for own in examples:
        mixed = naive.mix(graph, rows, "metropolis")
        slopes = decentralised.slopes(rows, own, 3, server=server)
        if before is None:
            moved = [
                decentralised.combination((1, row), (-step_size, slope))
                for row, slope in zip(mixed, slopes, strict=True)
            ]
        else:
            moved = [
                decentralised.combination(
                    (1, rows[i]),
                    (1, mixed[i]),
                    (-0.5, before[i]),
                    (-0.5, mixed_before[i]),
                    (-step_size, slopes[i]),
                    (step_size, slopes_before[i]),
                )
                for i in range(len(rows))
            ]
        before, mixed_before, slopes_before, rows = rows, mixed, slopes, moved
    return torch.tensor(rows, dtype=torch.float64)


@given(agents=st.integers(1, 5), seed=st.integers(0, 1000), masked=st.booleans())
def test_it_equals_a_loop_over_agents(agents, seed, masked):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
    task, network = draw_task(seed, agents, masked=masked), Network(graph, "metropolis")
    method = EXTRA(HEAD, step_size=0.3)
    state = method.init(task, network, seeded(seed))
    rows, examples = state.weights.tolist(), real_examples(task.train)
    for steps in range(1, 5):
        state = method.step(state, task, network, seeded(0))
        expected = naive_run(graph, rows, [examples] * steps, 0.3)
        torch.testing.assert_close(state.weights, expected, rtol=1e-11, atol=1e-11)
    assert state.steps == network.rounds == 4


def test_with_mini_batches_it_equals_a_loop_that_draws_the_same():
    graph, task = decentralised.lopsided_graph(), draw_task(1, agents=6, train=9)
    method, network = EXTRA(HEAD, 0.3, batch_size=2), Network(graph, "metropolis")
    state = method.init(task, network, seeded(0))
    rows, random, twin = state.weights.tolist(), seeded(1), seeded(1)
    batches = [real_examples(task.train.draw(2, twin)) for _ in range(4)]
    for _ in range(4):
        state = method.step(state, task, network, random)
    torch.testing.assert_close(state.weights, naive_run(graph, rows, batches, 0.3))


def test_over_a_star_it_equals_a_loop_whose_server_has_no_gradient():
    task, network = draw_task(2), StarNetwork(4, None, seeded(0), "metropolis")
    method = EXTRA(HEAD, 0.3)
    state = method.init(task, network, seeded(0))
    rows, examples = state.weights.tolist(), real_examples(task.train)
    for _ in range(4):
        state = method.step(state, task, network, seeded(0))
    expected = naive_run(nx.star_graph(4), rows, [examples] * 4, 0.3, server=True)
    torch.testing.assert_close(state.weights, expected)


def test_its_first_step_is_one_of_dgd():
    task = draw_task(3, agents=6)
    ends = [
        decentralised.run(
            method, task, Network(decentralised.lopsided_graph(), "metropolis"), 1
        ).weights
        for method in (EXTRA(HEAD, 0.3), DGD(HEAD, 0.3))
    ]
    torch.testing.assert_close(*ends)


def test_it_reaches_the_centralised_optimum_linearly_where_dgd_is_biased():
    task, model = heterogeneous_task(), Ridge(2, 3)
    assert disagreement_of_optima(model, task).min() > 0.1
    network = Network(nx.cycle_graph(6), "metropolis")
    found = distances(EXTRA(model, 0.2), task, network, 250)
    assert found[-1] < 1e-6
    assert distances(DGD(model, 0.2), task, network, 250)[-1] > 0.1
    settled = [distance for distance in found if 1e-9 < distance < 0.1]
    ratios = [later / earlier for earlier, later in zip(settled, settled[20:], strict=False)]
    assert len(ratios) > 50
    assert max(ratios) < 0.7  # 20 steps always gain a factor
    assert max(ratios) < 1.5 * min(ratios)  # always the same


def test_dgds_bias_shrinks_about_linearly_with_the_step():
    task, model = heterogeneous_task(), Ridge(2, 3)
    network = Network(nx.cycle_graph(6), "metropolis")
    biases = [
        distances(DGD(model, step_size), task, network, int(30 / step_size))[-1]
        for step_size in (0.02, 0.01)
    ]
    assert biases[0] / biases[1] == pytest.approx(2, rel=0.1)


def test_a_star_reaches_the_optimum_too_if_all_agents_report():
    task, model = heterogeneous_task(), Ridge(2, 3)
    network = StarNetwork(6, None, seeded(0), "metropolis")
    assert distances(EXTRA(model, 0.3), task, network, 250)[-1] < 1e-6


def test_a_single_agent_does_gradient_descent():
    task, network = draw_task(3, agents=1), Network(nx.empty_graph(1))
    ends = [
        decentralised.run(method, task, network, 5).weights
        for method in (EXTRA(HEAD, 0.3), DGD(HEAD, 0.3))
    ]
    torch.testing.assert_close(*ends)


def test_permuting_agents_permutes_the_result():
    decentralised.permuting_agents_permutes(EXTRA(HEAD, 0.3))


def test_the_same_seed_gives_the_same_bits():
    decentralised.same_seed_same_bits(EXTRA(HEAD, 0.3, batch_size=3))


def test_a_model_with_a_hidden_layer_learns():
    decentralised.one_hidden_layer_learns(lambda model, start: EXTRA(model, 0.2, start=start))


def test_one_step_takes_one_round_and_sends_the_weights_over_every_link():
    task, network = draw_task(6), Network(nx.cycle_graph(4))
    decentralised.run(EXTRA(HEAD), task, network, 3)
    assert (network.rounds, network.floats) == (3, 3 * 8 * 12)


@pytest.mark.parametrize("shift", ["adjacency", "laplacian"])
def test_an_operator_that_does_not_keep_the_average_is_refused(shift):
    with pytest.raises(ValueError, match=rf"^network: got .* '{shift}', .* EXTRA .* 'metropolis'"):
        EXTRA(HEAD).init(draw_task(7), Network(nx.path_graph(4), shift), seeded(0))


def test_a_star_whose_agents_report_in_part_is_accepted():
    network = StarNetwork(4, 2, seeded(0), "metropolis")
    state = decentralised.run(EXTRA(HEAD, 0.05), draw_task(8), network, 5)
    assert state.weights.isfinite().all()


def test_it_is_not_exact_in_a_star_whose_agents_report_in_part():
    task, model = heterogeneous_task(), Ridge(2, 3)
    network = StarNetwork(6, 2, seeded(0), "metropolis")
    assert distances(EXTRA(model, 0.3), task, network, 250)[-1] > 1e-3


def test_the_state_of_another_method_is_refused():
    state = State(torch.zeros(4, 12, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"^state: got a State, .* ExtraState"):
        EXTRA(HEAD).step(state, draw_task(9), Network(nx.cycle_graph(4)), seeded(0))


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("step_size", 0.0, "a finite number above 0"),
        ("step_size", float("inf"), "a finite number above 0"),
        ("batch_size", 0, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(argument, value, wanted):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value}, but it must be {wanted}"):
        EXTRA(HEAD, **{argument: value})


def test_a_task_of_another_number_of_agents_is_refused():
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 5 agents"):
        EXTRA(HEAD).init(draw_task(11), Network(nx.cycle_graph(5)), seeded(0))
