"""Adam from factors against torch's Adam from whole gradients, alone and within meta-training."""

from contextlib import nullcontext
from dataclasses import replace

import networkx as nx
import pytest
import torch
from random_data import seeded
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fedsurf.common.randomness import generator
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network
from fedsurf.surf import DescentConfig, FixedProblems, MetaTraining, SurfConfig
from fedsurf.surf.factored_adam import NUMBERS_AT_ONCE, FactoredAdam
from fedsurf.tasks.config import TaskConfig
from fedsurf.tasks.distribution import MetaTasks, TaskDistribution
from fedsurf.unrolled import UDGD, Perceptron, UDGDConfig

FEATURES, CLASSES, AGENTS = 5, 3, 6
SURF = SurfConfig(
    tasks=4,
    gradient_batch_size=3,
    learning_rate=1e-3,
    dual_rate=1.0,
    descent=DescentConfig(epsilon=0.3),
)


def perceptron(seed, rows=37, batch=13, dtype=torch.float64):
    return Perceptron(rows, batch, "tanh", seeded(seed)).to(dtype)


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def plain(layer, weights, flat_batch):
    """The perceptron as the paper writes it, left to autograd."""
    joined = torch.cat([weights, flat_batch], 1)
    return layer._activation(functional.linear(joined, layer.matrix, layer.offset))


def meta_training(config=SURF, features=FEATURES, agents=AGENTS, activation="tanh", layers=3):
    x = draw(1, 600, features, dtype=torch.float32)
    y = torch.arange(600) % CLASSES
    x[:, :CLASSES] += 2 * torch.eye(CLASSES)[y]
    tasks = TaskDistribution(x, y, CLASSES, TaskConfig(agents, train_examples=8, test_examples=4))
    shape = UDGDConfig(layers, filter_order=2, batch_size=3, activation=activation)
    optimizer = UDGD(SoftmaxHead(features, CLASSES), shape, generator(0, "parameters"))
    network = Network(nx.cycle_graph(agents))
    problems = FixedProblems(MetaTasks(tasks, tasks, tasks), network, config.tasks, seed=0)
    return MetaTraining(optimizer, problems, config, seed=0)


def test_the_product_of_the_factors_is_the_gradient():
    layer, weights, batch = perceptron(1), draw(2, 4, 37).requires_grad_(), draw(3, 4, 13)
    adam = FactoredAdam(layer.parameters(), lr=0.1, betas=(0.9, 0.999))
    expected = torch.autograd.grad(
        plain(layer, weights, batch).square().sum(), [layer.matrix, layer.offset, weights]
    )
    with adam.taking_factors():
        layer(weights, batch).square().sum().backward()
        ((left, right),) = layer.matrix.factors
    assert layer.matrix.grad is None
    torch.testing.assert_close(left.T @ right, expected[0])
    torch.testing.assert_close(layer.offset.grad, expected[1])
    torch.testing.assert_close(weights.grad, expected[2])


