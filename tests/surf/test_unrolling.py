"""Unrolling: which norms are recorded, and where the mini-batches come from."""

import math

import naive
import networkx as nx
import pytest
import torch
from drawn import real_examples
from drawn import task as draw_task
from recording import Recording

from fedsurf.algorithms import DGD
from fedsurf.common.randomness import generator
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.surf import DescentConfig
from fedsurf.surf.unrolling import unroll


def naive_norm(rows, examples, shares):
    return math.sqrt(
        sum(
            (share * slope) ** 2
            for row, own, share in zip(rows, examples, shares, strict=True)
            for slope in naive.gradient(row, own, 3)
        )
    )


def settings(**changes):
    return {
        "gradient_batch_size": 2,
        "weighting": "uniform",
        "seed": 5,
        "path": ("train", 3),
        **changes,
    }


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("star", [False, True])
def test_norms_over_all_examples_are_those_of_every_state(weighting, star):
    task = draw_task(0, masked=True)
    network = StarNetwork(4, 2, generator(0)) if star else Network(nx.cycle_graph(4))
    method = Recording(DGD(SoftmaxHead(3, 3), 0.5))
    weights, norms = unroll(
        method, 3, task, network, DescentConfig(gradient_examples="all"),
        **settings(weighting=weighting),
    )  # fmt: skip
    counts = [len(own) for own in real_examples(task.train)]
    assert len(set(counts)) > 1
    shares = [count / sum(counts) if weighting == "examples" else 1 / 4 for count in counts]
    expected = [
        naive_norm(network.agent_rows(state.weights).tolist(), real_examples(task.train), shares)
        for state in method.states
    ]
    assert len(expected) == 4
    assert norms.tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(weights, network.agent_rows(method.states[-1].weights))


def test_norms_over_mini_batches_draw_a_fresh_one_for_every_state():
    task, network = draw_task(1, train=10), Network(nx.cycle_graph(4))
    method = Recording(DGD(SoftmaxHead(3, 3), 0.5))
    _, norms = unroll(method, 3, task, network, DescentConfig(), **settings())
    random = generator(5, "gradients", "train", 3)
    expected = [
        naive_norm(state.weights.tolist(), real_examples(task.train.draw(2, random)), [1 / 4] * 4)
        for state in method.states
    ]
    assert norms.tolist() == pytest.approx(expected, rel=1e-12)


def test_everything_follows_from_seed_and_path():
    task, network = draw_task(2, train=10), StarNetwork(4, 2, generator(0))
    method = DGD(SoftmaxHead(3, 3), 0.5, batch_size=2)

    def run(**changes):
        return unroll(method, 3, task, network, DescentConfig(), **settings(**changes))

    weights, norms = run()
    for again in (run(), run()):
        assert torch.equal(again[0], weights)
        assert torch.equal(again[1], norms)
    for changes in ({"seed": 6}, {"path": ("train", 4)}, {"path": ("validation", 3)}):
        assert not torch.equal(run(**changes)[0], weights)
    assert network.rounds == 3
