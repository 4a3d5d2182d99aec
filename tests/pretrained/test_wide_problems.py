"""The distribution of wide problems: seeds, ranges, shares, and sources of data."""

from dataclasses import replace

import pytest
import torch
from random_data import seeded
from running import run

from fedsurf.network import Network
from fedsurf.network.faults import FaultyNetwork
from fedsurf.pretrained.config import PretrainConfig, WideConfig
from fedsurf.pretrained.recipes import wide_problems as problems_module
from fedsurf.pretrained.recipes.wide_problems import MAX_SMALL_FEDERATION, WideProblems
from fedsurf.tasks import sources
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.distribution import ClassImbalanced
from fedsurf.unrolled import Transferable, TransferableConfig

DRAWS = 100


@pytest.fixture(scope="module")
def few():
    """The real images, but few of them."""
    whole = sources.load("fashion-mnist-mini")
    return replace(
        whole,
        train_x=whole.train_x[:2000],
        train_y=whole.train_y[:2000],
        test_x=whole.test_x[:100],
        test_y=whole.test_y[:100],
    )


@pytest.fixture(scope="module")
def loaded(few):
    """What was asked of the data sources, while problems were drawn."""
    names = []

    def load(name, *rest, **named):
        assert not rest
        assert not named
        names.append(name)
        return few

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems_module.sources, "load", load)
        yield names


@pytest.fixture(scope="module")
def wide(loaded):
    return WideProblems(replace(PretrainConfig().problems, views=2), seed=0)


@pytest.fixture(scope="module")
def drawn(wide):
    return [wide.training(number) for number in range(DRAWS)]


def innermost(network: Network) -> Network:
    while isinstance(network, FaultyNetwork):
        network = network.inner
    return network


def test_only_fashion_mnist_is_loaded(drawn, loaded, few):
    assert isinstance(few, Dataset)
    assert len(drawn) == DRAWS
    assert set(loaded) == {"fashion-mnist-mini"}


def same(one, two):
    return (
        one.task.classes == two.task.classes
        and one.rounds == two.rounds
        and one.task.train.x.shape == two.task.train.x.shape
        and torch.equal(one.task.train.x, two.task.train.x)
        and torch.equal(one.task.train.y, two.task.train.y)
        and torch.equal(one.task.test.x, two.task.test.x)
        and set(one.network.graph.edges) == set(two.network.graph.edges)
        and type(one.network) is type(two.network)
    )


def test_problems_follow_from_the_seed(wide, drawn):
    again = WideProblems(wide.config, seed=0)
    other = WideProblems(wide.config, seed=1)
    for number in (0, 7):
        assert same(again.training(number), drawn[number])
        assert not same(other.training(number), drawn[number])
        assert not same(wide.training(number), wide.training(number + 1))
    assert same(wide.validation(3), again.validation(3))
    assert not same(wide.validation(3), wide.training(3))


def test_synthetic_validation_problems_are_the_same_for_all_seeds():
    imitated = WideConfig(real_share=0.0)
    one, two = (WideProblems(imitated, seed).validation(5) for seed in (0, 1))
    assert same(one, two)


def test_everything_is_within_its_range(drawn):
    for problem in drawn:
        task, network = problem.task, innermost(problem.network)
        assert task.agents == network.agents
        assert 2 <= task.agents <= 100
        assert 2 <= task.classes <= 100
        assert 4 <= task.features <= 320
        counts = task.train.counts
        assert int(counts.min()) >= 1
        assert int(counts.max()) <= (100 if task.agents > MAX_SMALL_FEDERATION else 300)
        assert int(counts.sum()) <= 5000
        assert 512 / 2 <= int(task.test.counts.sum()) <= 512 * 1.5
        assert 5 <= problem.rounds <= 40
        if network.server:
            assert 1 <= network.facts.reporting <= network.agents
        else:
            assert network.shift == "metropolis"
        spread = task.train.pooled().x[0]
        size = float((spread - spread.mean(0)).square().mean().sqrt())
        assert 0.5 * (1 - 1e-3) <= size <= 2 * (1 + 1e-3)


def test_all_kinds_of_problems_occur(drawn):
    tasks = [problem.task for problem in drawn]
    networks = [problem.network for problem in drawn]

    def share(found):
        found = list(found)
        return sum(found) / len(found)

    assert share(network.server for network in networks) == pytest.approx(0.5, abs=0.15)
    assert {innermost(network).calling for network in networks if network.server} == {"random"}
    assert share(p.batch_size is not None for p in drawn) == pytest.approx(0.1, abs=0.07)
    assert all(p.batch_size is None or 2 <= p.batch_size <= 300 for p in drawn)
    # Of the networks that may have faults some draw none: half of each kind does.
    assert 0.05 < share(isinstance(network, FaultyNetwork) for network in networks) < 0.35
    assert share(task.agents == 100 for task in tasks) == pytest.approx(0.25, abs=0.15)
    assert 0.1 < share(task.train.mask is not None for task in tasks) < 0.5
    assert share(p.rounds == 20 for p in drawn) > 0.15
    assert share(p.rounds == 10 for p in drawn) > 0.15
    assert len({p.rounds for p in drawn}) > 10
    assert min(task.classes for task in tasks) <= 3
    assert max(task.classes for task in tasks) >= 30
    assert min(task.features for task in tasks) <= 6
    assert max(task.features for task in tasks) >= 100
    assert min(int(task.train.counts.min()) for task in tasks) <= 3
    # Some have agents that hold a single class, others only agents that hold many.
    alone = [_some_hold_a_single_class(task) for task in tasks if task.train.counts.min() > 5]
    assert 0.05 < share(alone) < 0.95
    degrees = [dict(innermost(n).graph.degree).values() for n in networks if not n.server]
    assert any(set(one) == {3} for one in degrees)
    assert any(set(one) == {6} for one in degrees)
    assert any(len(set(one)) > 4 for one in degrees)
    assert any(min(one) == len(one) - 1 for one in degrees)


