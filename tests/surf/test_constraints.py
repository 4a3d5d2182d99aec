"""Descending constraints: gradient norms, unrolling and slacks against their formulas."""

import math

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import real_examples, seeded, weights
from random_data import task as draw_task
from recording import Recording

from fedsurf.algorithms import DGD
from fedsurf.common.randomness import generator
from fedsurf.common.streams import Streams
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.surf import DescentConfig, slack, unroll
from fedsurf.surf.constraints import (
    batched_norms,
    can_batch_norms,
    gradient_norm,
    slack_per_constraint,
)
from fedsurf.tasks.task import Task

agents = st.integers(1, 4)
seeds = st.integers(0, 1000)


def shares(seed, count):
    drawn = weights(seed, 1, count)[0].abs() + 0.1
    return drawn / drawn.sum()


@pytest.mark.parametrize(("norm", "power"), [("frobenius", 2), ("root-mean-square", 1)])
@given(agents, seeds, st.booleans())
def test_the_stacked_gradient_norm_equals_a_loop(norm, power, count, seed, masked):
    head, data = SoftmaxHead(3, 3), draw_examples(seed, count, masked=masked)
    w, share = weights(seed, count, 12), shares(seed, count)
    total = 0.0
    for row, own, part in zip(w.tolist(), real_examples(data), share.tolist(), strict=True):
        total += part**power * sum(slope**2 for slope in naive.gradient(row, own, 3))
    found = gradient_norm(head, w, data, share, norm=norm)
    assert float(found) == pytest.approx(math.sqrt(total), rel=1e-12)


@given(agents, seeds, st.booleans())
def test_the_average_gradient_norm_equals_a_loop(count, seed, masked):
    head, data = SoftmaxHead(3, 3), draw_examples(seed, count, masked=masked)
    w, share = weights(seed, count, 12), shares(seed, count)
    parts = share.tolist()
    average = [
        sum(part * row[place] for part, row in zip(parts, w.tolist(), strict=True))
        for place in range(12)
    ]
    total = [0.0] * 12
    for own, part in zip(real_examples(data), parts, strict=True):
        for place, slope in enumerate(naive.gradient(average, own, 3)):
            total[place] += part * slope
    found = gradient_norm(head, w, data, share, "average")
    assert float(found) == pytest.approx(math.sqrt(sum(value**2 for value in total)), rel=1e-12)


def test_batched_norms_equal_the_norms_of_each_layer():
    head, data = SoftmaxHead(3, 3), draw_examples(8, 4, 5, masked=True)
    share = Task(data, data, 3).agent_weights("examples")
    assert can_batch_norms(head, data, share, "average")
    layers = [weights(9 + layer, 4, 12) for layer in range(3)]
    found = batched_norms(head, [share @ layer for layer in layers], data)
    expected = [gradient_norm(head, one, data, share, "average") for one in layers]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=0)


def test_norms_are_batched_only_for_average_softmax_heads_weighted_by_examples():
    head, data = SoftmaxHead(3, 3), draw_examples(8, 4, 5, masked=True)
    task = Task(data, data, 3)
    assert not can_batch_norms(head, data, task.agent_weights("examples"), "stacked")
    assert not can_batch_norms(head, data, task.agent_weights("uniform"), "average")
    module = ModuleModel(torch.nn.Linear(3, 3))
    assert not can_batch_norms(module, data, task.agent_weights("examples"), "average")


def test_batched_norms_are_differentiable():
    head, data = SoftmaxHead(2, 3), draw_examples(1, 3, features=2, masked=True)
    share = Task(data, data, 3).agent_weights("examples")
    layers = [weights(2 + layer, 3, 9).requires_grad_() for layer in range(2)]
    assert torch.autograd.gradcheck(
        lambda *values: batched_norms(head, [share @ value for value in values], data), layers
    )


@pytest.mark.parametrize("gradient_of", ["stacked", "average"])
def test_the_gradient_norm_is_differentiable(gradient_of):
    head, data = SoftmaxHead(2, 3), draw_examples(1, 3, features=2)
    w, share = weights(2, 3, 9).requires_grad_(), shares(3, 3)
    assert torch.autograd.gradcheck(
        lambda values: gradient_norm(head, values, data, share, gradient_of), w
    )


@pytest.mark.parametrize("gradient_of", ["stacked", "average"])
def test_a_zero_gradient_norm_has_a_zero_derivative(gradient_of):
    head, data = SoftmaxHead(3, 1), draw_examples(4, classes=1)
    w = weights(5, 3, 4).requires_grad_()
    norm = gradient_norm(head, w, data, shares(6, 3), gradient_of)
    (slope,) = torch.autograd.grad(norm, w)
    assert norm == 0
    assert torch.equal(slope, torch.zeros_like(w))


