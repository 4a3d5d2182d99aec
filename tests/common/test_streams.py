"""Streams: an agent's draws are its own, paths are independent, and numbers are distributed as they say."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.common.streams import SHARED, Streams

ids = st.lists(st.integers(-1, 10_000), min_size=1, max_size=8, unique=True)
paths = st.lists(st.one_of(st.integers(0, 50), st.sampled_from(["task", "step"])), max_size=3)
DRAWS = {
    "bits": lambda streams: streams.bits(5),
    "uniform": lambda streams: streams.uniform(5),
    "normal": lambda streams: streams.normal(5),
    "choose": lambda streams: streams.choose(5, 9),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())


def correlation(left, right):
    return float(torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1])


@every_draw
@given(ids=ids, seed=st.integers(0, 1000), path=paths, data=st.data())
def test_an_agents_draw_does_not_depend_on_who_else_is_there(draw, ids, seed, path, data):
    some = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    rows = torch.tensor([ids.index(one) for one in some])
    together, apart = draw(Streams(seed, ids, *path)), draw(Streams(seed, some, *path))
    assert torch.equal(together[rows], apart)
    assert torch.equal(draw(Streams(seed, ids, *path)[rows]), apart)
    assert torch.equal(draw(Streams(seed, torch.tensor(ids)).at(*path)), together)
    assert torch.equal(draw(Streams(seed, ids, *path)[:1]), together[:1])


@every_draw
def test_a_draw_repeats_and_touches_no_global_generator(draw):
    streams, before = Streams(0, range(4), "task"), torch.random.get_rng_state()
    assert torch.equal(draw(streams), draw(streams))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("draw", [Streams.bits, Streams.uniform, Streams.normal])
def test_the_first_numbers_are_the_same_however_many_are_drawn(draw):
    streams = Streams(3, range(5))
    assert torch.equal(draw(streams, 9)[:, :4], draw(streams, 4))


def test_agents_seeds_and_paths_have_independent_streams():
    size, limit = 20_000, 5 / 20_000**0.5
    every = Streams(0, range(6)).uniform(size)
    assert (torch.corrcoef(every) - torch.eye(6)).abs().max() < limit
    one = Streams(0, [3])
    others = [
        Streams(1, [3]), one.at("step", 0), one.at("step", 1), one.at("step", 1, "local step", 0),
        one.at("step", "1"), one.at(0), one.at("0"), one.shared(),
    ]  # fmt: skip
    drawn = torch.cat([one.uniform(size), *[other.uniform(size) for other in others]])
    assert (torch.corrcoef(drawn) - torch.eye(len(drawn))).abs().max() < limit
    # The same place of an agent's stream in one step after another.
    steps = torch.cat([one.at("step", number).uniform(1) for number in range(size)]).flatten()
    assert abs(correlation(steps[1:], steps[:-1])) < limit
    assert abs(float(steps.mean()) - 0.5) < 4 * (1 / 12 / size) ** 0.5


def test_no_two_agents_of_a_large_federation_share_a_stream():
    first = Streams(0, range(100_000)).bits(1)
    assert len(first.unique()) == 100_000


@pytest.mark.parametrize("across", ["agents", "numbers"])
def test_uniform_and_normal_numbers_have_their_moments(across):
    agents, size = (50_000, 1) if across == "agents" else (1, 50_000)
    uniform, normal = (
        getattr(Streams(7, range(agents)), kind)(size).flatten() for kind in ("uniform", "normal")
    )
    assert uniform.dtype == normal.dtype == torch.float64
    assert 0 < uniform.min() < 1e-3 < 1 - 1e-3 < uniform.max() < 1
    # Moments within four standard errors.
    for power in (1, 2, 3):
        error = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / 50_000**0.5
        assert abs(float(uniform.pow(power).mean()) - 1 / (power + 1)) < 4 * error
    for power, moment, square in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105)):
        error = ((square - moment**2) / 50_000) ** 0.5
        assert abs(float(normal.pow(power).mean()) - moment) < 4 * error
    counts = torch.histc(uniform, 100, 0, 1)
    assert float((counts - 500).square().sum()) / 500 < 148.2  # χ², 99 degrees, chance 0.001


def test_a_uniform_number_is_never_0_or_1_and_a_normal_one_is_finite():
    class Extreme(Streams):
        def bits(self, size):
            return torch.tensor([[0, 2**63 - 1]])[:, :size]

    extreme = Extreme(0, [0])
    low, high = extreme.uniform(2)[0].tolist()
    assert 0 < low < high < 1
    assert extreme.normal(2).isfinite().all()


@given(
    seed=st.integers(0, 1000),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    padding=st.integers(0, 5),
    data=st.data(),
)
def test_chosen_places_are_different_real_ones_and_padding_changes_nothing(
    seed, counts, padding, data
):
    size = data.draw(st.integers(1, min(counts)))
    streams = Streams(seed, range(len(counts)))
    mask = torch.arange(max(counts) + padding) < torch.tensor(counts)[:, None]
    found = streams.choose(size, mask)
    assert found.shape == (len(counts), size)
    for row, (places, count) in enumerate(zip(found.tolist(), counts, strict=True)):
        assert len(set(places)) == size
        assert all(0 <= place < count for place in places)
        assert torch.equal(streams[row : row + 1].choose(size, count), found[row : row + 1])


def test_all_ordered_choices_are_equally_likely():
    pairs = torch.zeros(5, 5)
    chosen = Streams(1, range(10_000)).choose(2, 5)
    pairs.index_put_((chosen[:, 0], chosen[:, 1]), torch.ones(10_000), accumulate=True)
    assert pairs.diagonal().sum() == 0
    expected = 500 * (1 - torch.eye(5))
    statistic = float((pairs - expected).square().sum()) / 500
    assert statistic < 43.8  # χ², 19 degrees of freedom, chance 0.001


def test_places_beyond_a_rows_own_come_last():
    mask = torch.tensor([[False, True, False, True], [True, True, True, True]])
    chosen = Streams(0, range(2)).choose(4, mask)
    assert sorted(chosen[0, :2].tolist()) == [1, 3]
    assert sorted(chosen[1].tolist()) == [0, 1, 2, 3]


def test_the_shared_stream_is_one_row_that_all_processes_draw_alike():
    one, other = Streams(0, [0, 1], "start"), Streams(0, [5], "start")
    assert torch.equal(one.shared().normal(4), other.shared().normal(4))
    assert len(one.shared()) == 1
    assert one.shared().ids.tolist() == [SHARED]
    for agents in (one, other):
        rows = [row.tolist() for row in agents.normal(4)]
        assert one.shared().normal(4)[0].tolist() not in rows


def test_a_process_without_agents_draws_nothing():
    empty = Streams(0, [])
    assert len(empty) == 0
    assert empty.normal(3).shape == (0, 3)
    assert empty.choose(2, 4).shape == (0, 2)


def test_numbers_of_numpy_and_torch_name_the_same_paths():
    streams = Streams(np.int64(2), torch.arange(3)).at("step", torch.tensor(4))
    assert torch.equal(streams.bits(2), Streams(2, range(3), "step", 4).bits(2))
    with pytest.raises(TypeError, match=r"^path: got 1\.5, but it must be a whole number"):
        Streams(0, [0], 1.5).bits(1)


def test_the_numbers_are_those_of_splitmix64():
    """The finaliser of the paper in plain Python, on the counters of an agent's stream."""

    def mixed(word):
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    from fedsurf.common.randomness import path_key

    step, key = 0x9E3779B97F4A7C15, path_key(5, "step", 2)
    expected = [
        [mixed((mixed((agent * step + key) % 2**64) + n * step) % 2**64) >> 1 for n in (1, 2, 3)]
        for agent in (0, 7, 2**64 - 1)
    ]
    assert Streams(5, [0, 7, -1], "step", 2).bits(3).tolist() == expected
