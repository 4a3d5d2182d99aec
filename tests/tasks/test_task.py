"""Padded examples: mini-batches, padding, pooling; tasks: checks of their examples, weights of agents."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import real_examples, seeded
from random_data import task as draw_task

from fedsurf.common.streams import Streams
from fedsurf.tasks.task import Examples, Task


def numbered(counts, size):
    """Return examples whose only feature is 100 · agent + position, and whose label is the position."""
    agents, position = len(counts), torch.arange(size)
    x = 100.0 * torch.arange(agents)[:, None] + position
    mask = position < torch.tensor(counts)[:, None]
    if mask.all():
        return Examples(x[:, :, None], position.expand(agents, size))
    return Examples(x[:, :, None], position.expand(agents, size), mask)


@given(st.integers(0, 1000), st.lists(st.integers(2, 6), min_size=1, max_size=4))
def test_a_mini_batch_has_different_real_examples_of_its_agent(seed, counts):
    batch = numbered(counts, 6).draw(2, Streams(seed, range(len(counts))))
    assert batch.x.shape == (len(counts), 2, 1)
    assert batch.mask is None
    for agent, count in enumerate(counts):
        ids = batch.x[agent, :, 0].tolist()
        assert ids[0] != ids[1]
        for number, label in zip(ids, batch.y[agent].tolist(), strict=True):
            assert 100 * agent <= number < 100 * agent + count
            assert number - 100 * agent == label


def test_a_mini_batch_of_all_examples_is_a_permutation_of_them():
    batch = numbered([5, 5], 5).draw(5, Streams(0, range(2)))
    assert batch.x[:, :, 0].sort(1).values.tolist() == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]]


def test_mini_batches_are_uniform_over_real_examples_and_pairs_of_them():
    many, pairs = numbered([4] * 3000, 7), torch.zeros(7, 7)
    batch = many.draw(2, Streams(1, range(3000))).y
    pairs.index_put_((batch[:, 0], batch[:, 1]), torch.ones(3000), accumulate=True)
    assert pairs[4:].sum() == pairs[:, 4:].sum() == pairs.diagonal().sum() == 0
    # 12 ordered pairs, 250 expected of each, standard deviation 15: χ² with 11 degrees of freedom.
    statistic = (pairs[:4, :4] - 250).square().sum() - 4 * 250**2
    assert float(statistic) / 250 < 31.3  # exceeded with chance 0.001


def test_each_agent_draws_its_own_mini_batch():
    batch = numbered([10] * 20, 10).draw(3, Streams(2, range(20)))
    assert len({tuple(row) for row in batch.y.tolist()}) > 10


def test_the_same_streams_draw_the_same_mini_batch():
    data = draw_examples(0, size=20)
    first, again, other = (data.draw(4, Streams(seed, range(3))) for seed in (3, 3, 4))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)


@given(st.integers(0, 1000), st.lists(st.integers(2, 6), min_size=1, max_size=5), st.data())
def test_an_agents_mini_batch_depends_on_its_own_stream_and_examples_alone(seed, counts, data):
    places = st.lists(st.sampled_from(range(len(counts))), min_size=1, unique=True)
    rows = torch.tensor(sorted(data.draw(places)))
    every, draws = numbered(counts, 6), Streams(seed, range(len(counts)))
    together = every.draw(2, draws)
    for part in (every.of(rows), every.trimmed(rows)):  # with more padding, or with less
        apart = part.draw(2, draws[rows])
        assert torch.equal(apart.x, together.x[rows])
        assert torch.equal(apart.y, together.y[rows])


@pytest.mark.parametrize("size", [0, -1, 4])
def test_a_mini_batch_larger_than_the_smallest_agent_is_an_error(size):
    with pytest.raises(ValueError, match=rf"^batch_size: got {size}, .* between 1 and 3"):
        numbered([5, 3, 4], 5).draw(size, Streams(0, range(3)))


def test_counts_are_the_numbers_of_real_examples():
    assert numbered([5, 3, 4], 5).counts.tolist() == [5, 3, 4]
    assert numbered([5, 5], 5).counts.tolist() == [5, 5]
    assert numbered([5, 5], 5).counts.dtype == torch.int64


@given(st.integers(0, 1000), st.booleans())
def test_the_mean_is_over_each_agents_real_examples(seed, masked):
    data = draw_examples(seed, masked=masked)
    values = data.x[:, :, 0] + 1  # padding would count with a 1
    expected = [sum(x[0] + 1 for x, _ in own) / len(own) for own in real_examples(data)]
    torch.testing.assert_close(
        data.mean(values), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


@given(st.integers(0, 1000), st.booleans())
def test_pooled_examples_are_all_real_ones_in_order(seed, masked):
    data = draw_examples(seed, masked=masked)
    pool = data.pooled()
    assert pool.agents == 1
    assert pool.mask is None
    expected = [pair for own in real_examples(data) for pair in own]
    assert real_examples(pool) == [expected]


@given(st.integers(0, 1000), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_padding_keeps_every_agents_examples(seed, sizes):
    random = seeded(seed)
    xs = [torch.randn(size, 2, generator=random) for size in sizes]
    ys = [torch.randint(3, (size,), generator=random) for size in sizes]
    padded = Examples.pad(xs, ys)
    assert padded.counts.tolist() == sizes
    assert (padded.mask is None) == (len(set(sizes)) == 1)
    expected = [list(zip(x.tolist(), y.tolist(), strict=True)) for x, y in zip(xs, ys, strict=True)]
    assert real_examples(padded) == expected
    if padded.mask is not None:
        assert padded.x[~padded.mask].abs().sum() == 0
        assert padded.y[~padded.mask].sum() == 0


def test_padding_keeps_further_dimensions_and_types():
    padded = Examples.pad(
        [torch.ones(1, 2, 3).double(), torch.ones(2, 2, 3).double()],
        [torch.zeros(1).long(), torch.zeros(2).long()],
    )
    assert padded.x.shape == (2, 2, 2, 3)
    assert padded.x.dtype == torch.float64


@pytest.mark.parametrize("masked", [False, True])
def test_examples_of_some_agents_are_selected_in_order(masked):
    data = draw_examples(2, agents=5, masked=masked)
    some = data.of(torch.tensor([3, 0]))
    everybody = real_examples(data)
    assert real_examples(some) == [everybody[3], everybody[0]]


def test_agents_have_no_examples_beyond_their_extents():
    data = draw_examples(2, agents=5, size=7, masked=True)
    extents = list(data.extents)
    assert extents != data.counts.tolist()
    for agent, extent in enumerate(extents):
        assert data.mask[agent, extent - 1]
        assert not data.mask[agent, extent:].any()
    short = data.cropped(4)
    assert short.x.shape[1] == 4
    assert real_examples(short)[0] == real_examples(data)[0][: int(data.mask[0, :4].sum())]
    equal = draw_examples(2, agents=5, size=7)
    assert equal.extents == (7,) * 5
    assert equal.cropped(7).mask is None


def test_padding_refuses_labels_that_do_not_match_the_features():
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^ys: got labels of 1 agents, but xs has 2"):
        Examples.pad([x, x], [y])
    with pytest.raises(ValueError, match=r"^ys: got \[2, 1\] labels per agent, .* \[2, 2\]"):
        Examples.pad([x, x], [y, y[:1]])


def test_changing_the_type_keeps_labels_and_mask():
    data = draw_examples(1, masked=True)
    single = data.to(torch.float32)
    assert single.x.dtype == torch.float32
    assert torch.equal(single.y, data.y)
    assert torch.equal(single.mask, data.mask)


def with_entry(tensor, place, value):
    changed = tensor.clone()
    changed[place] = value
    return changed


GOOD = draw_examples(0, agents=2, size=3, features=2, classes=3)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": with_entry(GOOD.x, (1, 2, 0), float("nan"))}, r"x: .* NaN .*agent 1, example 2"),
        (
            {"x": with_entry(GOOD.x, (0, 1, 1), float("inf"))},
            r"x: .* infinite .*agent 0, example 1",
        ),
        (
            {"x": with_entry(GOOD.x, (0, 0, 0), -float("inf"))},
            r"x: .* infinite .*agent 0, example 0",
        ),
        ({"x": GOOD.y[:, :, None]}, r"x: got torch.int64 .* must be floating point"),
        ({"x": GOOD.x[:, :, 0]}, r"x: got .*shape \[2, 3\].* \[agents, examples, features\]"),
        ({"y": with_entry(GOOD.y, (1, 0), 3)}, r"y: got label 3 .*agent 1, .* between 0 and 2"),
        ({"y": with_entry(GOOD.y, (0, 2), -1)}, r"y: got label -1 .*agent 0, example 2"),
        ({"y": GOOD.y.to(torch.int32)}, r"y: got torch.int32 .* must be int64"),
        ({"y": GOOD.y.double()}, r"y: got torch.float64 .* must be int64"),
        ({"y": GOOD.y[:, :2]}, r"y: got .*shape \[2, 2\].* shape \[2, 3\]"),
        ({"mask": torch.ones(2, 3)}, r"mask: got torch.float32 .* must be bool"),
        ({"mask": torch.ones(2, 2).bool()}, r"mask: got .*shape \[2, 2\].* shape \[2, 3\]"),
        ({"mask": torch.tensor([[True] * 3, [False] * 3])}, r": agents \[1\] have no examples"),
        ({"x": GOOD.x[:, :0], "y": GOOD.y[:, :0]}, r": agents \[0, 1\] have no examples"),
        ({"x": GOOD.x[:0], "y": GOOD.y[:0]}, r": .*no examples"),
    ],
)
def test_wrong_examples_are_refused_by_name(part, change, message):
    parts = {"train": GOOD, "test": GOOD, part: replace(GOOD, **change)}
    with pytest.raises(ValueError, match=rf"^{part}[.]?{message}"):
        Task(**parts, classes=3)


def test_infinities_that_cancel_are_found_and_large_features_are_finite():
    both = with_entry(GOOD.x, (0, 1, 1), float("inf"))
    both[1, 0, 0] = -float("inf")
    with pytest.raises(ValueError, match=r"^train.x: .* infinite .*agent 0, example 1"):
        Task(replace(GOOD, x=both), GOOD, 3)
    large = replace(GOOD, x=torch.full_like(GOOD.x, 1e308))
    assert large.x.sum().isinf()
    assert torch.equal(Task(large, GOOD, 3).train.x, large.x)


def test_training_and_test_part_must_be_of_the_same_agents_features_and_type():
    with pytest.raises(ValueError, match=r"^test: got examples of 3 agents, but train has 2"):
        Task(GOOD, draw_examples(1, agents=3, features=2), 3)
    with pytest.raises(ValueError, match=r"^test: got examples of shape \[4\], .* shape \[2\]"):
        Task(GOOD, draw_examples(1, agents=2, features=4), 3)
    with pytest.raises(ValueError, match=r"^test\.x: got torch.float32, .* torch.float64"):
        Task(GOOD, GOOD.to(torch.float32), 3)


@pytest.mark.parametrize("classes", [0, -2])
def test_a_task_has_at_least_one_class(classes):
    with pytest.raises(ValueError, match=rf"^classes: got {classes}"):
        Task(GOOD, GOOD, classes)


def test_agents_weigh_the_same_or_by_their_training_examples():
    train = Examples.pad(
        [torch.zeros(size, 2, dtype=torch.float64) for size in (1, 2, 5)],
        [torch.zeros(size, dtype=torch.int64) for size in (1, 2, 5)],
    )
    task = Task(train, draw_examples(2, features=2, classes=1), 1)
    torch.testing.assert_close(task.agent_weights(), torch.full((3,), 1 / 3).double())
    torch.testing.assert_close(
        task.agent_weights("examples"), torch.tensor([1 / 8, 2 / 8, 5 / 8]).double()
    )
    with pytest.raises(ValueError, match=r"^weighting: got 'size'"):
        task.agent_weights("size")


def test_with_equal_sizes_both_weightings_are_the_same():
    task = draw_task(3)
    torch.testing.assert_close(task.agent_weights("examples"), task.agent_weights("uniform"))


def test_a_task_in_another_type_is_the_same_task():
    task = draw_task(4, masked=True)
    single = task.to(torch.float32)
    assert single.agent_weights().dtype == torch.float32
    assert (single.agents, single.features, single.classes) == (4, 3, 3)
    for old, new in ((task.train, single.train), (task.test, single.test)):
        torch.testing.assert_close(new.x, old.x.float())
        assert torch.equal(new.mask, old.mask)
