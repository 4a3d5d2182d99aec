"""DGD against a loop over agents, and what is known of its convergence."""

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import real_examples, seeded
from random_data import task as draw_task

from fedsurf.algorithms import DGD, DSGD, DFedAvgM, Start
from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import (
    GraphConfig,
    Network,
    StaleNetwork,
    StarNetwork,
    TimeVaryingNetwork,
    make_graph,
)
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


def naive_step(graph, shift, rows, examples, step_size, classes, *, server=False):
    """w_i ← Σ_j S_ij w_j − β ∇f_i(w_i); a server only mixes."""
    mixed = naive.mix(graph, rows, shift)
    stepped = []
    for node, row in enumerate(mixed):
        agent = node - int(server)
        if agent < 0:
            stepped.append(row)
            continue
        slope = naive.gradient(rows[node], examples[agent], classes)
        stepped.append([value - step_size * s for value, s in zip(row, slope, strict=True)])
    return stepped


@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    shift=st.sampled_from(["adjacency", "metropolis"]),
    masked=st.booleans(),
)
def test_dgd_equals_a_loop_over_agents(agents, seed, shift, masked):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
    task, network = draw_task(seed, agents, masked=masked), Network(graph, shift)
    dgd = DGD(SoftmaxHead(3, 3), step_size=0.7)
    state = dgd.init(task, network, seeded(seed))
    rows, examples = state.weights.tolist(), real_examples(task.train)
    for _ in range(3):
        state = dgd.step(state, task, network, seeded(0))
        rows = naive_step(graph, shift, rows, examples, 0.7, 3)
    torch.testing.assert_close(
        state.weights, torch.tensor(rows, dtype=torch.float64), rtol=1e-11, atol=1e-11
    )
    assert state.steps == network.rounds == 3


def test_dgd_over_a_star_equals_a_loop_whose_server_only_mixes():
    task, network = draw_task(1, agents=4), StarNetwork(4, None, seeded(0))
    dgd = DGD(SoftmaxHead(3, 3), step_size=0.5)
    state = dgd.init(task, network, seeded(2))
    assert state.weights.shape == (5, 12)
    rows = state.weights.tolist()
    for _ in range(3):
        state = dgd.step(state, task, network, seeded(0))
        rows = naive_step(
            nx.star_graph(4), "adjacency", rows, real_examples(task.train), 0.5, 3, server=True
        )
    torch.testing.assert_close(state.weights, torch.tensor(rows, dtype=torch.float64))


def test_a_single_agent_does_plain_gradient_descent():
    task, network = draw_task(3, agents=1), Network(nx.empty_graph(1))
    head = SoftmaxHead(3, 3)
    dgd = DGD(head, step_size=0.3)
    state = dgd.init(task, network, seeded(4))
    descended = state.weights.clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3)
    for _ in range(5):
        state = dgd.step(state, task, network, seeded(0))
        plain.zero_grad()
        head.loss(descended, task.train).sum().backward()
        plain.step()
    torch.testing.assert_close(state.weights, descended.detach())


def test_a_mini_batch_is_drawn_anew_in_each_step_from_the_generator():
    task, network = draw_task(5, train=20), Network(nx.cycle_graph(4))
    head = SoftmaxHead(3, 3)
    dgd = DGD(head, step_size=1.0, batch_size=2)
    state = dgd.init(task, network, seeded(6))
    random, twin = seeded(7), seeded(7)
    batches = []
    for _ in range(2):
        batches.append(task.train.draw(2, twin))
        expected = network.mix(state.weights) - head.gradient(state.weights, batches[-1])
        state = dgd.step(state, task, network, random)
        torch.testing.assert_close(state.weights, expected)
    assert not torch.equal(batches[0].x, batches[1].x)


