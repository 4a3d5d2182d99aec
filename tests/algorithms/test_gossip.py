"""Averaging: plain and accelerated gossip against loops and known rates, and through a server."""

import math

import naive
import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded
from random_data import weights as draw_weights
from running import calls

from fedsurf.algorithms.gossip import begin_calls, begin_gossip, gossip_step, through_server
from fedsurf.network import FaultConfig, GraphConfig, Network, StarNetwork, make_graph, with_faults
from fedsurf.network.operators import NOTHING_LOST


def estimates(values, _weights):
    """Solve nothing: the weights are the estimates."""
    return values


def begin(values, network, *, accelerated):
    return begin_gossip(torch.full_like(values, 7.0), values, network, accelerated=accelerated)


def begin_with_server(values, network):
    return begin_calls(values.new_full((1, 2), 7.0), values, network)


def first_two(found, _weights):
    """Solve for the first two numbers."""
    return found[:, :2]


def averaged(values, network, rounds, *, accelerated):
    """Return the weights after each round."""
    state = begin(values, network, accelerated=accelerated)
    found = []
    for _ in range(rounds):
        state = gossip_step(state, network, estimates)
        found.append(state.weights)
    return found


def naive_chebyshev(graph, rows, rounds, eigenvalue):
    """x(k+1) = ω(k+1) (S x(k) − x(k−1)) + x(k−1), agent by agent, number by number."""
    before, now = rows, naive.mix(graph, rows, "metropolis")
    omega = 2.0
    for _ in range(rounds - 1):
        omega = 1 / (1 - eigenvalue**2 * omega / 4)
        mixed = naive.mix(graph, now, "metropolis")
        after = [
            [omega * (m - b) + b for m, b in zip(*pair, strict=True)]
            for pair in zip(mixed, before, strict=True)
        ]
        before, now = now, after
    return now


@given(
    agents=st.integers(1, 6),
    seed=st.integers(0, 1000),
    rounds=st.integers(1, 5),
    accelerated=st.booleans(),
)
def test_gossip_equals_a_loop_over_agents(agents, seed, rounds, accelerated):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))
    network, values = Network(graph, "metropolis"), draw_weights(seed, agents, 3)
    matrix = [
        [naive.shift_entry(graph, i, j, "metropolis") for j in range(agents)] for i in range(agents)
    ]
    ordered = np.sort(np.abs(np.linalg.eigvalsh(np.array(matrix))))
    eigenvalue = float(ordered[-2]) if accelerated and agents > 1 else 0.0
    expected = naive_chebyshev(graph, values.tolist(), rounds, eigenvalue)
    found = averaged(values, network, rounds, accelerated=accelerated)[-1]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert network.rounds == rounds
    assert network.floats == rounds * 2 * graph.number_of_edges() * 3


def test_every_round_keeps_the_average_and_accelerated_gossip_contracts_at_chebyshevs_rate():
    network, rounds = Network(nx.cycle_graph(20), "metropolis"), 60
    values = draw_weights(0, 20, 4)
    mean, start = values.mean(0), (values - values.mean(0)).norm()
    eigenvalue = network.facts.spectrum.second_eigenvalue
    plain, fast = (averaged(values, network, rounds, accelerated=a) for a in (False, True))
    for count, (slow, quick) in enumerate(zip(plain, fast, strict=True), 1):
        for found in (slow, quick):
            torch.testing.assert_close(found.mean(0), mean)
        polynomial = math.cosh(count * math.acosh(1 / eigenvalue))
        assert (quick - mean).norm() <= start / polynomial * (1 + 1e-9)
        assert (slow - mean).norm() <= start * eigenvalue**count * (1 + 1e-9)
    assert (fast[-1] - mean).norm() < 1e-4 * start
    assert (plain[-1] - mean).norm() > 1e-2 * start


def test_the_rates_are_attained_by_the_slowest_mode():
    network = Network(nx.cycle_graph(20), "metropolis")
    slowest = torch.cos(2 * math.pi * torch.arange(20, dtype=torch.float64) / 20)[:, None]
    eigenvalue = (1 + 2 * math.cos(2 * math.pi / 20)) / 3
    plain, fast = (averaged(slowest, network, 10, accelerated=a)[-1] for a in (False, True))
    torch.testing.assert_close(plain, slowest * eigenvalue**10)
    torch.testing.assert_close(fast, slowest / math.cosh(10 * math.acosh(1 / eigenvalue)))


