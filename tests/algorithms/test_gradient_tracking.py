"""Gradient tracking against its paper's loop, and its exactness where DGD is biased."""

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

from fedsurf.algorithms import DGD, Start, State
from fedsurf.algorithms.gradient_tracking import GradientTracking, TrackingState
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph

HEAD = SoftmaxHead(3, 3)


def naive_run(graph, rows, examples, step_size, momentum, steps, *, server=False):
    """Return W(steps) by DIGing as it is printed: W(l+1) from W(l), Y(l); then Y(l+1).

    `examples[l]` are what the agents take the gradient of in step l.
    """
    slopes = decentralised.slopes(rows, examples[0], 3, server=server)
    tracker, before = slopes, rows
    for step in range(steps):
        moved = []
        for i, mixed in enumerate(naive.mix(graph, rows, "metropolis")):
            pull = decentralised.combination((momentum, rows[i]), (-momentum, before[i]))
            moved.append(decentralised.combination((1, mixed), (-step_size, tracker[i]), (1, pull)))
        before, rows = rows, moved
        if step + 1 < steps:
            fresh = decentralised.slopes(rows, examples[step + 1], 3, server=server)
            tracker = [
                decentralised.combination((1, mixed), (1, fresh[i]), (-1, slopes[i]))
                for i, mixed in enumerate(naive.mix(graph, tracker, "metropolis"))
            ]
            slopes = fresh
    return torch.tensor(rows, dtype=torch.float64)


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    momentum=st.sampled_from([0.0, 0.6]),
    masked=st.booleans(),
)
def test_it_equals_a_loop_over_agents(agents, seed, momentum, masked):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
    task, network = draw_task(seed, agents, masked=masked), Network(graph, "metropolis")
    method = GradientTracking(HEAD, step_size=0.3, momentum=momentum)
    state = method.init(task, network, seeded(seed))
    rows, examples = state.weights.tolist(), real_examples(task.train)
    for _ in range(4):
        state = method.step(state, task, network, seeded(0))
    expected = naive_run(graph, rows, [examples] * 4, 0.3, momentum, 4)
    torch.testing.assert_close(state.weights, expected, rtol=1e-11, atol=1e-11)
    assert state.steps == network.rounds == 4


def test_with_mini_batches_it_equals_a_loop_that_draws_the_same():
    graph, task = decentralised.lopsided_graph(), draw_task(1, agents=6, train=9)
    method, network = GradientTracking(HEAD, 0.3, batch_size=2), Network(graph, "metropolis")
    state = method.init(task, network, seeded(0))
    rows, random, twin = state.weights.tolist(), seeded(1), seeded(1)
    batches = [real_examples(task.train.draw(2, twin)) for _ in range(4)]
    for _ in range(4):
        state = method.step(state, task, network, random)
    torch.testing.assert_close(state.weights, naive_run(graph, rows, batches, 0.3, 0.0, 4))


def test_over_a_star_it_equals_a_loop_whose_server_has_no_gradient():
    task, network = draw_task(2), StarNetwork(4, None, seeded(0), "metropolis")
    method = GradientTracking(HEAD, 0.3)
    state = method.init(task, network, seeded(0))
    rows, examples = state.weights.tolist(), real_examples(task.train)
    for _ in range(4):
        state = method.step(state, task, network, seeded(0))
    expected = naive_run(nx.star_graph(4), rows, [examples] * 4, 0.3, 0.0, 4, server=True)
    torch.testing.assert_close(state.weights, expected)


def test_the_average_tracker_is_the_average_gradient():
    task, network = draw_task(3, agents=6), Network(decentralised.lopsided_graph(), "metropolis")
    method = GradientTracking(HEAD, 0.3)
    state = method.init(task, network, seeded(0))
    for _ in range(4):
        before, state = state, method.step(state, task, network, seeded(0))
        gradient = HEAD.gradient(before.weights, task.train)
        torch.testing.assert_close(state.tracker.mean(0), gradient.mean(0))
    assert not torch.allclose(state.tracker, gradient)


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 450), (0.5, 250)])
def test_it_reaches_the_centralised_optimum_linearly_where_dgd_is_biased(momentum, steps):
    task, model = heterogeneous_task(), Ridge(2, 3)
    assert disagreement_of_optima(model, task).min() > 0.1
    network = Network(nx.cycle_graph(6), "metropolis")
    found = distances(GradientTracking(model, 0.1, momentum), task, network, steps)
    assert found[-1] < 1e-6
    assert distances(DGD(model, 0.1), task, network, steps)[-1] > 0.1
    settled = [distance for distance in found if 1e-9 < distance < 0.1]
    ratios = [later / earlier for earlier, later in zip(settled, settled[20:], strict=False)]
    assert len(ratios) > 50
    assert max(ratios) < 0.7  # 20 steps always gain a factor
    assert max(ratios) < 1.5 * min(ratios)  # always the same


