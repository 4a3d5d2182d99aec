"""Groups of agents of similar size: the same results in less time."""

import itertools

import numpy as np
import pytest
import random_data
import torch
from decentralised import lopsided_graph
from hypothesis import given
from hypothesis import strategies as st

import fedsurf
from fedsurf import FederatedClassifier
from fedsurf.estimator.fit import alone_accuracy
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks import groups
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.groups import UnpaddedExamples
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable
from fedsurf.unrolled.transferable.local import FeatureRangeError
from fedsurf.unrolled.transferable.newton import LocalProblem

AGENTS, CLASSES = 6, 3
SIZES = [9, 1, 30, 8, 2, 28]


@pytest.fixture
def many(monkeypatch):
    """Make groups of agents of about one size in the smallest problems, too."""
    monkeypatch.setattr(groups, "MAX_ORDINARY_SIZE", 0)
    monkeypatch.setattr(groups, "MAX_PADDING", 20)
    monkeypatch.setattr(groups, "MAX_PADDING_SHARE", 0.0)


def unequal(features, *, gaps=False):
    """Draw a task of agents of these sizes; with gaps, padding is also before and between examples."""
    random = random_data.seeded(3)
    xs = [torch.randn(size, features, generator=random, dtype=torch.float64) for size in SIZES]
    ys = [torch.randint(CLASSES, (size,), generator=random) for size in SIZES]
    examples = Examples.pad([x + 2 * y[:, None] for x, y in zip(xs, ys, strict=True)], ys)
    if gaps:
        mask = examples.mask & (torch.arange(examples.mask.shape[1]) % 4 != 0)
        mask[:, 1] = examples.mask[:, 1]
        mask[1, 0] = True
        x, y = examples.x * mask[:, :, None], examples.y * mask
        examples = Examples(x, y, mask)
    return Task(examples, examples, CLASSES)


def of_sizes(sizes, features):
    """Return examples of these sizes, which take no memory."""
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return Examples(
        torch.zeros(1).expand(*mask.shape, features), torch.zeros_like(mask).long(), mask
    )


def optimizer():
    return Transferable(fedsurf.load().config, random_data.seeded(1)).double()


def run(task, *, star=False, learned=None, **options):
    """Return the last state of a run."""
    over = Network(lopsided_graph(), "metropolis")
    if star:
        over = StarNetwork(AGENTS, 4, random_data.seeded(4))
    learned = optimizer().requires_grad_(False) if learned is None else learned
    algorithm = learned.on(SoftmaxHead(task.features, CLASSES), 7, **options)
    state = algorithm.init(task, over, random_data.seeded(0))
    for _ in range(algorithm.steps):
        state = algorithm.step(state, task, over, random_data.seeded(1))
    return state


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


def test_a_group_is_padded_to_its_largest_agent_only(many):
    task = unequal(4)
    members = groups.group_agents(task.train)
    assert [agents.tolist() for agents in members] == [[2, 5], [0, 3], [1, 4]]
    parts = groups.split_examples(task.train, members)
    assert [part.x.shape[1] for part in parts] == [30, 9, 2]
    for part, agents in zip(parts, members, strict=True):
        for place, agent in enumerate(agents.tolist()):
            real = part.mask[place]
            assert torch.equal(part.x[place][real], task.train.x[agent][task.train.mask[agent]])


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"ease_rare": True, "weigh_agents": True}, {"scaling": "features"}, {"batch_size": 30}],
)
@pytest.mark.parametrize("features", [5, 40])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_run_in_groups_is_that_of_all_at_once(request, gaps, features, options, star):
    task = unequal(features, gaps=gaps)
    alone = run(task, star=star, **options)
    assert len(alone.groups) == 1
    request.getfixturevalue("many")
    found = run(task, star=star, **options)
    assert len(found.groups) >= 3
    assert alone.weights.abs().max() > 0.01
    for name in (
        "weights",
        "sums",
        "progress",
        "moments",
        "own_sums",
        "own_moments",
        "confidence_sums",
    ):
        torch.testing.assert_close(getattr(found, name), getattr(alone, name))
    for name in ("counts", "centre", "unit"):
        pair = getattr(found, name), getattr(alone, name)
        assert pair == (None, None) or torch.allclose(*pair)


