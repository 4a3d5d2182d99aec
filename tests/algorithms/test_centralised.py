"""Centralised training: the ceiling of the comparisons."""

import numpy as np
import pytest
import torch
from random_data import examples as draw_examples
from random_data import task as draw_task
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedsurf.algorithms.centralised import STRENGTHS, Centralised
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.tasks.task import Examples, Task


def head_gradient(head, weights, task, strength):
    """The gradient of the pooled loss with its penalty, from which the bias is free."""
    penalty = strength * weights.reshape(-1, head.classes)
    penalty = torch.cat([penalty[:-1], torch.zeros_like(penalty[-1:])]).flatten()
    return head.gradient(weights[None], task.train.pooled())[0] + penalty


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_gradient_of_the_penalised_loss_vanishes(strength, classes):
    task = draw_task(0, agents=5, train=30, classes=classes, masked=True)
    head = SoftmaxHead(3, classes)
    weights = Centralised(strength).weights(head, task)
    assert weights.shape == (head.parameters,)
    assert weights.abs().max() > 1e-3
    assert head_gradient(head, weights, task, strength).norm() < 1e-6


@pytest.mark.parametrize("strength", [1e-3, 1e-1])
def test_it_agrees_with_scikit_learn(strength):
    task = draw_task(1, agents=5, train=30, test=200)
    pool = task.train.pooled()
    known = LogisticRegression(
        C=1 / (150 * strength), solver="newton-cg", tol=1e-10, max_iter=500
    ).fit(pool.x[0].numpy(), pool.y[0].numpy())
    expected = np.concatenate([known.coef_.T, known.intercept_[None]]).flatten()
    found = Centralised(strength).weights(SoftmaxHead(3, 3), task)
    # The loss does not depend on the mean of the biases.
    found = torch.cat([found[:9], found[9:] - found[9:].mean()])
    expected[9:] -= expected[9:].mean()
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
    test = task.test.pooled()
    share = known.score(test.x[0].numpy(), test.y[0].numpy())
    assert 0.4 < share < 1
    assert Centralised(strength).accuracy(task) == pytest.approx(share, abs=1 / 1000)


@pytest.mark.parametrize("seen", [[1, 3], [0, 2, 3], [4]])
def test_classes_without_training_examples_never_win(seen):
    train = draw_examples(3, 4, 20, classes=len(seen))
    test = draw_examples(4, 4, 100, classes=5)
    task = Task(Examples(train.x, torch.tensor(seen)[train.y]), test, 5)
    head = SoftmaxHead(3, 5)
    weights = Centralised(1e-3).weights(head, task)
    assert weights.isfinite().all()
    far = Examples(100 * test.x, test.y).pooled()
    assert set(head.logits(weights[None], far.x).argmax(2).unique().tolist()) <= set(seen)
    # The gradient that the unseen classes leave is negligible.
    assert head_gradient(head, weights, task, 1e-3).norm() < 1e-6
    assert 0 < Centralised(1e-3).accuracy(task) < 0.5


def test_a_task_whose_training_examples_are_all_of_one_class_gets_that_class():
    train = draw_examples(1, classes=1)
    task = Task(Examples(train.x, train.y + 2), draw_examples(2, size=50), 3)
    share = float((task.test.y == 2).double().mean())
    assert Centralised().accuracy(task) == pytest.approx(share)


def test_any_module_is_trained_to_where_its_gradient_vanishes():
    model = ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))
    task = draw_task(5, agents=4, train=30, test=100, masked=True)
    trained = Centralised(1e-2)
    weights = trained.weights(model, task)
    gradient = model.gradient(weights[None], task.train.pooled())[0] + 1e-2 * weights
    assert gradient.norm() < 1e-5
    assert torch.equal(weights, trained.weights(model, task))
    assert not torch.equal(weights, Centralised(1e-2, seed=1).weights(model, task))
    accuracy = trained.accuracy(task, model)
    assert accuracy == float(model.accuracy(weights[None], task.test.pooled()))
    assert abs(accuracy - Centralised(1e-2).accuracy(task)) < 0.05


def test_real_features_in_float32(digits):
    x, y = digits
    part = Examples(x[:1500].reshape(10, 150, 64), y[:1500].reshape(10, 150))
    test = Examples(x[1500:1790].reshape(10, 29, 64), y[1500:1790].reshape(10, 29))
    task, head = Task(part, test, 10), SoftmaxHead(64, 10)
    weights = Centralised(1e-3).weights(head, task)
    assert weights.dtype == torch.float32
    double = task.to(torch.float64)
    exact = Centralised(1e-3).weights(head, double)
    assert head_gradient(head, exact, double, 1e-3).norm() < 1e-6
    torch.testing.assert_close(weights, exact.float())
    assert Centralised(1e-3).accuracy(task) > 0.9


def test_tuning_chooses_the_penalty_of_the_best_mean_accuracy():
    tasks = [draw_task(seed, train=4, test=60) for seed in (3, 4, 5)]
    means = {
        strength: sum(Centralised(strength).accuracy(task) for task in tasks)
        for strength in STRENGTHS
    }
    assert len(set(means.values())) > 1
    assert means[Centralised.tuned(tasks).strength] == max(means.values())
    model = ModuleModel(nn.Linear(3, 3))
    chosen = Centralised.tuned(tasks[:1], (1e-2, 10.0), model)
    better = max((1e-2, 10.0), key=lambda one: Centralised(one).accuracy(tasks[0], model))
    assert chosen.strength == better


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"^strength: got -1"):
        Centralised(-1.0)
    with pytest.raises(ValueError, match=r"^iterations: got 0"):
        Centralised(iterations=0)
    with pytest.raises(ValueError, match=r"^task: got 3 features and 3 classes"):
        Centralised().weights(SoftmaxHead(4, 3), draw_task(0))