def test_derivatives_by_the_mini_batch_are_available():
    layer, weights, batch = perceptron(4), draw(5, 4, 37), draw(6, 4, 13).requires_grad_()
    (found,) = torch.autograd.grad(layer(weights, batch).square().sum(), batch)
    (expected,) = torch.autograd.grad(plain(layer, weights, batch).square().sum(), batch)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_equal_those_of_the_plain_formula():
    layer = perceptron(7, rows=3, batch=2)
    weights, batch = draw(8, 4, 3).requires_grad_(), draw(9, 4, 2)
    assert torch.autograd.gradgradcheck(lambda w, b: layer(w, b), (weights, batch))
    found, expected = (
        torch.autograd.grad(
            torch.autograd.grad(form(weights, batch).square().sum(), weights, create_graph=True)[0]
            .square()
            .sum(),
            layer.matrix,
        )[0]
        for form in (layer, lambda *given: plain(layer, *given))
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("numbers_at_once", [1, 900, 10**9], ids=["rows", "blocks", "whole"])
def test_steps_and_state_equal_those_of_torch_adam(numbers_at_once, monkeypatch):
    monkeypatch.setattr("fedsurf.surf.factored_adam.NUMBERS_AT_ONCE", numbers_at_once)
    ours, theirs = perceptron(10), perceptron(10)
    adam = FactoredAdam(ours.parameters(), lr=0.1, betas=(0.8, 0.9))
    reference = torch.optim.Adam(theirs.parameters(), lr=0.1, betas=(0.8, 0.9))
    for step in range(4):
        batch = draw(20 + step, 4, 13)
        start = draw(30 + step, 4, 37)
        adam.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        adam.zero_grad()
        with adam.taking_factors():
            # Twice the same matrix: two pairs of factors.
            ours(ours(start, batch), batch).square().sum().backward()
            adam.step()
        reference.zero_grad()
        plain(theirs, plain(theirs, start, batch), batch).square().sum().backward()
        reference.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
            found, expected = adam.state[one], reference.state[two]
            assert list(found) == list(expected)
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_allocating_moments_early_does_not_change_the_steps():
    trainings = [meta_training(), meta_training()]
    trainings[1].state()
    for training in trainings:
        training.step()
    for one, two in zip(*(training.state().values() for training in trainings), strict=True):
        for name in one:
            assert torch.equal(one[name], two[name]), name


def test_a_restored_state_of_several_blocks_continues_to_the_same_bits():
    one, two = (meta_training(features=280, layers=2) for _ in range(2))
    assert one.optimizer.layers[0].perceptron.matrix.numel() > NUMBERS_AT_ONCE
    one.step()
    for group, values in two.state().items():
        for name, value in values.items():
            value.copy_(one.state()[group][name])
    two.step_count = one.step_count
    for _ in range(2):
        assert one.step() == two.step()
    for first, second in zip(one.optimizer.parameters(), two.optimizer.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_meta_training_equals_the_plain_implementation(activation, monkeypatch):
    """The plain implementation: autograd, whole gradients, torch's Adam."""
    monkeypatch.setattr("fedsurf.surf.factored_adam.ROW_MULTIPLE", 4)
    monkeypatch.setattr("fedsurf.surf.factored_adam.NUMBERS_AT_ONCE", 100)  # several blocks
    ours = meta_training(activation=activation)
    start = [value.detach().clone() for value in ours.optimizer.parameters()]
    records = [ours.step() for _ in range(8)]
    assert records[-1].largest_multiplier > 0.1
    assert all(layer.perceptron.matrix.grad is None for layer in ours.optimizer.layers)

    monkeypatch.setattr(Perceptron, "forward", plain)
    monkeypatch.setattr(FactoredAdam, "taking_factors", lambda _: nullcontext())
    theirs = meta_training(activation=activation)
    expected = [theirs.step() for _ in range(8)]
    assert all(layer.perceptron.matrix.grad is not None for layer in theirs.optimizer.layers)
    for one, two in zip(records, expected, strict=True):
        assert one.loss == pytest.approx(two.loss, rel=1e-5)
        assert one.worst_slack == pytest.approx(two.worst_slack, rel=1e-4, abs=1e-6)
        assert one.largest_multiplier == pytest.approx(two.largest_multiplier, rel=1e-5)
    torch.testing.assert_close(ours.multipliers, theirs.multipliers, rtol=1e-5, atol=1e-6)
    for before, one, two in zip(
        start, ours.optimizer.parameters(), theirs.optimizer.parameters(), strict=True
    ):
        # Of all that was learned, as much as single precision can tell.
        assert (one - two).norm() < 1e-4 * (two - before).norm()


def test_clipping_uses_whole_gradients():
    clipped = meta_training(replace(SURF, clip=1e6))
    clipped.step()
    assert all(layer.perceptron.matrix.grad is not None for layer in clipped.optimizer.layers)


def test_ordinary_gradients_are_restored_after_an_error():
    layer = perceptron(11)
    adam = FactoredAdam(layer.parameters(), lr=0.1, betas=(0.9, 0.999))
    with pytest.raises(ArithmeticError), adam.taking_factors():
        raise ArithmeticError
    layer(draw(12, 4, 37), draw(13, 4, 13)).sum().backward()
    assert layer.matrix.grad is not None


class Largest(TorchDispatchMode):
    """Record the size of the largest new tensor."""

    def __init__(self, there):
        super().__init__()
        self.there = {value.untyped_storage().data_ptr() for value in there}
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor) and not value.is_sparse:
                storage = value.untyped_storage()
                if storage.data_ptr() not in self.there:
                    self.numbers = max(self.numbers, storage.nbytes() // value.element_size())
        return result


@pytest.mark.parametrize(("clip", "fits"), [(None, True), (1e6, False)])
def test_a_step_allocates_less_than_a_matrix(clip, fits):
    training = meta_training(replace(SURF, clip=clip), features=280, layers=2)
    there = [value for group in training.state().values() for value in group.values()]
    matrix = training.optimizer.layers[0].perceptron.matrix
    with Largest([*there, *training.optimizer.parameters()]) as largest:
        training.step()
    assert (largest.numbers < matrix.numel()) == fits