def test_a_complete_graph_averages_in_one_round_and_a_single_agent_keeps_its_own():
    values = draw_weights(1, 5, 2)
    for found in averaged(values, Network(nx.complete_graph(5), "metropolis"), 3, accelerated=True):
        torch.testing.assert_close(found, values.mean(0).expand(5, 2))
    alone = averaged(values[:1], Network(nx.empty_graph(1), "metropolis"), 3, accelerated=True)
    assert all(torch.equal(found, values[:1]) for found in alone)


def test_only_an_operator_that_averages_is_accepted():
    path, ring = nx.path_graph(4), nx.cycle_graph(4)
    values = draw_weights(5, 4, 2)
    for graph, shift in ((path, "adjacency"), (path, "laplacian"), (ring, "laplacian")):
        with pytest.raises(ValueError, match=rf"^network: got .*'{shift}'.*use 'metropolis'"):
            begin(values, Network(graph, shift), accelerated=True)
    same = [
        averaged(values, Network(ring, shift), 5, accelerated=True)[-1]
        for shift in ("adjacency", "metropolis")
    ]
    torch.testing.assert_close(*same)


def test_a_server_counts_each_agent_once_and_every_float():
    values, network = draw_weights(6, 10, 5), StarNetwork(10, 3, seeded(7))
    state, heard, floats = begin_with_server(values, network), set(), 0
    for count, called in enumerate(calls(10, 3, 7, 30), 1):
        state = through_server(state, network, first_two)
        floats += 5 * len(set(called) - heard) + 2 * 3
        heard |= set(called)
        expected = sum(values[agent] for agent in heard) / len(heard)
        torch.testing.assert_close(state.weights, expected[None, :2])
        assert (network.rounds, network.floats, state.steps) == (count, floats, count)
        assert state.heard.nonzero().flatten().tolist() == sorted(heard)
    assert len(heard) == 10  # so that the last rounds upload nothing
    torch.testing.assert_close(state.weights[0], values.mean(0)[:2])


class Losing(StarNetwork):
    """A server that loses the uploads of certain agents in each round."""

    def __init__(self, agents, lost):
        self.lost = lost
        super().__init__(agents, None, seeded(0))

    def call(self, earlier=NOTHING_LOST):
        lost = torch.zeros(self.links.shape[1], dtype=torch.bool)
        lost.reshape(2, -1)[1, self.lost[self.rounds]] = True
        return super().call(earlier.with_links(lost, "renormalised"))


def test_only_sent_uploads_are_counted_if_some_are_lost():
    """An agent sends its statistic until it arrives, and not again."""
    network = Losing(3, [[1], [0], [1, 2], []])
    state = begin_with_server(draw_weights(6, 3, 5), network)
    for _ in range(4):
        state = through_server(state, network, first_two)
    assert state.heard.all()
    # The uploads of agents 0 and 2 arrive at once, agent 1's in the second round.
    assert network.link_floats.reshape(2, -1)[1].tolist() == [5, 2 * 5, 5]
    network = Losing(2, [[1], [1], [1], []])
    state = begin_with_server(draw_weights(6, 2, 5), network)
    for _ in range(4):
        state = through_server(state, network, first_two)
    assert network.link_floats.reshape(2, -1)[1].tolist() == [5, 4 * 5]


@pytest.mark.parametrize("fault", [{"loss": 0.2}, {"stale": 3}, {"leave": 0.1}])
def test_gossip_is_plain_if_messages_are_lost_or_late(fault):
    """Chebyshev's polynomials need the same S in every round; else they amplify errors."""
    values = draw_weights(8, 12, 3)

    def ring():
        return with_faults(
            Network(nx.cycle_graph(12), "metropolis"), FaultConfig(**fault), seeded(9)
        )

    plain, asked = (
        averaged(values, ring(), 60, accelerated=accelerated)[-1] for accelerated in (False, True)
    )
    assert torch.equal(plain, asked)
    assert (plain - plain.mean(0)).norm() < 0.05 * (values - values.mean(0)).norm()


def test_an_agent_solves_in_the_first_round_and_while_its_estimate_moves():
    solved = []

    def solve(found, _weights):
        solved.append(len(found))
        return found

    network = Network(nx.path_graph(4), "metropolis")
    values = torch.tensor([[1.0], [1.0], [1.0], [5.0]], dtype=torch.float64)
    state = begin(values, network, accelerated=False)
    for _ in range(300):
        state = gossip_step(state, network, solve)
    assert solved[:4] == [4, 2, 3, 4]  # the value of agent 3 travels one link a round
    assert len(solved) < 290
    torch.testing.assert_close(state.weights, torch.full((4, 1), 2.0, dtype=torch.float64))