def test_an_unknown_gradient_raises():
    with pytest.raises(ValueError, match=r"^gradient_of: got 'sum'"):
        gradient_norm(SoftmaxHead(3, 3), weights(0, 3, 12), draw_examples(0), shares(0, 3), "sum")


def test_an_unknown_norm_and_a_root_mean_square_of_the_average_raise():
    arguments = SoftmaxHead(3, 3), weights(0, 3, 12), draw_examples(0), shares(0, 3)
    with pytest.raises(ValueError, match=r"^norm: got 'spectral'"):
        gradient_norm(*arguments, norm="spectral")
    with pytest.raises(ValueError, match=r"^norm: got 'root-mean-square' with .*'average'"):
        gradient_norm(*arguments, "average", "root-mean-square")


@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=6),
    st.floats(0.001, 0.999),
)
def test_slack_equals_its_formula(norms, epsilon):
    found = slack(torch.tensor(norms, dtype=torch.float64), epsilon)
    expected = [norms[i] - (1 - epsilon) * norms[i - 1] for i in range(1, len(norms))]
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_slack_is_computed_along_the_first_dimension():
    norms = torch.tensor([[4.0, 1.0], [2.0, 3.0]])
    torch.testing.assert_close(slack(norms, 0.5), torch.tensor([[0.0, 2.5]]))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_epsilon_outside_0_and_1_raises(epsilon):
    with pytest.raises(ValueError, match=r"^epsilon: got"):
        slack(torch.ones(3), epsilon)


@given(
    st.lists(st.floats(1e-6, 100), min_size=2, max_size=6),
    st.floats(0.001, 0.999),
)
def test_slack_as_a_log_ratio_equals_its_formula(norms, epsilon):
    found = slack(torch.tensor(norms, dtype=torch.float64), epsilon, "log-ratio")
    expected = [math.log(norms[i] / norms[i - 1] / (1 - epsilon)) for i in range(1, len(norms))]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    # Violated where the difference is, and independent of the gradients' scale.
    difference = slack(torch.tensor(norms, dtype=torch.float64), epsilon)
    clear = found.abs() > 1e-6
    assert torch.equal((found > 0)[clear], (difference > 0)[clear])
    scaled = slack(1e3 * torch.tensor(norms, dtype=torch.float64), epsilon, "log-ratio")
    torch.testing.assert_close(scaled, found)


def test_the_log_ratio_of_vanishing_gradients_is_finite():
    norms = torch.tensor([1.0, 0.0, 0.0, 1e-12], dtype=torch.float64).requires_grad_()
    found = slack(norms, 0.5, "log-ratio")
    expected = [math.log(1e-8), 0.0, 0.0]
    assert found.tolist() == pytest.approx([value - math.log(0.5) for value in expected])
    found.sum().backward()
    assert norms.grad.isfinite().all()


def test_an_unknown_form_raises():
    with pytest.raises(ValueError, match=r"^form: got 'ratio'"):
        slack(torch.ones(3), 0.1, "ratio")


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 7, 10, 11, 20, 33])
@pytest.mark.parametrize("constraints", [1, 3, 10])
def test_slack_per_constraint_equals_a_loop(layers, constraints):
    slacks = torch.randn(layers, generator=seeded(layers), dtype=torch.float64)
    expected = []
    for part in range(constraints):
        # A layer belongs to the part of the depth in which it begins.
        own = [
            float(slacks[layer])
            for layer in range(layers)
            if part <= layer / layers * constraints + 1e-9 < part + 1
        ]
        expected.append(sum(own) / len(own) if own else 0.0)
    found = slack_per_constraint(slacks.requires_grad_(), constraints)
    assert found.tolist() == pytest.approx(expected)
    found.sum().backward()
    assert (slacks.grad > 0).all()


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
def test_norms_over_all_examples_equal_a_loop_over_states(weighting, star):
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


def test_norms_over_mini_batches_use_a_fresh_one_for_every_state():
    task, network = draw_task(1, train=10), Network(nx.cycle_graph(4))
    method = Recording(DGD(SoftmaxHead(3, 3), 0.5))
    _, norms = unroll(method, 3, task, network, DescentConfig(), **settings())
    streams = Streams(5, network.ids, "train", 3, "gradient")
    batches = [task.train.draw(2, streams.at(number)) for number in range(4)]
    expected = [
        naive_norm(state.weights.tolist(), real_examples(batch), [1 / 4] * 4)
        for state, batch in zip(method.states, batches, strict=True)
    ]
    assert norms.tolist() == pytest.approx(expected, rel=1e-12)


def test_unrolling_is_determined_by_seed_and_path():
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