def test_momentum_speeds_it_up():
    task, model = heterogeneous_task(), Ridge(2, 3)
    ends = [
        distances(
            GradientTracking(model, 0.05, momentum),
            task,
            Network(nx.cycle_graph(6), "metropolis"),
            150,
        )[-1]
        for momentum in (0.0, 0.5)
    ]
    assert ends[1] < ends[0] / 5


def test_a_star_reaches_the_optimum_too_if_all_agents_report():
    task, model = heterogeneous_task(), Ridge(2, 3)
    network = StarNetwork(6, None, seeded(0), "metropolis")
    assert distances(GradientTracking(model, 0.2), task, network, 450)[-1] < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_single_agent_does_gradient_descent_with_momentum(momentum):
    task, network = draw_task(3, agents=1), Network(nx.empty_graph(1))
    method = GradientTracking(HEAD, 0.3, momentum)
    state = method.init(task, network, seeded(4))
    descended = state.weights.clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3, momentum=momentum)
    for _ in range(5):
        state = method.step(state, task, network, seeded(0))
        plain.zero_grad()
        HEAD.loss(descended, task.train).sum().backward()
        plain.step()
    torch.testing.assert_close(state.weights, descended.detach())


def test_permuting_agents_permutes_the_result():
    decentralised.permuting_agents_permutes(GradientTracking(HEAD, 0.3, momentum=0.3))


def test_the_same_seed_gives_the_same_bits():
    decentralised.same_seed_same_bits(GradientTracking(HEAD, 0.3, batch_size=3))


def test_a_model_with_a_hidden_layer_learns():
    decentralised.one_hidden_layer_learns(
        lambda model, start: GradientTracking(model, 0.2, start=start)
    )


def test_one_step_takes_one_round_and_sends_weights_and_tracker_over_every_link():
    task, network = draw_task(6), Network(nx.cycle_graph(4))
    decentralised.run(GradientTracking(HEAD), task, network, 3)
    assert (network.rounds, network.floats) == (3, 3 * 8 * 24)


@pytest.mark.parametrize("shift", ["adjacency", "laplacian"])
@pytest.mark.parametrize("agents", [6, 102])
def test_an_operator_that_does_not_keep_the_average_is_refused(shift, agents):
    network = Network(nx.path_graph(agents), shift)
    assert network.operator(torch.float64).is_sparse == (agents > 64)
    with pytest.raises(ValueError, match=rf"^network: got .* '{shift}', .* use 'metropolis'"):
        GradientTracking(HEAD).init(draw_task(7, agents), network, seeded(0))


@pytest.mark.parametrize("agents", [6, 102])
def test_adjacency_on_a_regular_graph_is_accepted(agents):
    network = Network(nx.cycle_graph(agents), "adjacency")
    GradientTracking(HEAD).init(draw_task(7, agents), network, seeded(0))


def test_a_star_whose_agents_report_in_part_is_accepted():
    network = StarNetwork(4, 2, seeded(0), "metropolis")
    state = decentralised.run(GradientTracking(HEAD, 0.05), draw_task(8), network, 5)
    assert state.weights.isfinite().all()


def test_the_state_of_another_method_is_refused():
    state = State(torch.zeros(4, 12, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"^state: got a State, .* TrackingState"):
        GradientTracking(HEAD).step(state, draw_task(9), Network(nx.cycle_graph(4)), seeded(0))
    assert issubclass(TrackingState, State)


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("step_size", 0.0, "a finite number above 0"),
        ("step_size", float("nan"), "a finite number above 0"),
        ("momentum", 1.0, "at least 0 and below 1"),
        ("momentum", -0.1, "at least 0 and below 1"),
        ("batch_size", 0, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(argument, value, wanted):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value}, but it must be {wanted}"):
        GradientTracking(HEAD, **{argument: value})


def test_a_task_of_another_number_of_agents_is_refused():
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 5 agents"):
        GradientTracking(HEAD, start=Start()).init(
            draw_task(11), Network(nx.cycle_graph(5)), seeded(0)
        )
