"""Tasks: checks of their examples, and weights of their agents."""

from dataclasses import replace

import pytest
import torch
from random_data import examples as draw_examples
from random_data import task as draw_task

from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


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
