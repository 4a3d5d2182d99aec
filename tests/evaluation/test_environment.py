"""Environments: pools of tasks, seeds, networks."""

from dataclasses import replace

import pytest
import torch
from experiments import CONFIG, features
from studies import SMALL

from fedsurf.common.randomness import generator
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.presets import STUDIES
from fedsurf.evaluation.study import Environment, Study
from fedsurf.network import FaultConfig


@pytest.mark.parametrize("config", [CONFIG, replace(SMALL, task=CONFIG.task)])
def test_test_and_tuning_tasks_come_from_separate_pools_of_the_data(config):
    data = features()
    environment = Environment(config, data)
    test, tuning = environment.test_tasks(3, 3), environment.tuning_tasks(2)

    def rows(tensor):
        return {tuple(row) for row in tensor.flatten(0, -2).tolist()}

    train_pool, test_pool = rows(data.train_x), rows(data.test_x)
    assert all(rows(task.train.x) | rows(task.test.x) <= test_pool for task in test)
    assert all(rows(task.train.x) | rows(task.test.x) <= train_pool for task in tuning)


def test_tasks_are_a_function_of_the_seed_and_their_number():
    data = features()
    one, two = Environment(CONFIG, data), Environment(CONFIG, data)
    tasks = one.test_tasks(0, 3)
    for number, task in enumerate([*two.test_tasks(0, 1), *two.test_tasks(0, 3)[1:]]):
        assert torch.equal(tasks[number].train.x, task.train.x)
    assert not torch.equal(tasks[0].train.x, tasks[1].train.x)
    assert not torch.equal(tasks[0].train.x, one.test_tasks(1, 1)[0].train.x)
    for draw in (lambda: one.test_tasks(0, 0), lambda: one.tuning_tasks(0)):
        with pytest.raises(ValueError, match=r"^tasks: got 0"):
            draw()


def test_an_experiment_has_the_parts_that_its_configuration_names():
    experiment = Experiment(CONFIG, features())
    assert (experiment.network.agents, experiment.network.reporting) == (4, 2)
    assert (experiment.model.features, experiment.model.classes) == (16, 3)
    assert experiment.optimizer.steps == 2
    task = experiment.tasks.train.draw(generator(0))
    assert (task.agents, task.classes) == (4, 3)
    default = ExperimentConfig()
    assert (default.task.agents, default.optimizer.layers, default.surf.tasks) == (100, 10, 600)


def test_the_default_shift_operator_follows_the_graph():
    graph = SMALL.network
    star = replace(graph, graph=replace(graph.graph, kind="star"), reporting=10)
    preset = replace(STUDIES["digits-star"].config, tasks=2, rounds=6)
    assert Study(replace(SMALL, network=star)).config == Study(preset).config
    assert Study(SMALL).config.network.shift == "metropolis"
    assert Study(preset).config.network.shift == "adjacency"
    chosen = Study(replace(SMALL, network=replace(star, shift="metropolis")))
    assert chosen.config.network.shift == "metropolis"


def test_faults_are_the_same_for_every_shift_operator_of_a_seed():
    network = replace(SMALL.network, faults=FaultConfig(stale=3, loss=0.3, leave=0.1))
    environment = Environment(replace(SMALL, network=network))
    patterns = []
    for shift in ("metropolis", "adjacency"):
        made = environment.network(0, replace(network, shift=shift))
        made.reset(generator(0, "network", 1))
        patterns.append(torch.stack([made.mix(torch.eye(30)) != 0 for _ in range(4)]))
    assert torch.equal(*patterns)
    assert not patterns[0].all(0).equal(patterns[0].any(0))