@pytest.mark.parametrize("star", [False, True])
def test_derivatives_are_the_same(request, star):
    def derivatives():
        learned = without_confidence(optimizer())
        run(unequal(5), star=star, learned=learned).weights.square().sum().backward()
        return [value.grad for value in learned.parameters() if value.grad is not None]

    alone = derivatives()
    request.getfixturevalue("many")
    assert len(alone) == 8
    for found, wanted in zip(derivatives(), alone, strict=True):
        torch.testing.assert_close(found, wanted)


def without_confidence(learned):
    """Take away what is not meta-trained."""
    learned.confidence = None
    return learned


def test_mini_batches_of_groups_are_of_their_own_examples(many, monkeypatch):
    task, seen = unequal(5, gaps=True), []

    def batch(outlook, size, generator):
        found = plain(outlook, size, generator)
        seen.append((outlook.examples, found.examples))
        return found

    plain = LocalProblem.batch
    monkeypatch.setattr(LocalProblem, "batch", batch)
    state = run(task, batch_size=3)
    assert state.weights.isfinite().all()
    assert len(seen) == 7 * len(state.groups)
    for view, chosen in seen:
        for agent, count in enumerate(view.count[:, 0, 0].tolist()):
            own = view.x[agent][view.real[agent, :, 0] > 0]
            rows = chosen.x[agent][chosen.real[agent, :, 0] > 0]
            assert len(rows) == min(3, count)
            found = (rows[:, None] == own).all(2)
            assert (found.sum(1) == 1).all()  # its own, and each once
            assert (found.sum(0) <= 1).all()


def test_agents_alone_are_as_good_in_groups(request):
    pool = unequal(7).train.pooled()
    x, y, owner = pool.x[0].numpy(), pool.y[0].numpy(), np.repeat(np.arange(AGENTS), SIZES)
    alone = alone_accuracy(x, y, owner, x, y)
    request.getfixturevalue("many")
    assert alone_accuracy(x, y, owner, x, y) == alone


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_the_classifier_does_the_same_in_groups(request, graph):
    x, y = (
        part[0].numpy() for part in vars(unequal(7).train.pooled()).values() if part is not None
    )
    owner = np.repeat(np.arange(AGENTS), SIZES)
    model = FederatedClassifier(graph=graph, rounds=8)
    alone = model.fit(x, y, agents=owner)
    wanted = alone.coef_.copy(), {name: seen.copy() for name, seen in alone.trajectory_.items()}
    units = alone.units_.copy()
    request.getfixturevalue("many")
    found = model.fit(x, y, agents=owner)
    np.testing.assert_allclose(found.coef_, wanted[0], rtol=1e-6)
    np.testing.assert_allclose(found.units_, units)
    for name, seen in wanted[1].items():
        np.testing.assert_allclose(found.trajectory_[name], seen, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize(
    "options", [{"standardize": True}, {"standardize": False}, {"batch_size": 3}]
)
def test_nobody_is_padded_to_the_largest_of_all(many, monkeypatch, graph, options):
    def padded(_):
        raise AssertionError("padded to the largest agent")

    def trimmed(examples, agents):
        found = plain(examples, agents)
        sizes.append(found.y.numel())
        return found

    plain, sizes = UnpaddedExamples.trimmed, []
    monkeypatch.setattr(UnpaddedExamples, "trimmed", trimmed)
    monkeypatch.setattr(UnpaddedExamples, "_padded", property(padded))
    pool = unequal(7).train.pooled()
    x, y, owner = pool.x[0].numpy(), pool.y[0].numpy(), np.repeat(np.arange(AGENTS), SIZES)
    model = FederatedClassifier(graph=graph, rounds=8, **options).fit(x, y, agents=owner)
    assert model.score(x, y) > 0.6
    assert alone_accuracy(x, y, owner, x, y) > 0.4
    assert max(sizes) <= sum(SIZES) < AGENTS * max(SIZES)
    with pytest.raises(FeatureRangeError, match=r"^X: got features as large as"):
        model.fit(1e200 * x, y, agents=owner)
