"""Arguments that are no numbers are named, wherever numbers are wanted."""

import networkx as nx
import numpy as np
import pytest
import torch
from drawn import seeded

from fedsurf.algorithms import (
    DGD,
    LDA,
    DFedAvgM,
    FedProx,
    LocalOnly,
    Ridge,
    Start,
)
from fedsurf.models import SoftmaxHead
from fedsurf.network import (
    GraphConfig,
    LeavingNetwork,
    LossyNetwork,
    Network,
    StaleNetwork,
    StarNetwork,
    make_graph,
)
from fedsurf.tasks.partition import DirichletAgents

HEAD = SoftmaxHead(3, 2)
RING = Network(nx.cycle_graph(5))


def regular(degree):
    return make_graph(GraphConfig(degree=degree), 6, seeded(0))


def random_graph(probability):
    return make_graph(GraphConfig("erdos-renyi", probability=probability), 6, seeded(0))


@pytest.mark.parametrize("value", ["a", None, [0.1], True])
@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("loss", lambda value: LossyNetwork(RING, value, seeded(0))),
        ("leave", lambda value: LeavingNetwork(RING, value, 0.5, seeded(0))),
        ("comeback", lambda value: LeavingNetwork(RING, 0.5, value, seeded(0))),
        ("probability", random_graph),
        ("step_size", lambda value: DGD(HEAD, value)),
        ("momentum", lambda value: DFedAvgM(HEAD, momentum=value)),
        ("mu", lambda value: FedProx(HEAD, mu=value)),
        ("strength", lambda value: Ridge(HEAD, strength=value)),
        ("strength", lambda value: LocalOnly(HEAD, strength=value)),
        ("shrinkage", lambda value: LDA(HEAD, shrinkage=value)),
        ("mean", lambda value: Start(mean=value)),
        ("deviation", lambda value: Start(deviation=value)),
        (
            "alpha",
            lambda value: DirichletAgents(value).labels(
                torch.tensor([5, 5]), torch.tensor([2, 2]), seeded(0)
            ),
        ),
    ],
)
def test_what_is_no_number_is_named(argument, make, value):
    with pytest.raises(TypeError, match=rf"^{argument}: got .* but it must be a number"):
        make(value)


@pytest.mark.parametrize("value", ["a", 1.5, 2.0, True])
@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("stale", lambda value: StaleNetwork(RING, value, seeded(0))),
        ("agents", lambda value: StarNetwork(value, None, seeded(0))),
        ("agents", lambda value: make_graph(GraphConfig(), value, seeded(0))),
        ("reporting", lambda value: StarNetwork(5, value, seeded(0))),
        ("degree", regular),
        ("iterations", lambda value: LocalOnly(HEAD, iterations=value)),
        ("bits", lambda value: DFedAvgM(HEAD, bits=value)),
    ],
)
def test_what_is_no_whole_number_is_named(argument, make, value):
    with pytest.raises(TypeError, match=rf"^{argument}: got .* but it must be a whole number"):
        make(value)


def test_numbers_of_numpy_and_torch_are_numbers():
    assert LossyNetwork(RING, np.float32(0.1), seeded(0)).active
    assert StaleNetwork(RING, np.int64(2), seeded(0)).stale == 2
    assert DGD(HEAD, torch.tensor(0.1)).step_size == pytest.approx(0.1)
