"""Models: against naive loops, automatic differentiation, finite differences and each other."""

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import real_examples, seeded, weights
from running import advance, begin
from torch import nn
from torch.autograd import gradcheck

from fedsurf.algorithms import DGD
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task

shapes = st.fixed_dictionaries(
    {
        "agents": st.integers(1, 4),
        "size": st.integers(1, 5),
        "features": st.integers(1, 4),
        "classes": st.integers(1, 4),
        "masked": st.booleans(),
    }
)
seeds = st.integers(0, 10_000)


def linear(features, classes):
    """Return the softmax head as a module; its flat weights are `as_linear` of the head's."""
    return ModuleModel(nn.Linear(features, classes))


def as_linear(flat, features, classes):
    """Reorder weights `[features + 1, classes]` as nn.Linear does: weight transposed, then bias."""
    matrix = flat.reshape(len(flat), features + 1, classes)
    return torch.cat([matrix[:, :-1].transpose(1, 2).flatten(1), matrix[:, -1]], 1)


def head_and_data(seed, shape):
    head = SoftmaxHead(shape["features"], shape["classes"])
    return head, weights(seed, shape["agents"], head.parameters), draw_examples(seed + 1, **shape)


@given(seeds, shapes)
def test_softmax_head_equals_naive_loops(seed, shape):
    head, w, data = head_and_data(seed, shape)
    rows, real = w.tolist(), real_examples(data)
    everything = [pair for own in real for pair in own]
    for found, formula in (
        (head.loss(w, data), naive.loss),
        (head.gradient(w, data), naive.gradient),
        (head.accuracy(w, data), naive.accuracy),
    ):
        expected = [formula(row, own, head.classes) for row, own in zip(rows, real, strict=True)]
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )
    pooled = [naive.accuracy(row, everything, head.classes) for row in rows]
    torch.testing.assert_close(
        head.pooled_accuracy(w, data), torch.tensor(pooled, dtype=torch.float64)
    )
    losses = [naive.loss(row, everything, head.classes) for row in rows]
    torch.testing.assert_close(
        head.pooled_loss(w, data), torch.tensor(losses, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


@given(seeds, shapes)
def test_closed_form_gradient_equals_automatic_differentiation(seed, shape):
    head, w, data = head_and_data(seed, shape)
    w.requires_grad_()
    (expected,) = torch.autograd.grad(head.loss(w, data).sum(), w)
    torch.testing.assert_close(head.gradient(w, data), expected, rtol=1e-12, atol=1e-12)


@given(seeds, shapes)
def test_linear_module_equals_softmax_head(seed, shape):
    head, w, data = head_and_data(seed, shape)
    sizes = (head.features, head.classes)
    module, v = linear(*sizes), as_linear(w, *sizes)
    assert module.parameters == head.parameters
    for found, expected in (
        (module.logits(v, data.x), head.logits(w, data.x)),
        (module.loss(v, data), head.loss(w, data)),
        (module.gradient(v, data), as_linear(head.gradient(w, data), *sizes)),
        (module.accuracy(v, data), head.accuracy(w, data)),
        (module.pooled_accuracy(v, data), head.pooled_accuracy(w, data)),
        (module.pooled_loss(v, data), head.pooled_loss(w, data)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_derivative_of_the_gradient_norm_agrees_between_models_and_with_finite_differences(masked):
    data = draw_examples(5, agents=2, size=3, features=2, classes=3, masked=masked)
    head, module = SoftmaxHead(2, 3), linear(2, 3)
    w = weights(6, 2, head.parameters).requires_grad_()

    def head_norm(values):
        return torch.linalg.vector_norm(head.gradient(values, data))

    def module_norm(values):
        return torch.linalg.vector_norm(module.gradient(as_linear(values, 2, 3), data))

    of_head, of_module = (torch.autograd.grad(norm(w), w)[0] for norm in (head_norm, module_norm))
    torch.testing.assert_close(of_module, of_head, rtol=1e-10, atol=1e-10)
    assert of_head.abs().max() > 1e-3
    assert gradcheck(head_norm, w)
    assert gradcheck(module_norm, w)


def test_padding_does_not_influence_any_result():
    data = draw_examples(7, agents=3, size=5, masked=True)
    noise = draw_examples(8, agents=3, size=5)
    other = Examples(
        torch.where(data.mask[:, :, None], data.x, 100 * noise.x),
        torch.where(data.mask, data.y, noise.y),
        data.mask,
    )
    assert not torch.equal(data.x, other.x)
    for model in (SoftmaxHead(3, 3), linear(3, 3)):
        w = weights(9, 3, model.parameters).requires_grad_()
        for result in (model.loss, model.gradient, model.accuracy, model.pooled_accuracy):
            torch.testing.assert_close(result(w, other), result(w, data), rtol=1e-13, atol=1e-13)
        slopes = [
            torch.autograd.grad(model.gradient(w, part).norm(), w)[0] for part in (data, other)
        ]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-12, atol=1e-12)


def test_a_mask_without_padding_changes_nothing():
    data = draw_examples(10)
    masked = Examples(data.x, data.y, torch.ones_like(data.y, dtype=torch.bool))
    for model in (SoftmaxHead(3, 3), linear(3, 3)):
        w = weights(11, 3, model.parameters)
        for result in (model.loss, model.gradient, model.accuracy, model.pooled_accuracy):
            torch.testing.assert_close(result(w, masked), result(w, data), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("masked", [False, True])
def test_permuting_classes_permutes_the_gradient_and_keeps_loss_and_accuracy(masked):
    head, data = SoftmaxHead(3, 4), draw_examples(12, classes=4, masked=masked)
    w, order = weights(13, 3, head.parameters), torch.tensor([2, 0, 3, 1])

    def renamed(flat):
        return flat.reshape(3, 4, 4)[:, :, order].flatten(1)

    moved = Examples(data.x, order.argsort()[data.y], data.mask)
    torch.testing.assert_close(head.loss(renamed(w), moved), head.loss(w, data))
    torch.testing.assert_close(head.accuracy(renamed(w), moved), head.accuracy(w, data))
    torch.testing.assert_close(head.gradient(renamed(w), moved), renamed(head.gradient(w, data)))


@pytest.mark.parametrize("masked", [False, True])
def test_permuting_features_permutes_the_gradient_and_keeps_the_loss(masked):
    head, data = SoftmaxHead(4, 3), draw_examples(14, features=4, masked=masked)
    w, order = weights(15, 3, head.parameters), torch.tensor([3, 1, 0, 2])

    def moved(flat):
        return flat.reshape(3, 5, 3)[:, [*order.tolist(), 4]].flatten(1)

    other = Examples(data.x[:, :, order], data.y, data.mask)
    torch.testing.assert_close(head.loss(moved(w), other), head.loss(w, data))
    torch.testing.assert_close(head.gradient(moved(w), other), moved(head.gradient(w, data)))


def test_permuting_agents_permutes_the_result():
    data, order = draw_examples(16, masked=True), torch.tensor([2, 0, 1])
    moved = Examples(data.x[order], data.y[order], data.mask[order])
    for model in (SoftmaxHead(3, 3), linear(3, 3)):
        w = weights(17, 3, model.parameters)
        for result in (model.loss, model.gradient, model.accuracy, model.pooled_accuracy):
            torch.testing.assert_close(result(w[order], moved), result(w, data)[order])


def test_with_a_single_class_the_gradient_is_zero():
    head, data = SoftmaxHead(3, 1), draw_examples(18, classes=1)
    w = weights(19, 3, head.parameters)
    assert torch.equal(head.loss(w, data), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(head.gradient(w, data), torch.zeros_like(w))
    assert torch.equal(head.accuracy(w, data), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("model", [SoftmaxHead(3, 4), linear(3, 4)], ids=["head", "module"])
def test_examples_of_one_agent_are_scored_by_every_agent(model):
    w, x = weights(20, 5, model.parameters), draw_examples(21, agents=1, size=6).x
    torch.testing.assert_close(model.logits(w, x), model.logits(w, x.expand(5, 6, 3)))
    assert model.logits(w, x).shape == (5, 6, 4)


@pytest.mark.parametrize("model", [SoftmaxHead(3, 3), linear(3, 3)], ids=["head", "module"])
@pytest.mark.parametrize("scale", [1e4, 1e10, 1e30])
def test_huge_logits_give_finite_losses_and_gradients(model, scale):
    data = draw_examples(22, dtype=torch.float32)
    w = scale * weights(23, 3, model.parameters, torch.float32)
    assert model.logits(w, data.x).abs().max() > scale
    assert model.loss(w, data).isfinite().all()
    assert model.loss(w, data).max() > 1
    assert model.gradient(w, data).isfinite().all()


@pytest.mark.parametrize("model", [SoftmaxHead(3, 3), linear(3, 3)], ids=["head", "module"])
@pytest.mark.parametrize("method", ["loss", "gradient", "accuracy", "pooled_accuracy"])
def test_weights_of_the_wrong_shape_are_an_error_that_names_them(model, method):
    data = draw_examples(24)
    for wrong in (weights(0, 3, 11), weights(0, 3, 13), weights(0, 1, 12)[0]):
        with pytest.raises(ValueError, match=r"^weights: got shape .*\[agents, 12\]"):
            getattr(model, method)(wrong, data)


@pytest.mark.parametrize("model", [SoftmaxHead(3, 3), linear(3, 3)], ids=["head", "module"])
@pytest.mark.parametrize("method", ["loss", "gradient", "accuracy"])
@pytest.mark.parametrize("agents", [1, 2, 4])
def test_examples_of_another_number_of_agents_are_an_error(model, method, agents):
    w, data = weights(0, 3, model.parameters), draw_examples(25, agents=agents)
    if method == "gradient" and agents == 1 and isinstance(model, SoftmaxHead):  # they are for all
        for one in (data, draw_examples(26, agents=1, size=6, masked=True)):
            alone = [model.gradient(w[i : i + 1], one) for i in range(3)]
            torch.testing.assert_close(model.gradient(w, one), torch.cat(alone))
        return
    with pytest.raises(ValueError, match=rf"^examples: got .*{agents} agents.* 3 agents"):
        getattr(model, method)(w, data)


def test_features_of_the_wrong_shape_are_an_error_that_names_them():
    head = SoftmaxHead(3, 3)
    w = weights(0, 3, head.parameters)
    for shape in ((3, 4, 2), (1, 4, 5), (3, 3), (2, 4, 3)):
        x = torch.zeros(shape, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"^x: got shape .*\[agents, examples, 3\]"):
            head.logits(w, x)
    for_all = Examples(
        torch.zeros(1, 4, 5, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.int64)
    )
    with pytest.raises(ValueError, match=r"^x: got shape .*\[agents, examples, 3\]"):
        head.gradient(w, for_all)


@pytest.mark.parametrize(("features", "classes"), [(0, 3), (3, 0), (-1, 2)])
def test_a_head_needs_features_and_classes(features, classes):
    with pytest.raises(ValueError, match=r"^(features|classes): got"):
        SoftmaxHead(features, classes)


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match=r"^module: got Flatten without parameters"):
        ModuleModel(nn.Flatten())


def test_a_module_takes_examples_of_more_dimensions_and_keeps_its_parameters():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    own = [value.detach().clone() for value in module.parameters()]
    model = ModuleModel(module)
    w = weights(26, 2, model.parameters)
    x = torch.randn(2, 5, 1, 4, 4, generator=seeded(27), dtype=torch.float64)
    y = torch.randint(3, (2, 5), generator=seeded(28))
    data = Examples(x, y)
    losses, logits, gradient = model.loss(w, data), model.logits(w, x), model.gradient(w, data)
    for agent in range(2):
        nn.utils.vector_to_parameters(w[agent], module.parameters())
        torch.testing.assert_close(logits[agent], module(x[agent]))
        loss = nn.functional.cross_entropy(module(x[agent]), y[agent])
        torch.testing.assert_close(losses[agent], loss)
        slopes = torch.autograd.grad(loss, list(module.parameters()))
        torch.testing.assert_close(gradient[agent], torch.cat([s.flatten() for s in slopes]))
    nn.utils.vector_to_parameters(torch.cat([v.flatten() for v in own]), module.parameters())
    model.gradient(w, data)
    for before, after in zip(own, module.parameters(), strict=True):
        assert torch.equal(before, after)
        assert after.grad is None


@pytest.mark.parametrize("masked", [False, True])
def test_a_module_can_have_a_custom_loss(masked):
    def squared(scores, labels):
        return (scores - (labels[:, None] == torch.arange(3)).double()).square().sum(-1)

    model, data = ModuleModel(nn.Linear(3, 3), squared), draw_examples(29, masked=masked)
    w = weights(30, 3, model.parameters).requires_grad_()
    expected = []
    for agent, own in enumerate(real_examples(data)):
        matrix, bias = w[agent, :9].reshape(3, 3), w[agent, 9:]
        total = 0.0
        for x, y in own:
            for c in range(3):
                score = bias[c] + sum(matrix[c, p] * x[p] for p in range(3))
                total = total + (score - (1.0 if c == y else 0.0)) ** 2
        expected.append(total / len(own))
    losses = torch.stack(expected)
    torch.testing.assert_close(model.loss(w, data), losses)
    torch.testing.assert_close(
        model.gradient(w, data), torch.autograd.grad(losses.sum(), w)[0], rtol=1e-10, atol=1e-10
    )


def test_a_hidden_layer_learns_digits_by_dgd_over_a_ring(digits):
    x, y = digits
    order = torch.randperm(len(y), generator=seeded(0))
    x, y = x[order], y[order]
    agents, each = 5, 120
    train = Examples(x[:600].reshape(agents, each, 64), y[:600].reshape(agents, each))
    test = Examples(x[600:900].reshape(agents, 60, 64), y[600:900].reshape(agents, 60))
    model = ModuleModel(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)))
    network, task = Network(nx.cycle_graph(agents)), Task(train, test, 10)
    dgd = DGD(model, step_size=1.0)
    state = begin(dgd, task, network)
    before = model.accuracy(state.weights, test).mean()
    for _ in range(150):
        state = advance(dgd, state, task, network)
    after = model.accuracy(state.weights, test).mean()
    assert before < 0.3
    assert after > 0.8


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm1d(3)])
def test_modules_that_are_not_pure_functions_are_refused(part):
    module = nn.Sequential(nn.Linear(3, 3), part, nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"^module: got a (Dropout|BatchNorm1d) in training mode"):
        ModuleModel(module)
    model = ModuleModel(module.eval())
    assert model.gradient(weights(0, 3, model.parameters, torch.float32), single()).isfinite().all()


def single():
    data = draw_examples(30)
    return Examples(data.x.float(), data.y)


def test_an_empty_parameter_stays_in_the_module():
    module = linear(3, 3)._module
    module.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
    model = ModuleModel(module)
    assert "nothing" not in model.shapes
    assert model.loss(weights(0, 3, model.parameters), draw_examples(31)).isfinite().all()


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (nn.functional.cross_entropy, r"\[\] for 3 examples, but .* one for each, \[3\]"),
        (lambda scores, labels: (scores - torch.eye(2)[labels]) ** 2, r"\[3, 2\] for 3 examples"),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_example_is_refused(loss, shape):
    model = ModuleModel(nn.Linear(4, 2), loss)
    x, y = torch.randn(2, 3, 4, generator=seeded(0)), torch.tensor([[0, 1, 1], [1, 0, 1]])
    data = Examples(x, y, torch.tensor([[True, True, True], [True, True, False]]))
    for formula in (model.loss, model.gradient):
        with pytest.raises(ValueError, match=f"^loss: got losses of shape {shape}"):
            formula(torch.zeros(2, model.parameters), data)


def test_a_frozen_parameter_is_refused_since_it_would_be_trained():
    module = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"^module: got the frozen parameter 0\.weight"):
        ModuleModel(module)


def test_a_representation_is_the_flat_input_of_the_output_layer():
    head, x = SoftmaxHead(3, 3), weights(1, 2, 15).reshape(2, 5, 3)
    assert head.representation(weights(0, 2, 12), x) is x
    perceptron = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    rows = weights(0, 2, 31)
    found = ModuleModel(perceptron).representation(rows, x)
    assert not any(part._forward_pre_hooks for part in perceptron.modules())
    for agent in range(2):
        nn.utils.vector_to_parameters(rows[agent], perceptron.parameters())
        torch.testing.assert_close(found[agent], perceptron[:2](x[agent]).detach())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    model = ModuleModel(convolution.double())
    images = weights(2, 2, 80).reshape(2, 5, 1, 4, 4)
    found = model.representation(weights(3, 2, model.parameters), images)
    assert found.shape == (2, 5, 8)
