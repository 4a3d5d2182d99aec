"""Runs of an algorithm by hand, a graph without symmetries, and the calls of a star."""

import networkx as nx
from random_data import seeded

from fedsurf.network import StarNetwork


def lopsided_graph():
    """Link six agents with unequal degrees and no symmetry."""
    return nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (2, 4)])


def run(method, task, network, steps, seed=0):
    """Return the state after `steps` steps."""
    state = method.init(task, network, seeded(seed))
    random = seeded(seed + 1)
    for _ in range(steps):
        state = method.step(state, task, network, random)
    return state


def calls(agents, reporting, seed, rounds):
    """Return the agents that a star with this seed calls in each round."""
    network = StarNetwork(agents, reporting, seeded(seed))
    return [network.call().tolist() for _ in range(rounds)]
