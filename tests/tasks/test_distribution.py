"""Tasks drawn from a pool: exact sizes, no leaks between parts, labels that mean the same throughout."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import real_examples, seeded

from fedsurf.tasks.config import TaskConfig
from fedsurf.tasks.distribution import TaskDistribution, meta_tasks
from fedsurf.tasks.features import Features

SMALL = TaskConfig(agents=4, train_examples=5, test_examples=3)


def pool(each, classes=3, first=0):
    """Return examples whose features are their number and their true class."""
    y = torch.arange(classes).repeat(each)
    number = torch.arange(first, first + len(y))
    return torch.stack([number, y], 1).float(), y


def distribution(config, each=50, classes=3):
    return TaskDistribution(*pool(each, classes), classes, config)


def numbers(part):
    return [int(x[0]) for own in real_examples(part) for x, _ in own]


def meaning(part):
    """Return the pairs of a task's label and the true class behind it."""
    return {(y, int(x[1])) for own in real_examples(part) for x, y in own}


configs = st.builds(
    TaskConfig,
    agents=st.integers(1, 5),
    train_examples=st.integers(2, 5),
    test_examples=st.integers(1, 4),
    fewest_train_examples=st.none() | st.integers(1, 2),
    partition=st.sampled_from(["class-imbalanced", "dirichlet"]),
    concentration=st.sampled_from([0.5, 10.0]),
    alpha=st.sampled_from([0.1, 1.0]),
    classes_per_task=st.none() | st.integers(1, 3),
    permute_labels=st.booleans(),
    replacement=st.booleans(),
)


@given(config=configs, seed=st.integers(0, 10_000))
def test_every_task_has_exact_sizes_disjoint_parts_and_consistent_labels(config, seed):
    task = distribution(config, each=60).draw(seeded(seed))
    assert task.agents == config.agents
    fewest = config.fewest_train_examples or config.train_examples
    assert all(fewest <= count <= config.train_examples for count in task.train.counts.tolist())
    assert task.test.counts.tolist() == [config.test_examples] * config.agents
    train, test = numbers(task.train), numbers(task.test)
    assert not set(train) & set(test)
    if not config.replacement:
        assert len(set(train + test)) == len(train + test)
    pairs = meaning(task.train) | meaning(task.test)
    assert len({label for label, _ in pairs}) == len({true for _, true in pairs}) == len(pairs)
    assert task.classes == (config.classes_per_task or 3)


def test_the_papers_sizes_are_the_default():
    task = distribution(TaskConfig(), each=3000).draw(seeded(0))
    assert task.train.x.shape == (100, 45, 2)
    assert task.test.x.shape == (100, 15, 2)
    assert task.train.mask is task.test.mask is None


def test_labels_keep_their_meaning_unless_they_are_permuted():
    for seed in range(10):
        task = distribution(SMALL).draw(seeded(seed))
        assert all(label == true for label, true in meaning(task.train) | meaning(task.test))


def test_labels_are_permuted_differently_in_each_task_and_equally_in_both_parts():
    config = replace(SMALL, permute_labels=True, agents=10)
    renamings = Counter()
    for seed in range(60):
        task = distribution(config).draw(seeded(seed))
        pairs = meaning(task.train) | meaning(task.test)
        assert len(pairs) == 3
        renamings[tuple(sorted(pairs))] += 1
    assert len(renamings) == 6
    assert max(renamings.values()) < 25


def test_tasks_of_fewer_classes_choose_them_at_random_and_number_them_in_order():
    config = replace(SMALL, classes_per_task=2, agents=8)
    chosen = Counter()
    for seed in range(40):
        task = distribution(config, classes=4).draw(seeded(seed))
        assert task.classes == 2
        pairs = sorted(meaning(task.train) | meaning(task.test))
        assert [label for label, _ in pairs] == [0, 1]
        assert pairs[0][1] < pairs[1][1]
        chosen[pairs[0][1], pairs[1][1]] += 1
    assert len(chosen) == 6


def test_tasks_of_fewer_classes_can_have_permuted_labels_too():
    config = replace(SMALL, classes_per_task=2, permute_labels=True, agents=8)
    found = set()
    for seed in range(80):
        task = distribution(config, classes=3).draw(seeded(seed))
        pairs = sorted(meaning(task.train) | meaning(task.test))
        assert [label for label, _ in pairs] == [0, 1]
        found.add((pairs[0][1], pairs[1][1]))
    assert len(found) == 6


