"""Runs and their trajectories, against loops."""

import math
from dataclasses import fields, replace
from itertools import pairwise

import naive
import networkx as nx
import numpy as np
import pytest
import torch
from random_data import real_examples, seeded
from random_data import task as draw_task
from recording import Recording
from torch import nn

from fedsurf.algorithms import DGD, DFedAvgM, GradientTracking, LocalOnly, Start
from fedsurf.common.streams import Streams
from fedsurf.evaluation.run import Trajectories, Trajectory, run, run_all
from fedsurf.evaluation.scores import score
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.unrolled import UDGD, UDGDConfig

HEAD = SoftmaxHead(3, 3)


def udgd(layers=3):
    config = UDGDConfig(layers=layers, filter_order=2, batch_size=2, initial_deviation=0.7)
    return UDGD(HEAD, config, seeded(0)).double()


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_every_number_of_a_trajectory_equals_a_loop(star, weighting):
    task = draw_task(1, masked=True)
    network = StarNetwork(4, 2, seeded(0)) if star else Network(nx.cycle_graph(4))
    method = Recording(DGD(HEAD, 0.5, batch_size=1))
    trajectory = run(method, task, network, 3, weighting=weighting)
    train, test = real_examples(task.train), real_examples(task.test)
    everything = [pair for own in test for pair in own]
    sizes = [len(own) if weighting == "examples" else 1 for own in train]
    shares = [size / sum(sizes) for size in sizes]
    assert len(method.states) == 4
    for step, state in enumerate(method.states):
        rows = state.weights.tolist()[int(star) :]
        average = [sum(column) / 4 for column in zip(*rows, strict=True)]
        each = list(zip(shares, rows, train, test, strict=True))
        expected = {
            "loss": sum(share * naive.loss(row, own, 3) for share, row, _, own in each),
            "accuracy": sum(share * naive.accuracy(row, own, 3) for share, row, _, own in each),
            "pooled_accuracy": sum(
                share * naive.accuracy(row, everything, 3) for share, row, _, _ in each
            ),
            "gradient_norm": math.sqrt(
                sum(
                    (share * slope) ** 2
                    for share, row, own, _ in each
                    for slope in naive.gradient(row, own, 3)
                )
            ),
            "disagreement": math.sqrt(sum(math.dist(row, average) ** 2 for row in rows) / 4),
        }
        for name, value in expected.items():
            assert float(getattr(trajectory, name)[step]) == pytest.approx(value, rel=1e-12), name


def test_rounds_and_floats_are_counted_from_0_for_every_run():
    task, network = draw_task(2), Network(nx.cycle_graph(4))
    for _ in range(2):
        classical = run(DGD(HEAD), task, network, 3)
        assert classical.rounds.tolist() == [0, 1, 2, 3]
        assert classical.floats.tolist() == [0, 96, 192, 288]  # 8 links, 12 weights
        assert classical.bytes.tolist() == [0, 768, 1536, 2304]  # and a header of 48 bytes
        unrolled = run(udgd(), task, network, 3)
        assert unrolled.rounds.tolist() == [0, 2, 4, 6]
        assert unrolled.floats.tolist() == [0, 192, 384, 576]
    star = StarNetwork(4, 1, seeded(0))
    assert run(DGD(HEAD), task, star, 2).floats.tolist() == [0, 60, 120]  # 4 down, 1 up
    assert classical.floats.dtype == torch.int64


def test_trajectories_of_float32_runs_are_float64():
    network = Network(nx.cycle_graph(4))
    for dtype in (torch.float32, torch.float64):
        found = run(DGD(HEAD), draw_task(2, dtype=dtype), network, 1)
        types = {field.name: getattr(found, field.name).dtype for field in fields(Trajectory)}
        assert {types.pop(name) for name in ("rounds", "floats", "bytes")} == {torch.int64}
        assert set(types.values()) == {torch.float64}


def test_all_algorithms_start_from_the_same_weights():
    task, network = draw_task(3), Network(nx.cycle_graph(4))
    methods = [
        Recording(DGD(HEAD, 0.1, start=Start(0.0, 0.7))),
        Recording(DGD(HEAD, 2.0, batch_size=2, start=Start(0.0, 0.7))),
        Recording(udgd()),
    ]
    for method in methods:
        run(method, task, network, 2, seed=4, path=("test", 1))
    first, second, third = (method.states[0].weights for method in methods)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    elsewhere = Recording(methods[0].inner)
    run(elsewhere, task, network, 1, seed=4, path=("test", 2))
    assert not torch.equal(elsewhere.states[0].weights, first)


