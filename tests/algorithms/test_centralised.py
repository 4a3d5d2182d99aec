"""Centralised training: the ceiling of the comparisons."""

import pytest
import torch
from drawn import examples as draw_examples
from drawn import task as draw_task

from fedsurf.algorithms.centralised import STRENGTHS, Centralised
from fedsurf.models import SoftmaxHead
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


@pytest.mark.parametrize("strength", [1e-3, 1e-1])
def test_it_minimises_the_mean_loss_with_the_penalty(strength):
    task = draw_task(0, agents=5, train=30, test=200, masked=True)
    head, pool = SoftmaxHead(3, 3), task.train.pooled()
    weights = torch.zeros(1, head.parameters, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=1000, tolerance_grad=1e-10)

    def closure():
        solver.zero_grad()
        penalty = weights.reshape(4, 3)[:-1].square().sum() * strength / 2  # not on the bias
        loss = head.loss(weights, pool).sum() + penalty
        loss.backward()
        return loss

    solver.step(closure)
    expected = float(head.accuracy(weights, task.test.pooled()))
    assert 0.4 < expected < 1.0
    assert Centralised(strength).accuracy(task) == pytest.approx(expected, abs=2 / 500)


def test_a_task_whose_training_examples_are_all_of_one_class_is_guessed():
    train = draw_examples(1, classes=1)
    task = Task(Examples(train.x, train.y + 2), draw_examples(2, size=50), 3)
    share = float((task.test.y == 2).double().mean())
    assert Centralised().accuracy(task) == pytest.approx(share)


def test_tuning_chooses_the_penalty_of_the_best_mean_accuracy():
    tasks = [draw_task(seed, train=4, test=60) for seed in (3, 4, 5)]
    means = {
        strength: sum(Centralised(strength).accuracy(task) for task in tasks)
        for strength in STRENGTHS
    }
    assert len(set(means.values())) > 1
    assert means[Centralised.tuned(tasks).strength] == max(means.values())
