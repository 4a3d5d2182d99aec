"""Groups of agents of similar size."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.tasks import groups
from fedsurf.tasks.task import Examples


def of_sizes(sizes, features):
    """Return examples of these sizes, which take no memory."""
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return Examples(
        torch.zeros(1).expand(*mask.shape, features), torch.zeros_like(mask).long(), mask
    )


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.integers(1, 300),
    st.sampled_from([0, 10_000, 4_000_000]),
)
def test_agents_are_divided_by_size_with_little_padding(sizes, features, ordinary):
    counts = torch.tensor(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MAX_ORDINARY_SIZE", ordinary)
        found = groups.group_agents(of_sizes(sizes, features))
    assert sorted(torch.cat(found).tolist()) == list(range(len(sizes)))
    assert all(agents.tolist() == sorted(agents.tolist()) for agents in found)
    if len(sizes) * max(sizes) * features <= ordinary:
        assert len(found) == 1
        return
    for agents in found:
        own = counts[agents]
        limit = max(groups.MAX_PADDING, groups.MAX_PADDING_SHARE * int(own.sum()) * features)
        assert int((own.max() - own).sum()) * features <= limit
    spans = [(int(counts[agents].max()), int(counts[agents].min())) for agents in found]
    assert all(low >= high for (_, low), (high, _) in itertools.pairwise(spans))


def test_problems_of_meta_training_and_agents_of_one_size_are_one_group():
    sizes = [1] * 99 + [100]
    assert len(groups.group_agents(of_sizes(sizes, 320))) == 1
    assert len(groups.group_agents(of_sizes([100 * size for size in sizes], 320))) == 2
    for sizes, features in (([10_000] * 50, 64), ([46, 45] * 50, 10_000)):
        (every,) = groups.group_agents(of_sizes(sizes, features))
        assert torch.equal(every, torch.arange(len(sizes)))


def test_a_group_is_padded_to_its_largest_agent_only(monkeypatch):
    monkeypatch.setattr(groups, "MAX_ORDINARY_SIZE", 0)
    monkeypatch.setattr(groups, "MAX_PADDING", 20)
    monkeypatch.setattr(groups, "MAX_PADDING_SHARE", 0.0)
    rows = [torch.randn(size, 4) for size in (9, 1, 30, 8, 2, 28)]
    examples = Examples.pad(rows, [torch.zeros(len(own)).long() for own in rows])
    members = groups.group_agents(examples)
    assert [agents.tolist() for agents in members] == [[2, 5], [0, 3], [1, 4]]
    parts = groups.split_examples(examples, members)
    assert [part.x.shape[1] for part in parts] == [30, 9, 2]
    for part, agents in zip(parts, members, strict=True):
        for place, agent in enumerate(agents.tolist()):
            assert torch.equal(part.x[place][part.mask[place]], rows[agent])