def test_numbers_of_training_examples_can_be_drawn():
    config = replace(SMALL, agents=60, fewest_train_examples=2)
    task = distribution(config, each=400).draw(seeded(0))
    assert set(task.train.counts.tolist()) == {2, 3, 4, 5}
    assert task.train.mask is not None
    assert task.test.mask is None


@pytest.mark.parametrize("partition", ["class-imbalanced", "dirichlet"])
def test_label_distributions_differ_from_task_to_task(partition):
    config = replace(SMALL, agents=20, partition=partition)
    drawn = {
        tuple(torch.bincount(task.train.y.flatten(), minlength=3).tolist())
        for task in (distribution(config, each=500).draw(seeded(seed)) for seed in range(10))
    }
    assert len(drawn) > 7


def test_the_same_seed_draws_the_same_bits():
    source = distribution(SMALL)
    first, again, other = (source.draw(seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.train.y, again.train.y)
    assert torch.equal(first.test.x, again.test.x)
    assert torch.equal(first.test.y, again.test.y)
    assert not torch.equal(first.train.x, other.train.x)


def test_a_task_can_use_every_example_of_its_pool():
    config = replace(SMALL, concentration=1000.0)
    task = TaskDistribution(*pool(32, 1), 1, config).draw(seeded(0))
    assert sorted(numbers(task.train) + numbers(task.test)) == list(range(32))


def test_a_pool_that_is_too_small_is_an_error():
    with pytest.raises(ValueError, match=r"^pool: got 30 examples, but a task needs 32"):
        distribution(SMALL, each=10).draw(seeded(0))


@pytest.mark.parametrize(("train", "test"), [(45, 15), (1, 100), (100, 1), (3, 3)])
@pytest.mark.parametrize("each", [2, 3, 7])
def test_with_replacement_even_tiny_pools_serve_disjoint_parts(each, train, test):
    config = replace(SMALL, train_examples=train, test_examples=test, agents=3, replacement=True)
    for seed in range(5):
        task = distribution(config, each=each).draw(seeded(seed))
        assert task.train.x.shape[:2] == (3, train)
        assert task.test.x.shape[:2] == (3, test)
        assert not set(numbers(task.train)) & set(numbers(task.test))


def test_with_replacement_the_pool_is_divided_as_the_examples_are():
    config = replace(SMALL, agents=500, train_examples=45, test_examples=15, replacement=True)
    task = distribution(config, each=40).draw(seeded(0))
    assert len(set(numbers(task.train))) == 90
    assert len(set(numbers(task.test))) == 30


def test_with_replacement_a_class_of_one_example_is_an_error_that_names_the_pool():
    x, y = pool(20, 2)
    lone = TaskDistribution(
        torch.cat([x, torch.tensor([[99.0, 2.0]])]),
        torch.cat([y, torch.tensor([2])]),
        3,
        replace(SMALL, agents=30, replacement=True),
    )
    with pytest.raises(
        ValueError, match=r"^pool: got 1 examples of the task's class 2, .* needs 2"
    ):
        lone.draw(seeded(0))


def test_with_replacement_a_class_that_no_agent_asks_for_may_be_missing():
    absent = TaskDistribution(
        *pool(20, 1), 2, TaskConfig(2, 3, 2, partition="dirichlet", alpha=0.05, replacement=True)
    )
    for seed in range(10):
        task = absent.draw(seeded(seed))
        assert task.classes == 2
        assert task.train.y.unique().tolist() == task.test.y.unique().tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": 0}, r"^agents: got 0"),
        ({"train_examples": 0}, r"^train_examples: got 0"),
        ({"test_examples": -1}, r"^test_examples: got -1"),
        ({"fewest_train_examples": 0}, r"^fewest_train_examples: got 0"),
        ({"fewest_train_examples": 6}, r"^fewest_train_examples: got 6, .* between 1 and .*5"),
        ({"classes_per_task": 0}, r"^classes_per_task: got 0"),
        ({"classes_per_task": 4}, r"^classes_per_task: got 4, .* between 1 and 3"),
        ({"partition": "even"}, r"^partition: got 'even'"),
    ],
)
def test_impossible_configurations_are_errors_that_name_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        distribution(replace(SMALL, **change))


