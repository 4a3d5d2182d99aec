"""Runs of an algorithm by hand, a graph without symmetries, and the calls of a star."""

import networkx as nx
from random_data import seeded

from fedsurf.common.streams import Streams
from fedsurf.network import StarNetwork


def lopsided_graph():
    """Link six agents with unequal degrees and no symmetry."""
    return nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (2, 4)])


def streams(network, seed=0, step=None):
    """Return the streams of a run's start, or of a step."""
    path = ("start",) if step is None else ("step", step)
    return Streams(seed, network.ids).at(*path)


def begin(method, task, network, seed=0):
    """Return the state before the first step."""
    return method.init(task, network, streams(network, seed))


def advance(method, state, task, network, seed=0):
    """Return the state after one more step, with the streams of that step."""
    return method.step(state, task, network, streams(network, seed, state.steps))


def run(method, task, network, steps, seed=0):
    """Return the state after `steps` steps."""
    state = begin(method, task, network, seed)
    for _ in range(steps):
        state = advance(method, state, task, network, seed)
    return state


def calls(agents, reporting, seed, rounds):
    """Return the agents that a star with this seed calls in each round."""
    network = StarNetwork(agents, reporting, seeded(seed))
    return [network.call().agents.tolist() for _ in range(rounds)]
