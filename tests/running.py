"""Runs of an algorithm by hand, and statements about one algorithm over a graph."""

from dataclasses import fields, replace

import networkx as nx
import torch
from random_data import seeded
from random_data import task as draw_task

from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Task


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


def permuted(state, order):
    """Return the state with the rows of all its tensors in another order."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    rows = {name: value[order] for name, value in values.items() if isinstance(value, torch.Tensor)}
    return replace(state, **rows)


def permuting_agents_permutes(method):
    """New agent k is old agent order[k], with its data, its links and its state."""
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    place = order.argsort().tolist()
    task = draw_task(1, agents=6, masked=True)
    moved = Task(task.train.of(order), task.test.of(order), task.classes)
    graph = nx.empty_graph(6)
    graph.add_edges_from((place[a], place[b]) for a, b in lopsided_graph().edges)
    networks = Network(lopsided_graph(), "metropolis"), Network(graph, "metropolis")
    state = method.init(task, networks[0], seeded(0))
    other = permuted(state, order)
    for _ in range(3):
        state = method.step(state, task, networks[0], seeded(0))
        other = method.step(other, moved, networks[1], seeded(0))
    assert not torch.allclose(state.weights, other.weights)
    torch.testing.assert_close(permuted(state, order).weights, other.weights)


def same_seed_same_bits(method):
    """Two runs from one seed are equal to the last bit, and the global generator is not touched."""
    task = draw_task(2, agents=6, train=20, dtype=torch.float32)
    before = torch.random.get_rng_state()
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))
        runs.append(run(method, task, Network(lopsided_graph(), "metropolis"), 3, seed).weights)
    torch.random.set_rng_state(before)
    assert runs[0].dtype == torch.float32
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
