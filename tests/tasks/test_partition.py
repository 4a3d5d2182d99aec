"""Partitions: exact sizes, limits of the pool, and distributions of labels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.tasks.distribution import ClassImbalanced, DirichletAgents

PARTITIONS = [ClassImbalanced(10.0), DirichletAgents(0.5)]


def table(labels, classes):
    """Count labels by agent and class, `[agents, classes]`."""
    return torch.stack([torch.bincount(own, minlength=classes) for own in labels])


@pytest.mark.parametrize("partition", PARTITIONS)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    classes=st.integers(1, 5),
    scarce=st.booleans(),
)
def test_sizes_are_exact_and_within_the_limits_of_the_pool(partition, seed, sizes, classes, scarce):
    total = sum(sizes)
    available = torch.full((classes,), total)
    if scarce:
        available[0] = total // 2 + 1
    if classes == 1:
        available[0] = total
    labels = partition.labels(available, torch.tensor(sizes), seeded(seed))
    counts = table(labels, classes)
    assert counts.sum(1).tolist() == sizes
    assert (counts.sum(0) <= available).all()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_labels_follow_the_seed(partition):
    available, sizes = torch.full((5,), 1000), torch.full((6,), 20)
    first, again, other = (
        torch.cat(partition.labels(available, sizes, seeded(seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_pool_that_is_too_small_is_an_error(partition):
    with pytest.raises(ValueError, match=r"^pool: got 59 examples, but a task needs 60"):
        partition.labels(torch.tensor([30, 29]), torch.tensor([20, 40]), seeded(0))


@pytest.mark.parametrize("partition", [ClassImbalanced(1000.0), DirichletAgents(1000.0)])
def test_a_class_that_is_too_rare_is_an_error_that_names_it(partition):
    with pytest.raises(
        ValueError, match=r"^pool: got 1 examples of the task's class 1, .* wanted [1-9]\d+"
    ):
        partition.labels(torch.tensor([200, 1, 200]), torch.tensor([50, 50]), seeded(0))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_concentrations_are_positive_and_finite(value):
    arguments = torch.tensor([9, 9]), torch.tensor([3]), seeded(0)
    with pytest.raises(ValueError, match=r"^concentration: got"):
        ClassImbalanced(value).labels(*arguments)
    with pytest.raises(ValueError, match=r"^alpha: got"):
        DirichletAgents(value).labels(*arguments)


def test_class_imbalanced_tasks_differ_in_their_label_distribution():
    available, sizes = torch.full((5,), 10**6), torch.full((20,), 50)
    shares = torch.stack(
        [
            table(ClassImbalanced(10.0).labels(available, sizes, seeded(seed)), 5).sum(0) / 1000
            for seed in range(200)
        ]
    )
    # Dirichlet(10, …, 10) over 5 classes: mean 1/5, variance (1/5)(4/5)/51, plus 0.16/1000 of counts.
    assert (shares.mean(0) - 0.2).abs().max() < 0.02
    expected = (0.16 / 51 + 0.16 / 1000) ** 0.5
    assert 0.85 * expected < shares.std(0).mean() < 1.15 * expected


def test_class_imbalanced_labels_are_spread_evenly_over_the_agents():
    available, sizes = torch.full((4,), 10**6), torch.full((50,), 60)
    counts = table(ClassImbalanced(3.0).labels(available, sizes, seeded(5)), 4).double()
    share = counts.sum(0) / counts.sum()
    assert share.max() > 1.5 * share.min()
    # Dealt at random, each agent's counts are hypergeometric: χ² with 49 · 3 degrees of freedom.
    statistic = float(((counts - 60 * share).square() / (60 * share)).sum())
    assert 95 < statistic < 210


def test_a_small_alpha_gives_heterogeneous_agents_and_a_large_one_similar_agents():
    available, sizes = torch.full((5,), 10**6), torch.full((200,), 60)

    def largest_share(alpha):
        counts = table(DirichletAgents(alpha).labels(available, sizes, seeded(6)), 5)
        assert (counts.sum(1) == 60).all()
        return (counts.max(1).values / 60).mean()

    assert largest_share(0.05) > 0.85
    assert 0.45 < largest_share(1.0) < 0.6
    assert largest_share(1000.0) < 0.35


def test_agents_of_a_dirichlet_partition_prefer_different_classes():
    available, sizes = torch.full((5,), 10**6), torch.full((400,), 60)
    counts = table(DirichletAgents(0.3).labels(available, sizes, seeded(7)), 5)
    assert (counts.sum(0) / counts.sum() - 0.2).abs().max() < 0.05
    assert len({int(label) for label in counts.argmax(1)}) == 5


def test_an_agents_labels_are_in_random_order():
    available, sizes = torch.full((2,), 10**6), torch.full((1,), 4000)
    for partition in (ClassImbalanced(1000.0), DirichletAgents(1000.0)):
        (labels,) = partition.labels(available, sizes, seeded(8))
        halves = labels[:2000].double().mean(), labels[2000:].double().mean()
        assert abs(halves[0] - halves[1]) < 0.07
