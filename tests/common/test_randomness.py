"""Generators as functions of a seed and a path."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.common.randomness import copied, generator, next_seed, numpy_generator

parts = st.text("abcxyz-", min_size=1, max_size=4) | st.integers(0, 50)
paths = st.lists(parts, max_size=3)


def draw(seed, *path):
    return torch.rand(4, generator=generator(seed, *path))


@given(st.integers(0, 2**40), paths)
def test_the_same_seed_and_path_give_the_same_bits(seed, path):
    assert torch.equal(draw(seed, *path), draw(seed, *path))


def test_a_copy_draws_the_same_and_leaves_the_original_as_it_is():
    source = generator(3, "source")
    torch.rand(5, generator=source)
    expected = [torch.rand(4, generator=copied(source)) for _ in range(2)]
    found = torch.rand(4, generator=source)
    assert all(torch.equal(one, found) for one in expected)


@given(st.integers(0, 100), paths, paths)
def test_different_paths_give_different_bits(seed, path, other):
    assert torch.equal(draw(seed, *path), draw(seed, *other)) == (path == other)


@pytest.mark.parametrize(
    ("one", "two"),
    [((0,), (1,)), ((0, 1), (0, "1")), ((0, 11), (0, 1, 1)), ((0, "ab"), (0, "a", "b")), ((1, 2), (12,)),
     ((0, "a/str:b"), (0, "a", "b"))],
)  # fmt: skip
def test_seeds_and_paths_are_not_run_together(one, two):
    assert not torch.equal(draw(*one), draw(*two))


def test_a_number_of_numpy_or_torch_counts_as_the_number():
    assert torch.equal(draw(np.int64(3), "task", np.int64(5)), draw(3, "task", 5))
    assert torch.equal(draw(3, torch.tensor(5)), draw(3, 5))


def test_many_paths_give_uniform_and_unrelated_numbers():
    first = torch.stack([draw(0, "task", number) for number in range(2000)]).double()
    assert (first.mean(0) - 0.5).abs().max() < 4 * (1 / 12 / 2000) ** 0.5
    neighbours = torch.stack([first[:-1, 0], first[1:, 0]])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 4 / 2000**0.5


def test_no_global_generator_is_touched():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    numpy_generator(generator(0, "a")).random(3)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


def test_numpy_generators_follow_the_torch_ones_and_advance_them():
    source, twin = generator(1), generator(1)
    first = numpy_generator(source).random(3)
    assert (first == numpy_generator(twin).random(3)).all()
    assert (first != numpy_generator(source).random(3)).any()


def test_seeds_for_other_libraries_are_numbers_in_their_range():
    source = generator(2)
    seeds = [next_seed(source) for _ in range(100)]
    assert all(0 <= seed < 2**31 - 1 for seed in seeds)
    assert len(set(seeds)) == 100