def test_the_pool_must_have_a_label_of_a_class_for_each_example():
    x, y = pool(5)
    with pytest.raises(ValueError, match=r"^y: got labels from 0 to 2, .* between 0 and 1"):
        TaskDistribution(x, y, 2, SMALL)
    with pytest.raises(ValueError, match=r"^y: got labels from -1 to"):
        TaskDistribution(x, y - 1, 3, SMALL)
    with pytest.raises(ValueError, match=r"^y: got torch.int64 of shape \[14\], .* \[15\]"):
        TaskDistribution(x, y[1:], 3, SMALL)


def features():
    train, test = pool(40), pool(30, first=1000)
    return Features("numbers", *train, *test, 3)


@given(seed=st.integers(0, 1000))
def test_training_validation_and_test_tasks_share_no_example(seed):
    config = replace(SMALL, agents=2)
    tasks = meta_tasks(features(), config, validation_share=0.4, seed=seed)
    seen = []
    for source in (tasks.train, tasks.validation, tasks.test):
        seen.append(set())
        for number in range(20):
            task = source.draw(seeded(number))
            seen[-1] |= {*numbers(task.train), *numbers(task.test)}
    train, validation, test = seen
    assert not train & validation
    assert max(train | validation) < 1000 <= min(test)
    assert len(train) > 50
    assert len(validation) > 35


def test_the_validation_share_is_taken_class_by_class():
    config = TaskConfig(1, 47, 1, concentration=10.0, replacement=True)
    # Of 40 examples of a class that is 9.6, which is rounded.
    tasks = meta_tasks(features(), config, validation_share=0.24, seed=3)
    counts = []
    for source in (tasks.train, tasks.validation):
        found = {}
        for number in range(60):
            task = source.draw(seeded(number))
            for part in (task.train, task.test):
                found.update((int(x[0]), label) for own in real_examples(part) for x, label in own)
        counts.append(Counter(found.values()))
    assert counts[0] == {0: 30, 1: 30, 2: 30}
    assert counts[1] == {0: 10, 1: 10, 2: 10}


def test_the_division_follows_the_seed():
    def validation_numbers(seed):
        tasks = meta_tasks(features(), replace(SMALL, agents=6), seed=seed)
        return numbers(tasks.validation.draw(seeded(0)).train)

    assert validation_numbers(1) == validation_numbers(1)
    assert set(validation_numbers(1)) != set(validation_numbers(2))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_the_validation_share_lies_between_0_and_1(share):
    with pytest.raises(ValueError, match=r"^validation_share: got"):
        meta_tasks(features(), SMALL, validation_share=share)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("partition", ["class-imbalanced", "dirichlet"])
def test_a_class_without_examples_is_named_without_advice_on_replacement(partition, replacement):
    x, y = torch.zeros(400, 3), torch.arange(400) % 2
    config = TaskConfig(
        agents=10,
        train_examples=20,
        test_examples=10,
        partition=partition,
        alpha=10.0,
        replacement=replacement,
    )
    with pytest.raises(ValueError, match=r"^pool: got 0 examples of the task's class 2, .*leave"):
        TaskDistribution(x, y, 3, config).draw(seeded(0))
    with pytest.raises(ValueError, match=r"^pool: got no examples, but a task needs 300$"):
        TaskDistribution(x[:0], y[:0], 3, config).draw(seeded(0))


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (torch.zeros(9, 2), torch.zeros(9), ValueError, r"^y: got torch.float32 of shape"),
        (torch.zeros(9, 2), torch.zeros(9).numpy(), TypeError, r"^y: got ndarray, but it must"),
        (torch.zeros(9, 2).numpy(), torch.zeros(9), TypeError, r"^x: got ndarray, but it must"),
        (
            torch.zeros(9),
            torch.zeros(9).long(),
            ValueError,
            r"^x: got torch.float32 of shape \[9\]",
        ),
        (torch.zeros(9, 2, 2), torch.zeros(9).long(), ValueError, r"^x: .* of shape \[9, 2, 2\]"),
        (torch.zeros(9, 2).int(), torch.zeros(9).long(), ValueError, r"^x: got torch.int32"),
    ],
)
def test_a_pool_must_have_features_and_whole_labels(x, y, error, message):
    with pytest.raises(error, match=message):
        TaskDistribution(x, y, 2, SMALL)
