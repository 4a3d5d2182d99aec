"""Examples without padding: equal to padded ones."""

import pytest
import random_data
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.analysis.interventions import (
    blank_features,
    rename_labels,
    rotate_features,
    shuffle_labels,
)
from fedsurf.common.streams import Streams
from fedsurf.tasks.groups import UnpaddedExamples
from fedsurf.tasks.task import Examples, Task

FEATURES, CLASSES = 3, 4


def both(sizes):
    """Return the same examples of agents of these sizes, unpadded and padded."""
    random, total = random_data.seeded(5), sum(sizes)
    rows = torch.randn(total, FEATURES, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (total,), generator=random)
    return UnpaddedExamples(rows, labels, sizes), Examples.pad(
        rows.split(sizes), labels.split(sizes)
    )


def assert_same(found, wanted):
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.y, wanted.y)
    assert (found.mask is None) == (wanted.mask is None)
    assert wanted.mask is None or torch.equal(found.mask, wanted.mask)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_unpadded_examples_equal_padded_ones(sizes, data):
    unpadded, padded = both(sizes)
    assert_same(unpadded, padded)
    assert_same(unpadded.pooled(), padded.pooled())
    assert_same(unpadded.to(torch.float32), padded.to(torch.float32))
    for name in ("agents", "features", "shape", "dtype", "extents", "sizes"):
        assert getattr(unpadded, name) == getattr(padded, name)
    assert torch.equal(unpadded.counts, padded.counts)
    places = st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True)
    agents = torch.tensor(data.draw(places))
    found, wanted = unpadded.trimmed(agents), padded.trimmed(agents)
    assert found.x.shape[1] == wanted.x.shape[1] == max(sizes[agent] for agent in agents)
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.y, wanted.y)
    assert found.mask is None or torch.equal(found.mask, wanted.mask)


def test_mini_batches_and_means_are_the_same():
    unpadded, padded = both([5, 2, 7])
    draws = Streams(1, range(3))
    assert_same(unpadded.draw(2, draws), padded.draw(2, draws))
    values = torch.arange(21.0).reshape(3, 7)
    assert torch.equal(unpadded.mean(values), padded.mean(values))


def test_every_row_has_a_place():
    unpadded, padded = both([2, 1, 3])
    places = [unpadded.place(0, row) for row in range(6)]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    for row, place in enumerate(places):
        assert torch.equal(padded.x[place], unpadded.rows[row])


def test_a_task_names_the_agent_of_a_wrong_example():
    unpadded, _ = both([2, 1, 3])
    Task(unpadded, unpadded, CLASSES)
    unpadded.rows[4, 1] = torch.nan
    with pytest.raises(ValueError, match=r"^train\.x: .* \(agent 2, example 1\)"):
        Task(unpadded, unpadded, CLASSES)
    unpadded.rows[4, 1] = 0
    unpadded.labels[2] = CLASSES
    with pytest.raises(ValueError, match=r"^train\.y: got label 4 \(agent 1, example 0\)"):
        Task(unpadded, unpadded, CLASSES)


def test_a_task_refuses_agents_without_examples():
    rows, labels = torch.zeros(3, FEATURES), torch.zeros(3, dtype=torch.int64)
    unpadded = UnpaddedExamples(rows, labels, [2, 0, 1])
    with pytest.raises(ValueError, match=r"^train: agents \[1\] have no examples"):
        Task(unpadded, unpadded, CLASSES)


def test_nothing_is_padded_for_repr_or_checks():
    unpadded, _ = both([4, 1])
    Task(unpadded, unpadded, CLASSES)
    assert repr(unpadded) == "UnpaddedExamples(5 rows of 2 agents)"
    assert "_padded" not in vars(unpadded)
    assert unpadded.x.shape == (2, 4, FEATURES)
    assert "_padded" in vars(unpadded)


@pytest.mark.parametrize(("rows", "labels"), [(4, 3), (3, 4), (4, 4)])
def test_rows_without_an_agent_are_refused(rows, labels):
    with pytest.raises(ValueError, match=r"^sizes: got 3 rows of all agents, but there are"):
        UnpaddedExamples(torch.zeros(rows, 2), torch.zeros(labels, dtype=torch.int64), [2, 1])


def test_examples_of_agents_of_one_size_are_not_copied():
    equal, _ = both([4, 4, 4])
    assert equal.x.data_ptr() == equal.rows.data_ptr()
    assert equal.y.data_ptr() == equal.labels.data_ptr()
    assert equal.mask is None


@pytest.mark.parametrize(
    "intervention", [blank_features, shuffle_labels, rename_labels, rotate_features]
)
def test_interventions_do_the_same_to_unpadded_examples(intervention):
    unpadded, padded = both([2, 4])
    found, wanted = (
        intervention(Task(part, part, CLASSES), random_data.seeded(2))
        for part in (unpadded, padded)
    )
    assert_same(found.train, wanted.train)
    assert_same(found.test, wanted.test)