def test_every_step_draws_mini_batches_from_streams_of_the_seed_and_the_path():
    task, network = draw_task(12, train=20), Network(nx.cycle_graph(4))
    method = Recording(DGD(HEAD, 1.0, batch_size=2))
    run(method, task, network, 2, seed=4, path=("test", 1))
    streams = Streams(4, range(4), "test", 1, "step")
    for step, (before, after) in enumerate(pairwise(state.weights for state in method.states)):
        batch = task.train.draw(2, streams.at(step))
        torch.testing.assert_close(after, network.mix(before) - HEAD.gradient(before, batch))


def test_the_same_agents_report_in_a_star_for_all_algorithms():
    task, network = draw_task(4), StarNetwork(4, 1, seeded(9))
    used = []
    for method in (DGD(HEAD, 0.1), DGD(HEAD, 2.0, batch_size=2)):
        run(method, task, network, 5, seed=3)
        used.append(network.link_floats.tolist())
    assert used[0] == used[1]
    run(DGD(HEAD, 0.1), task, network, 5, seed=4)
    assert network.link_floats.tolist() != used[0]


def equal(one, two):
    return all(
        torch.equal(getattr(one, field.name), getattr(two, field.name))
        for field in fields(Trajectory)
    )


@pytest.mark.parametrize("method", [DGD(HEAD, 0.5, batch_size=2), udgd()], ids=["DGD", "U-DGD"])
def test_a_seed_gives_the_same_bits_after_any_other_run(method):
    task, network = draw_task(5), StarNetwork(4, 2, seeded(0))
    first = run(method, task, network, 3, seed=1)
    other = run(method, task, network, 3, seed=2)
    again = run(method, task, network, 3, seed=1)
    assert equal(first, again)
    assert not equal(first, other)


def test_no_global_generator_is_touched_and_no_derivatives_are_kept():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    method = udgd()
    recording = Recording(method)
    run(recording, draw_task(6), StarNetwork(4, 2, seeded(0)), 3)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert not any(state.weights.requires_grad for state in recording.states)


def test_more_steps_than_layers_are_refused():
    with pytest.raises(ValueError, match=r"^state: got one after 3 steps"):
        run(udgd(3), draw_task(7), Network(nx.cycle_graph(4)), 4)


def test_without_steps_only_the_start_is_recorded():
    trajectory = run(DGD(HEAD), draw_task(8), Network(nx.cycle_graph(4)), 0)
    assert all(len(getattr(trajectory, field.name)) == 1 for field in fields(Trajectory))


def test_invalid_numbers_of_steps_and_no_tasks_are_refused():
    method, network = DGD(HEAD, 0.5), Network(nx.cycle_graph(4))
    with pytest.raises(ValueError, match=r"^steps: got -1, but it must be at least 0$"):
        run(method, draw_task(1), network, -1)
    with pytest.raises(TypeError, match=r"^steps: got 2\.5, but it must be a whole number$"):
        run(method, draw_task(1), network, 2.5)
    with pytest.raises(ValueError, match=r"^tasks: got none, but there must be at least one$"):
        run_all(method, [], network, 1)


class LosesItsLoss(SoftmaxHead):
    """A head whose loss is NaN after a number of evaluations, while its weights are finite."""

    def __init__(self, looks):
        super().__init__(3, 3)
        self.looks = looks

    def loss(self, weights, examples):
        self.looks -= 1
        return super().loss(weights, examples) * (1 if self.looks + 1 else math.nan)


def test_a_run_with_a_loss_of_nan_has_diverged_and_has_accuracy_0():
    task, network = draw_task(10), Network(nx.cycle_graph(4))
    whole = run_all(DGD(HEAD), [task], network, 5)
    runs = run_all(DGD(LosesItsLoss(3)), [task], network, 5)  # only the fourth loss is NaN
    assert runs.diverged == [3]
    for name in ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "disagreement"):
        values = getattr(runs, name)[0]
        assert torch.equal(values[:3], getattr(whole, name)[0, :3]), name
        assert values[3:].isnan().all(), name
    assert [row["pooled_accuracy"] for row in runs.summary()[3:]] == [0.0] * 3
    assert score(runs, torch.ones(1), 4, [5]).accuracy == {5: (0.0, None)}
    for name in ("rounds", "floats", "bytes"):
        assert torch.equal(getattr(runs, name), getattr(whole, name)), name


