"""Arguments of the wrong type are named, in every room."""

import networkx as nx
import numpy as np
import pytest
import torch
from experiments import CONFIG, features
from random_data import seeded

from fedsurf.algorithms import DGD, LDA, DFedAvgM, FedProx, LocalOnly, Ridge, Start
from fedsurf.common.randomness import generator
from fedsurf.common.streams import Streams
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.evaluate import evaluate
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.run import run, run_all
from fedsurf.evaluation.study import Study
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import (
    GraphConfig,
    LeavingNetwork,
    LossyNetwork,
    Network,
    NetworkConfig,
    StaleNetwork,
    StarNetwork,
    make_graph,
    make_network,
)
from fedsurf.pretrained import load
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.tasks.distribution import DirichletAgents, meta_tasks
from fedsurf.tasks.features import load_features
from fedsurf.tasks.task import Examples, Task

HEAD = SoftmaxHead(3, 2)
DIGITS = features()
EXAMPLES = Examples(torch.zeros(2, 2, 3), torch.zeros(2, 2, dtype=torch.int64))
RING = Network(nx.cycle_graph(5))
TASK = Task(EXAMPLES, EXAMPLES, 2)


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
def test_values_that_are_not_numbers_are_named(argument, make, value):
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
        ("iterations", lambda value: LocalOnly(HEAD, iterations=value)),
        ("bits", lambda value: DFedAvgM(HEAD, bits=value)),
        ("features", lambda value: SoftmaxHead(value, 2)),
        ("classes", lambda value: Task(EXAMPLES, EXAMPLES, value)),
        ("batch_size", lambda value: EXAMPLES.draw(value, Streams(0, range(EXAMPLES.agents)))),
        ("agents", lambda value: meta_tasks(DIGITS, TaskConfig(agents=value))),
        ("components", lambda value: load_features(FeatureConfig("digits", components=value))),
        ("tasks", lambda value: Study(StudyConfig(tasks=value))),
        ("tasks", lambda value: Experiment(CONFIG, DIGITS).test_tasks(value)),
        ("rounds", lambda value: evaluate(Experiment(CONFIG, DIGITS), rounds=[value])),
    ],
)
def test_values_that_are_not_whole_numbers_are_named(argument, make, value):
    with pytest.raises(TypeError, match=rf"^{argument}: got .* but it must be a whole number"):
        make(value)


@pytest.mark.parametrize("value", ["a", 1.5, None])
def test_seeds_that_are_not_whole_numbers_are_named(value):
    with pytest.raises(TypeError, match=r"^seed: got .* but it must be a whole number"):
        generator(value, "task")


@pytest.mark.parametrize("value", ["digits", 3, None, np.zeros((2, 2))])
@pytest.mark.parametrize(
    ("argument", "make", "wanted"),
    [
        ("config", Experiment, "an ExperimentConfig"),
        ("config", Study, "a StudyConfig"),
        ("config", load_features, "a FeatureConfig"),
        ("config", lambda value: meta_tasks(DIGITS, value), "a TaskConfig"),
        ("config", lambda value: make_network(value, 4, seeded(0)), "a NetworkConfig"),
        ("generator", lambda value: make_network(NetworkConfig(), 4, value), "a torch.Generator"),
        ("graph", Network, "a networkx graph"),
        ("module", ModuleModel, "an nn.Module"),
        ("train", lambda value: Task(value, EXAMPLES, 2), "Examples"),
        ("train.x", lambda value: Task(Examples(value, EXAMPLES.y), EXAMPLES, 2), "a torch tensor"),
        ("experiment", evaluate, "an Experiment"),
        ("generator", lambda value: StarNetwork(4, 2, value), "a torch.Generator"),
        ("generator", lambda value: LossyNetwork(RING, 0.1, value), "a torch.Generator"),
        ("inner", lambda value: StaleNetwork(value, 1, seeded(0)), "a Network"),
        ("inner", lambda value: LossyNetwork(value, 0.1, seeded(0)), "a Network"),
        ("task", lambda value: run(DGD(HEAD), value, RING, 1), "a Task"),
        ("network", lambda value: run(DGD(HEAD), TASK, value, 1), "a Network"),
    ],
)
def test_values_of_another_kind_are_named(argument, make, wanted, value):
    shown = "ndarray" if isinstance(value, np.ndarray) else repr(value)
    with pytest.raises(TypeError, match=f"^{argument}: got {shown}, but it must be {wanted}"):
        make(value)


def test_arguments_that_python_itself_would_refuse_are_named():
    with pytest.raises(TypeError, match=r"^name: got 3, but it must be one of softmax-head, or"):
        load(3)
    with pytest.raises(TypeError, match=r"^rounds: got 20, but it must be a list of whole"):
        evaluate(Experiment(CONFIG, DIGITS), rounds=20)
    with pytest.raises(ValueError, match=r"^xs: got no agents"):
        Examples.pad([], [])
    with pytest.raises(ValueError, match=r"^xs: got examples of shape \[4\], but .* shape \[3\]"):
        Examples.pad([torch.zeros(2, 3), torch.zeros(2, 4)], [EXAMPLES.y[0]] * 2)
    with pytest.raises(ValueError, match=r"^record: got none of the steps 0 to 2"):
        run(DGD(HEAD), TASK, Network(nx.path_graph(2)), 2, record=[])
    with pytest.raises(TypeError, match=r"^tasks: got Task, but it must be a list of tasks"):
        run_all(DGD(HEAD), TASK, RING, 1)
    with pytest.raises(
        TypeError, match=r"^algorithm: got a Transferable without .*on\(model, rounds"
    ):
        run(load(), TASK, RING, 1)
    with pytest.raises(TypeError, match=r"^algorithm: got a SoftmaxHead without .* init and step$"):
        run(HEAD, TASK, RING, 1)
    with pytest.raises(TypeError, match=r"^seeds: got 3, but it must be a tuple of whole numbers"):
        Study(StudyConfig(seeds=3))
    with pytest.raises(TypeError, match=r"^names: got 'dgd', but it must be a list of names"):
        Study(StudyConfig()).methods("dgd")


def test_numbers_of_numpy_and_torch_are_numbers():
    assert not LossyNetwork(RING, np.float32(0.1), seeded(0)).facts.reliable
    assert StaleNetwork(RING, np.int64(2), seeded(0)).stale == 2
    assert DGD(HEAD, torch.tensor(0.1)).step_size == pytest.approx(0.1)