def _some_hold_a_single_class(task):
    counts = task.train.counts.tolist()
    return any(
        len(set(own[:count].tolist())) == 1 for own, count in zip(task.train.y, counts, strict=True)
    )


def test_a_share_of_the_problems_is_real(wide, loaded):
    all_real = WideProblems(replace(wide.config, real_share=1.0, views=1), seed=2)
    none_real = WideProblems(replace(wide.config, real_share=0.0), seed=2)
    before = len(loaded)
    none_real.training(0)
    assert len(loaded) == before
    real = all_real.training(0)
    assert len(loaded) == before + 1
    # Tests are of other images than training.
    train, test = real.task.train.pooled().x[0], real.task.test.pooled().x[0]
    assert torch.cdist(train, test).min() > 0


def test_configured_shares_and_sizes_are_kept():
    config = WideConfig(
        real_share=0.0, server_share=0.0, fault_share=0.0, max_agents=20, max_examples=100,
        test_examples=40,
    )  # fmt: skip
    found = [WideProblems(config, 0).training(number) for number in range(20)]
    assert all(type(problem.network) is Network for problem in found)
    assert all(2 <= problem.task.agents <= 20 for problem in found)
    assert all(int(problem.task.train.counts.sum()) <= 100 for problem in found)
    served = WideProblems(replace(config, server_share=1.0), 0)
    assert all(served.training(number).network.server for number in range(10))
    none, some = (WideProblems(replace(config, batch_share=share), 0) for share in (0.0, 1.0))
    assert all(none.training(number).batch_size is None for number in range(20))
    for number in range(10):
        problem = some.training(number)
        optimizer = Transferable(TransferableConfig(), seeded(0))
        assert problem.algorithm(optimizer).batch_size == problem.batch_size >= 2
        assert problem.algorithm(optimizer).rounds == problem.rounds
    rare = WideProblems(replace(config, rare_share=1.0, max_examples=2000), 0)
    smallest = []
    for number in range(10):
        task = rare.training(number).task
        counts = torch.bincount(task.train.pooled().y[0], minlength=task.classes)
        smallest.append(float(counts.min() * task.classes / counts.sum()))
    assert sum(one < 0.3 for one in smallest) >= 8
    even = WideProblems(replace(config, even_share=1.0, max_examples=2000), 0)
    for number in range(10):
        task = even.training(number).task
        if task.train.counts.min() >= 20:
            assert not _some_hold_a_single_class(task)
    two = WideProblems(replace(config, two_share=1.0), 0)
    assert all(two.training(number).task.classes == 2 for number in range(10))
    faulty = WideProblems(replace(config, fault_share=1.0), 0)
    assert any(isinstance(faulty.training(n).network, FaultyNetwork) for n in range(10))


def test_label_noise_replaces_a_share_of_the_labels_by_any():
    labels = torch.full((4000,), 3)
    found = problems_module._flip(labels, 0.3, 5, seeded(0))
    shares = found.bincount(minlength=5) / 4000
    expected = [0.06, 0.06, 0.06, 0.76, 0.06]  # one of five is the label that it was
    assert shares.tolist() == pytest.approx(expected, abs=0.02)
    assert (labels == 3).all()


def test_rare_classes_are_drawn_with_concentrations_between_a_tenth_and_one():
    wide, random = WideProblems(WideConfig(rare_share=1.0), 0), seeded(0)
    found = [wide._partition(random) for _ in range(200)]
    assert all(isinstance(one, ClassImbalanced) for one in found)
    values = sorted(one.concentration for one in found)
    assert 0.1 <= values[0] < 0.12
    assert values[100] == pytest.approx(0.1**0.5, rel=0.2)  # as many below as above, by logarithms
    assert 0.85 < values[-1] <= 1


def test_the_narrowest_distribution_keeps_to_its_sizes():
    config = WideConfig(real_share=0.0, max_agents=10, max_examples=20, test_examples=1)
    wide = WideProblems(config, 0)
    tasks = [wide.training(number).task for number in range(30)]
    assert max(task.agents for task in tasks) == 10
    assert max(int(task.train.counts.sum()) for task in tasks) == 20


def test_validation_takes_ten_or_twenty_rounds_and_ten_through_a_server():
    wide = WideProblems(WideConfig(real_share=0.0), seed=0)
    found = [wide.validation(number) for number in range(40)]
    assert {problem.rounds for problem in found} == {10, 20}
    assert {problem.rounds for problem in found if problem.network.server} == {10}


def test_every_problem_can_be_run(drawn):
    assert {problem.network.server for problem in drawn[:40]} == {True, False}
    optimizer = Transferable(TransferableConfig(), seeded(0)).requires_grad_(False)
    for number, problem in enumerate(drawn[:40]):
        task, network = problem.task, problem.network
        algorithm = problem.algorithm(optimizer)
        network.reset(seeded(number))
        state = run(algorithm, task, network, steps=1)
        assert state.weights.isfinite().all(), number
        assert state.weights.abs().max() > 0, number
