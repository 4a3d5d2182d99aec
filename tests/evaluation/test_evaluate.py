"""Evaluation of an unrolled optimizer, against runs by hand."""

from dataclasses import replace

import pytest
import torch
from experiments import CONFIG, features

from fedsurf.algorithms import DGD, Start
from fedsurf.algorithms.centralised import Centralised
from fedsurf.evaluation.evaluate import STEP_SIZES, evaluate, measure_descent
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.run import FIELDS, run_all
from fedsurf.network import NetworkConfig
from fedsurf.surf import slack

OTHERS = replace(
    CONFIG,
    network=NetworkConfig(),
    optimizer=replace(CONFIG.optimizer, initial_mean=0.5, initial_deviation=0.2),
    surf=replace(CONFIG.surf, weighting="examples"),
)


@pytest.mark.parametrize("config", [CONFIG, OTHERS], ids=["star", "graph"])
def test_an_evaluation_equals_runs_by_hand(config):
    data = features()
    found = evaluate(Experiment(config, data), tasks=2, rounds=(3, 5), tuning_tasks=2)
    experiment = Experiment(config, data)
    options = {"seed": config.seed, "weighting": config.surf.weighting}
    network, start = experiment.network, Start(*_start(config))
    test, tuning = experiment.test_tasks(2), experiment.environment.tuning_tasks(2)

    def dgd(size):
        return DGD(experiment.model, size, batch_size=config.optimizer.batch_size, start=start)

    expected = [run_all(experiment.optimizer, test, network, 2, **options)]
    for rounds, size in zip((3, 5), found.step_sizes, strict=True):
        accuracy = [
            run_all(dgd(step), tuning, network, rounds, **options).pooled_accuracy[:, -1].mean()
            for step in STEP_SIZES
        ]
        assert size == STEP_SIZES[int(torch.stack(accuracy).argmax())]
        expected.append(run_all(dgd(size), test, network, rounds, **options))
    for runs, by_hand in zip([found.unrolled, *found.classical], expected, strict=True):
        for name in FIELDS:
            assert torch.equal(getattr(runs, name), getattr(by_hand, name)), name
    centralised = Centralised.tuned(tuning)
    assert found.centralised_strength == centralised.strength
    assert found.centralised.tolist() == pytest.approx([centralised.accuracy(t) for t in test])
    assert found.links == network.links.shape[1]


def _start(config):
    return config.optimizer.initial_mean, config.optimizer.initial_deviation


def test_the_slack_is_that_of_the_measured_norms():
    experiment = Experiment(CONFIG, features())
    found = measure_descent(experiment, experiment.test_tasks(3))
    assert found.norms.shape == (3, 3)
    epsilon = CONFIG.surf.descent.epsilon
    by_hand = found.norms[:, 1:] - (1 - epsilon) * found.norms[:, :-1]
    torch.testing.assert_close(found.slack, by_hand)
    torch.testing.assert_close(
        found.slack, slack(found.norms.T, epsilon, CONFIG.surf.descent.form).T
    )
    assert torch.equal(found.holds, found.mean <= 2 * found.error)


def test_dgd_averages_even_if_the_optimizers_network_does_not():
    config = replace(CONFIG, network=replace(CONFIG.network, shift="laplacian"))
    found = evaluate(Experiment(config, features()), tasks=2, rounds=(20,))
    assert found.classical[0].diverged == [None, None]
    assert found.classical[0].disagreement[:, -1].max() < 100


def test_without_rounds_there_is_no_dgd():
    found = evaluate(Experiment(CONFIG, features()), tasks=1, rounds=(), tuning_tasks=1)
    assert (found.classical, found.to_dict()["classical"]) == ([], [])