@pytest.mark.parametrize("record", [None, (0, 5), (5,)])
def test_a_loss_of_nan_at_the_first_record_ends_the_run_there(record):
    task, network = draw_task(10), Network(nx.cycle_graph(4))
    whole = run(udgd(5), task, network, 5, record=record)
    unrolled = udgd(5)
    unrolled.model = LosesItsLoss(0)
    found = run(unrolled, task, network, 5, record=record)
    assert found.loss.isnan().all()
    assert found.pooled_accuracy.isnan().all()
    assert found.rounds.tolist() == whole.rounds.tolist()
    assert found.floats.tolist() == whole.floats.tolist()


def test_agents_who_agree_have_no_disagreement():
    method = DGD(HEAD, start=Start(0.5, 0.0))
    trajectory = run(method, draw_task(9), Network(nx.cycle_graph(4)), 1)
    assert float(trajectory.disagreement[0]) == 0
    assert float(trajectory.disagreement[1]) > 0


def test_runs_on_several_tasks_are_stacked_and_reported():
    tasks, network = [draw_task(seed) for seed in range(3)], Network(nx.cycle_graph(4))
    method, done = DGD(HEAD, 0.5, batch_size=2), []
    together = run_all(method, tasks, network, 2, seed=5, on_task=lambda: done.append(1))
    assert len(done) == 3
    assert together.name == "DGD"
    for number, task in enumerate(tasks):
        alone = run(method, task, network, 2, seed=5, path=(number,))
        for field in fields(Trajectory):
            assert torch.equal(getattr(together, field.name)[number], getattr(alone, field.name))


def test_a_summary_has_means_and_standard_errors_of_every_step():
    column = torch.tensor([[1.0, 2.0], [2.0, 4.0], [6.0, 6.0]])
    counts = torch.tensor([[0, 5], [0, 5], [0, 5]])
    trajectories = Trajectories(
        "method",
        *(counts, 10 * counts, 88 * counts),
        *(column, column + 1, column + 2, column + 3, column + 4),
    )
    rows = trajectories.summary()
    assert [row["step"] for row in rows] == [0, 1]
    assert [row["rounds"] for row in rows] == [0, 5]
    assert [row["floats"] for row in rows] == [0, 50]
    assert [row["bytes"] for row in rows] == [0, 440]
    assert [row["loss"] for row in rows] == [3, 4]
    assert [row["accuracy"] for row in rows] == [4, 5]
    assert [row["disagreement"] for row in rows] == [7, 8]
    errors = [math.sqrt(7 / 3), math.sqrt(4 / 3)]
    for name in ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "disagreement"):
        assert [row[f"{name}_error"] for row in rows] == pytest.approx(errors)
    lone = replace(
        trajectories, **{f.name: getattr(trajectories, f.name)[:1] for f in fields(Trajectory)}
    )
    assert lone.summary()[0]["loss_error"] is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SoftmaxHead(4, 2), r"^task: got 3 classes, but the model scores only 2 classes"),
        (ModuleModel(nn.Linear(4, 2)), r"^task: got 3 classes, but the model scores only 2 "),
        (
            ModuleModel(nn.Linear(5, 3)),
            r"^task: got examples of shape \[4\], but the model's module",
        ),
        (
            ModuleModel(nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))),
            r"^model: got a module whose scores of 6 examples have the shape \[6, 2, 3\], but it must",
        ),
    ],
)
@pytest.mark.parametrize("kind", [DGD, DFedAvgM, GradientTracking, LocalOnly])
def test_a_model_that_does_not_fit_the_task_is_refused_by_name(kind, model, message):
    task, network = draw_task(3, agents=3, features=4), Network(nx.cycle_graph(3))
    with pytest.raises(ValueError, match=message):
        run(kind(model), task, network, 2)


@pytest.mark.parametrize(
    "model",
    [
        SoftmaxHead(4, 5),
        ModuleModel(nn.Linear(4, 1), lambda scores, labels: (scores[:, 0] - labels).square()),
        ModuleModel(
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()
        ),
    ],
)
def test_a_model_may_score_more_classes_or_have_a_custom_loss(model):
    task, network = draw_task(3, agents=3, features=4), Network(nx.cycle_graph(3))
    assert run(DGD(model, 0.01), task, network, 2).loss.isfinite().all()


@pytest.mark.parametrize("method", ["init", "step"])
@pytest.mark.parametrize(("found", "shown"), [(None, "None"), (torch.zeros(4, 12), "a Tensor")])
def test_an_algorithm_must_return_a_state(method, found, shown):
    algorithm = Recording(DGD(HEAD, 0.5))
    setattr(algorithm, method, lambda *_: found)
    with pytest.raises(
        TypeError, match=rf"^algorithm\.{method}: got {shown} .* must return a State"
    ):
        run(algorithm, draw_task(1), Network(nx.cycle_graph(4)), 2)
