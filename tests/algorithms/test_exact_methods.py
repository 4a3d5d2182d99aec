"""EXTRA, Exact Diffusion and gradient tracking: exact where DGD is biased, and where they are not."""

import networkx as nx
import pytest
import torch
from known_optima import PenalisedHead, disagreement_of_optima, distances, heterogeneous_task
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, lopsided_graph

from fedsurf.algorithms import DGD, EXTRA, ExactDiffusion, GradientTracking
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork

HEAD = SoftmaxHead(3, 3)
MODEL = PenalisedHead(2, 3)
METHODS = [EXTRA(MODEL, 0.2), ExactDiffusion(MODEL, 0.2), GradientTracking(MODEL, 0.2)]
every = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def ring(agents=6):
    return Network(nx.cycle_graph(agents), "metropolis")


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (EXTRA(MODEL, 0.2), 250),
        (ExactDiffusion(MODEL, 0.2), 250),
        (GradientTracking(MODEL, 0.1), 450),
        (GradientTracking(MODEL, 0.1, momentum=0.5), 250),
    ],
)
def test_they_reach_the_centralised_optimum_linearly_where_dgd_is_biased(method, steps):
    task = heterogeneous_task()
    assert disagreement_of_optima(MODEL, task).min() > 0.1
    found = distances(method, task, ring(), steps)
    assert found[-1] < 1e-6
    assert distances(DGD(MODEL, method.step_size), task, ring(), steps)[-1] > 0.1
    settled = [distance for distance in found if 1e-9 < distance < 0.1]
    ratios = [later / earlier for earlier, later in zip(settled, settled[20:], strict=False)]
    assert len(ratios) > 50
    assert max(ratios) < 0.7  # 20 steps always gain a factor
    assert max(ratios) < 1.5 * min(ratios)  # always the same


@every
def test_in_a_star_they_are_exact_if_and_only_if_all_agents_report(method):
    task = heterogeneous_task()
    whole, partial = (StarNetwork(6, count, seeded(0), "metropolis") for count in (None, 2))
    assert distances(method, task, whole, 450)[-1] < 1e-6
    assert distances(method, task, partial, 250)[-1] > 1e-3


@pytest.mark.parametrize(
    ("method", "momentum"),
    [
        (EXTRA(HEAD, 0.3), 0.0),
        (ExactDiffusion(HEAD, 0.3), 0.0),
        (GradientTracking(HEAD, 0.3), 0.0),
        (GradientTracking(HEAD, 0.3, momentum=0.5), 0.5),
    ],
)
def test_a_single_agent_does_gradient_descent_with_momentum(method, momentum):
    task, network = draw_task(3, agents=1), Network(nx.empty_graph(1))
    state = begin(method, task, network)
    descended = state.weights.clone().requires_grad_()
    plain = torch.optim.SGD([descended], lr=0.3, momentum=momentum)
    for _ in range(5):
        state = advance(method, state, task, network)
        plain.zero_grad()
        HEAD.loss(descended, task.train).sum().backward()
        plain.step()
    torch.testing.assert_close(state.weights, descended.detach())


@pytest.mark.parametrize("agents", [6, 102])
@every
def test_adjacency_averages_on_a_regular_graph_only(method, agents):
    method = type(method)(HEAD)
    begin(method, draw_task(7, agents), Network(nx.cycle_graph(agents), "adjacency"))
    path = Network(nx.path_graph(agents), "adjacency")
    assert path.operator(torch.float64).is_sparse == (agents > 64)
    with pytest.raises(ValueError, match=r"^network: got .* 'adjacency', .* use 'metropolis'"):
        begin(method, draw_task(7, agents), path)


def test_exact_diffusion_allows_a_step_with_which_extra_does_not_settle():
    task = heterogeneous_task()
    assert distances(ExactDiffusion(MODEL, 0.7), task, ring(), 200)[-1] < 1e-6
    assert distances(EXTRA(MODEL, 0.7), task, ring(), 200)[-1] > 0.1


def test_first_steps_are_those_of_dgd_and_of_diffusion():
    task, network = draw_task(3, agents=6), Network(lopsided_graph(), "metropolis")
    dgd, extra, diffusion = (kind(HEAD, 0.3) for kind in (DGD, EXTRA, ExactDiffusion))
    weights = begin(dgd, task, network).weights

    def first(method):
        state = begin(method, task, network)
        return advance(method, state, task, network).weights

    torch.testing.assert_close(first(extra), first(dgd))
    stepped = weights - 0.3 * HEAD.gradient(weights, task.train)
    torch.testing.assert_close(first(diffusion), (stepped + network.mix(stepped)) / 2)


def test_momentum_accelerates_gradient_tracking():
    task = heterogeneous_task()
    plain, fast = (
        distances(GradientTracking(MODEL, 0.05, momentum), task, ring(), 150)[-1]
        for momentum in (0.0, 0.5)
    )
    assert fast < plain / 5


def test_the_average_tracker_is_the_average_gradient():
    task, network = draw_task(3, agents=6), Network(lopsided_graph(), "metropolis")
    method = GradientTracking(HEAD, 0.3)
    state = begin(method, task, network)
    for _ in range(4):
        before, state = state, advance(method, state, task, network)
        gradient = HEAD.gradient(before.weights, task.train)
        torch.testing.assert_close(state.tracker.mean(0), gradient.mean(0))
    assert not torch.allclose(state.tracker, gradient)
