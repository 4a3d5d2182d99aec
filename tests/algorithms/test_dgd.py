"""DGD and DSGD: their bias and their noise."""

import networkx as nx
import pytest
import torch
from known_optima import PenalisedHead, distances, heterogeneous_task, optimum
from random_data import real_examples, seeded
from random_data import task as draw_task
from running import advance, begin, lopsided_graph, run

from fedsurf.algorithms import DGD, DSGD, DFedAvgM, Start
from fedsurf.common.streams import Streams
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StaleNetwork, StarNetwork, TimeVaryingNetwork

HEAD = SoftmaxHead(3, 3)


def test_with_a_constant_step_dgd_ends_the_nearer_to_the_optimum_the_smaller_the_step():
    task, network = heterogeneous_task(), Network(nx.cycle_graph(6), "metropolis")
    found = [
        distances(DGD(PenalisedHead(2, 3), step), task, network, int(90 / step))
        for step in (0.1, 0.05, 0.025)
    ]
    for one in found:
        assert one[-1] == pytest.approx(one[-10], rel=1e-4)  # it has settled
    ends = [one[-1] for one in found]
    assert ends[0] / ends[1] == pytest.approx(2, rel=0.3)
    assert ends[1] / ends[2] == pytest.approx(2, rel=0.3)


def test_dsgd_stays_around_the_optimum_the_nearer_the_smaller_the_step():
    task, model = heterogeneous_task(), PenalisedHead(2, 3)
    best = optimum(model, task)
    apart = []
    for step_size in (0.3, 0.03):
        network = Network(nx.complete_graph(6), "metropolis")
        method = DSGD(model, step_size, start=Start(0.0, 0.0))
        state, squares = begin(method, task, network), []
        for step in range(700):
            state = advance(method, state, task, network)
            if step >= 300:
                squares.append(float((state.weights.mean(0) - best).square().sum()))
        apart.append(sum(squares) / len(squares))
    assert apart[0] > 4 * apart[1]
    assert 1e-5 < apart[1] < 0.01


def test_dsgd_draws_one_real_example_of_the_agent_itself():
    assert (DSGD(HEAD).batch_size, DGD(HEAD).batch_size) == (1, None)
    task = draw_task(1, agents=6, masked=True)
    own = real_examples(task.train)
    for seed in range(20):
        drawn_of_all = task.train.draw(1, Streams(seed, range(6)))
        for agent, drawn in enumerate(real_examples(drawn_of_all)):
            assert drawn[0] in own[agent]


def test_on_all_examples_dsgd_is_dgd():
    task = draw_task(2, agents=6, masked=True)
    ends = [
        run(method, task, Network(lopsided_graph()), 4).weights
        for method in (DSGD(HEAD, 0.5, batch_size=None), DGD(HEAD, 0.5))
    ]
    assert torch.equal(*ends)


def test_a_batch_larger_than_an_agents_examples_is_refused():
    method, network = DSGD(HEAD, batch_size=7), Network(nx.cycle_graph(4))
    state = begin(method, draw_task(7), network)
    with pytest.raises(ValueError, match=r"^batch_size: got 7, but it must be between 1 and 6"):
        advance(method, state, draw_task(7), network)


@pytest.mark.parametrize("method", [DGD(HEAD), DSGD(HEAD), DFedAvgM(HEAD)], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "network",
    [
        Network(nx.cycle_graph(4), "laplacian"),
        StarNetwork(4, None, seeded(0), "laplacian"),
        StaleNetwork(Network(nx.cycle_graph(4), "laplacian"), 1, seeded(0)),
        TimeVaryingNetwork([nx.cycle_graph(4), nx.path_graph(4)], "laplacian"),
    ],
    ids=lambda network: type(network).__name__,
)
def test_an_operator_that_does_not_average_is_refused(method, network):
    wanted = rf"^network: got .* 'laplacian', .* but {method.name} mixes averages"
    with pytest.raises(ValueError, match=wanted):
        begin(method, draw_task(1), network)