def heterogeneous_task():
    """Agents whose own optima differ, with labels too noisy to be separated."""
    random = seeded(8)
    x = torch.randn(4, 60, 2, generator=random, dtype=torch.float64)
    x = x + torch.arange(4)[:, None, None] / 2
    y = ((x[:, :, 0] + 2 * torch.randn(4, 60, generator=random)) > 0.5).long()
    return Task(Examples(x, y), Examples(x, y), 2)


def centralised_optimum(task, head):
    """Minimise the average loss of weights that all agents share, from 0."""
    shared = torch.zeros(1, head.parameters, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([shared], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure():
        solver.zero_grad()
        loss = head.loss(shared.expand(task.agents, -1), task.train).mean()
        loss.backward()
        return loss

    solver.step(closure)
    assert shared.grad.norm() < 1e-6
    return shared.detach()


def test_with_a_constant_step_dgd_ends_near_the_optimum_and_the_nearer_the_smaller_the_step():
    task, head = heterogeneous_task(), SoftmaxHead(2, 2)
    optimum = centralised_optimum(task, head)
    distances = []
    for step_size in (0.4, 0.2, 0.1):
        network = Network(nx.cycle_graph(4), "metropolis")
        dgd = DGD(head, step_size, start=Start(0.0, 0.0))
        state = dgd.init(task, network, seeded(0))
        for _ in range(int(200 / step_size)):
            before, state = state, dgd.step(state, task, network, seeded(0))
        assert (state.weights - before.weights).abs().max() < 1e-6  # it has settled
        distances.append(float((state.weights - optimum).norm(dim=1).max()))
    assert distances[0] > 1.5 * distances[1] > 2.25 * distances[2]
    assert distances[2] < 0.05
    alone = head.loss(optimum.expand(4, -1), task.train)
    assert alone.max() - alone.min() > 0.01  # the agents do disagree


def test_one_step_takes_one_round_and_sends_the_weights_over_every_link():
    task, network = draw_task(9), Network(nx.cycle_graph(4))
    dgd = DGD(SoftmaxHead(3, 3))
    state = dgd.init(task, network, seeded(0))
    assert network.floats == 0
    dgd.step(state, task, network, seeded(0))
    assert (network.rounds, network.floats) == (1, 8 * 12)


def test_the_start_is_normal_with_the_given_mean_and_deviation_and_the_tasks_type():
    network, head = Network(nx.cycle_graph(50)), SoftmaxHead(99, 10)
    drawn = Start(2.0, 0.5).draw(network, head, seeded(0))
    assert drawn.shape == (50, 1000)
    assert drawn.dtype == torch.float32
    assert abs(float(drawn.mean()) - 2) < 0.01
    assert abs(float(drawn.std()) - 0.5) < 0.01
    assert drawn.std(0).min() > 0.2  # every agent starts elsewhere
    task = draw_task(10)
    assert DGD(SoftmaxHead(3, 3)).init(
        task, Network(nx.cycle_graph(4)), seeded(0)
    ).weights.dtype == (torch.float64)


def test_a_task_of_another_number_of_agents_is_refused():
    dgd = DGD(SoftmaxHead(3, 3))
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 5 agents"):
        dgd.init(draw_task(11), Network(nx.cycle_graph(5)), seeded(0))
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 3 agents"):
        dgd.init(draw_task(11), StarNetwork(3, None, seeded(0)), seeded(0))


@pytest.mark.parametrize("method", [DGD, DSGD, DFedAvgM])
def test_an_operator_that_does_not_average_is_refused(method):
    own, task = method(SoftmaxHead(3, 3)), draw_task(1)
    for network in (
        Network(nx.cycle_graph(4), "laplacian"),
        StarNetwork(4, None, seeded(0), "laplacian"),
        StaleNetwork(Network(nx.cycle_graph(4), "laplacian"), 1, seeded(0)),
        TimeVaryingNetwork([nx.cycle_graph(4), nx.path_graph(4)], "laplacian"),
    ):
        with pytest.raises(
            ValueError, match=rf"^network: got .* 'laplacian', .* but {own.name} mixes averages"
        ):
            run(own, task, network, 1)
