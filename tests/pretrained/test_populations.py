"""Populations: drawn examples, and that tests never repeat training examples."""

import math

import pytest
import torch
from random_data import seeded

from fedsurf.pretrained.recipes.populations import (
    MAX_HEAD_PARAMETERS,
    RealPopulation,
    SyntheticPopulation,
    chance,
    log_uniform,
    principal,
    random_views,
    uniform,
)

IMAGES, CLASSES = 1200, 10


@pytest.fixture(scope="module")
def view():
    """Features whose first column is the number of the image, and labels that take turns."""
    x = torch.randn(IMAGES, 40, generator=seeded(0))
    x[:, 0] = torch.arange(IMAGES) + 1
    return x, torch.arange(IMAGES) % CLASSES


def images(population, drawn):
    return set((drawn[:, 0] / population.weights[0] - 1).round().long().tolist())


@pytest.mark.parametrize("seed", range(30))
def test_training_and_test_examples_are_different_images_of_the_right_classes(view, seed):
    x, labels = view
    population = RealPopulation.of(x, labels, seeded(seed))
    assert 2 <= population.classes <= 40
    assert population.classes * population.x.shape[1] <= MAX_HEAD_PARAMETERS
    wanted = torch.arange(population.classes).repeat(200)
    random = seeded(seed + 1)
    train = images(population, population.draw(wanted, random, test=False))
    test = images(population, population.draw(wanted, random, test=True))
    assert not train & test
    assert train
    assert test
    everything = torch.cat(population.members).tolist()
    assert len(everything) == len(set(everything))
    assert train | test <= set(everything)
    for label in range(population.classes):
        drawn = population.draw(torch.full((20,), label), random, test=False)
        assert images(population, drawn) <= set(population.members[label].tolist())
        # A class is one of the real ones, or a part of one.
        assert len(set(labels[population.members[label]].tolist())) == 1


def test_clouds_of_real_images_are_of_many_kinds(view):
    populations = [RealPopulation.of(*view, seeded(seed)) for seed in range(60)]
    widths = {population.x.shape[1] for population in populations}
    assert min(widths) >= 8
    assert max(widths) <= 40
    assert len(widths) > 10
    counts = [population.classes for population in populations]
    assert min(counts) < 10 < max(counts)
    assert any((population.weights == 1).all() for population in populations)
    assert any((population.weights != 1).any() for population in populations)
    assert any(
        labels_in_order(view, population) != sorted(labels_in_order(view, population))
        for population in populations
    ), "classes are renamed"


def labels_in_order(view, population):
    return [int(view[1][own[0]]) for own in population.members]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", [SyntheticPopulation.random, SyntheticPopulation.gaussian])
def test_synthetic_features_are_finite_new_each_time_and_within_their_ranges(kind, seed):
    population = kind(seeded(seed))
    assert 2 <= population.classes <= 100
    labels = torch.arange(population.classes).repeat(10)
    random = seeded(seed + 1)
    x = population.draw(labels, random, test=False)
    assert x.shape[0] == len(labels)
    assert 4 <= x.shape[1] <= 320
    assert x.shape[1] * population.classes <= max(MAX_HEAD_PARAMETERS, 4 * population.classes)
    assert x.isfinite().all()
    # Rectified units that are all off make some examples equal, but never most of them.
    other = population.draw(labels, random, test=True)
    assert (x != other).any(1).float().mean() > 0.5
    again = kind(seeded(seed))
    assert torch.equal(
        again.draw(labels, seeded(3), test=True), population.draw(labels, seeded(3), test=True)
    )


def test_gaussian_classes_are_round_and_as_far_apart_as_drawn():
    wide = [SyntheticPopulation.gaussian(seeded(seed)) for seed in range(200)]
    for population in [
        population for population in wide if population.means.shape[1] * population.classes > 500
    ][:5]:
        x = population.draw(torch.zeros(4000, dtype=torch.int64), seeded(1), test=False)
        torch.testing.assert_close(x.mean(0), population.means[0], rtol=0, atol=0.1)
        torch.testing.assert_close(x.T.cov(), torch.eye(x.shape[1]), rtol=0, atol=0.15)
        assert 1 < float(torch.pdist(population.means).mean()) < 12


def test_synthetic_features_are_of_many_kinds():
    populations = [SyntheticPopulation.random(seeded(seed)) for seed in range(100)]
    assert {len(population.layers) for population in populations} == {0, 1, 2}
    assert {math.isfinite(population.freedom) for population in populations} == {True, False}
    assert min(population.classes for population in populations) <= 3
    assert max(population.classes for population in populations) >= 40


def test_classes_are_from_almost_separable_to_almost_inseparable():
    """From almost separable to almost hopeless, by the nearest mean of the class."""
    scores = []
    for seed in range(20):
        population = SyntheticPopulation.random(seeded(seed))
        labels = torch.arange(population.classes).repeat(40)
        random = seeded(100)
        train, test = (population.draw(labels, random, test=part) for part in (False, True))
        means = torch.stack([train[labels == c].mean(0) for c in range(population.classes)])
        scores.append(float((torch.cdist(test, means).argmin(1) == labels).float().mean()))
    assert max(scores) > 0.95
    assert min(scores) < 0.5


def test_views_are_centred_on_principal_axes_and_differ():
    pixels = torch.rand(200, 49, generator=seeded(1))
    views = random_views(pixels, 3, 20, seeded(2))
    assert len(views) == 3
    torch.testing.assert_close(views[0], principal(pixels, 20))
    for view in views:
        assert view.shape == (200, 20)
        assert float(view.square().mean()) == pytest.approx(1, rel=1e-4)
        assert view.mean(0).abs().max() < 1e-4
        second = view.T @ view / 200
        spread = second.diagonal()
        assert (spread[:-1] >= spread[1:] - 1e-4).all()
        assert (second - torch.diag(spread)).abs().max() < 1e-3
    assert not torch.allclose(views[1].abs(), views[2].abs(), atol=0.1)
    again = random_views(pixels, 3, 20, seeded(2))
    assert all(torch.equal(one, two) for one, two in zip(views, again, strict=True))


def test_numbers_are_drawn_between_their_limits():
    random = seeded(3)
    plain = torch.tensor([uniform(-1, 3, random) for _ in range(500)])
    logs = torch.tensor([log_uniform(0.01, 100, random) for _ in range(500)])
    assert plain.min() >= -1
    assert plain.max() <= 3
    assert float(plain.mean()) == pytest.approx(1, abs=0.15)
    assert logs.min() >= 0.01 * (1 - 1e-6)
    assert logs.max() <= 100 * (1 + 1e-6)
    assert float((logs < 1).float().mean()) == pytest.approx(0.5, abs=0.07)
    heads = sum(chance(0.2, random) for _ in range(500))
    assert heads == pytest.approx(100, abs=30)
