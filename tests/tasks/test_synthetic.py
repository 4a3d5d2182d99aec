"""Generated data: the same every time, usable for tasks, and of the kind that it says."""

from dataclasses import replace
from functools import cache
from math import exp

import numpy as np
import pytest

from fedsurf.algorithms.centralised import Centralised
from fedsurf.evaluation.presets import STUDIES
from fedsurf.evaluation.study import Study
from fedsurf.tasks import sources
from fedsurf.tasks.features import features_of
from fedsurf.tasks.sources import synthetic

NAMES = list(synthetic.FAMILIES)

SHAPES = {
    "synthetic-words": (20, 256),
    "synthetic-spectra": (12, 32),
    "synthetic-table": (5, 36),
    "synthetic-clusters": (8, 16),
    "synthetic-curve": (10, 10),
    "synthetic-teacher": (15, 40),
    "synthetic-glyphs": (50, 100),
    "synthetic-genes": (20, 120),
}
"""Classes and features."""

VERSIONS = {
    "synthetic-words": "bc21526b6c2f7a07",
    "synthetic-spectra": "003713115d997789",
    "synthetic-table": "4a6eaaea83be1511",
    "synthetic-clusters": "f869ea9c039073ae",
    "synthetic-curve": "87007465b4277dd6",
    "synthetic-teacher": "bd5b3f7debedff3e",
    "synthetic-glyphs": "ddd9a10c9c8393f4",
    "synthetic-genes": "4a9e499ef14e9e3f",
}
"""Checksums of the data that docs/data.md gives figures for."""

CEILINGS = {
    "synthetic-words": (3e-2, 81.1),
    "synthetic-spectra": (3e-3, 97.4),
    "synthetic-table": (1e-3, 69.4),
    "synthetic-clusters": (1e-3, 67.0),
    "synthetic-curve": (1e-2, 56.2),
    "synthetic-teacher": (1e-3, 34.1),
    "synthetic-glyphs": (3e-3, 90.9),
    "synthetic-genes": (3e-2, 44.9),
}
"""The penalty that validation chose, and the accuracy of centralised training in docs/data.md."""


@cache
def dataset(name):
    return sources.load(name)


@cache
def study(name):
    config = replace(STUDIES[name].config, tasks=1)
    return Study(config, features=features_of(dataset(name), config.data))


def test_every_family_is_tested_here_and_has_a_study():
    assert sorted(NAMES) == sorted(SHAPES) == sorted(VERSIONS) == sorted(CEILINGS)
    assert sorted(name for name in STUDIES if name.startswith("synthetic-")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_both_parts_hold_all_classes_equally_often_and_finite_features(name):
    data, (classes, features) = dataset(name), SHAPES[name]
    assert (data.name, data.classes, data.images) == (name, classes, False)
    for x, y, size in (
        (data.train_x, data.train_y, synthetic.TRAIN_EXAMPLES),
        (data.test_x, data.test_y, synthetic.TEST_EXAMPLES),
    ):
        assert x.shape == (size, features)
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
        assert (x.std(0) > 0).all()
        np.testing.assert_array_equal(y, np.arange(size) % classes)


@pytest.mark.parametrize("name", NAMES)
def test_no_example_is_in_both_parts(name):
    training = {row.tobytes() for row in dataset(name).train_x}
    assert not any(row.tobytes() in training for row in dataset(name).test_x)


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_of_the_documented_figures(name):
    assert dataset(name).version == VERSIONS[name]


def test_a_second_call_gives_the_same_bits_in_new_arrays():
    first, second = dataset("synthetic-curve"), sources.load("synthetic-curve")
    assert first.version == second.version
    assert first.train_x is not second.train_x


# ---- tasks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("partition", ["class-imbalanced", "dirichlet"])
def test_a_study_draws_meta_test_and_validation_tasks(name, partition):
    config = study(name).config
    assert config.rounds == 200
    assert config.network.shift == "metropolis"
    assert (config.network.graph.kind, config.network.graph.degree) == ("regular", 3)
    assert config.task.partition == "class-imbalanced"
    other = replace(config, task=replace(config.task, partition=partition, alpha=0.3))
    here = Study(other, features=study(name).features)
    agents, examples = (40, 35) if name == "synthetic-genes" else (100, 45)
    for task in (*here.test_tasks(0), *here.tuning_tasks(1)):
        assert task.train.y.shape == (agents, examples)
        assert task.test.y.shape == (agents, 15)
        assert task.classes == SHAPES[name][0]
        assert task.features == (64 if name == "synthetic-glyphs" else SHAPES[name][1])


@pytest.mark.parametrize("name", NAMES)
def test_centralised_training_gets_about_as_far_as_documented(name):
    strength, documented = CEILINGS[name]
    (task,) = study(name).test_tasks(0)
    accuracy = 100 * Centralised(strength, tolerance=1e-3).accuracy(task)
    assert accuracy == pytest.approx(documented, abs=4)


def test_regularisation_decides_about_genes():
    (task,) = study("synthetic-genes").test_tasks(0)
    free, penalised = (Centralised(one, tolerance=1e-4).accuracy(task) for one in (1e-5, 3e-2))
    assert penalised > free + 0.06


# ---- each is of its kind


def test_words_are_square_roots_of_sparse_counts():
    x = dataset("synthetic-words").train_x[:5000]
    counts = np.rint(x**2)
    np.testing.assert_allclose(x, np.sqrt(counts), atol=0.5 / synthetic.GRID + 1e-6)
    assert (counts == 0).mean() > 0.5
    frequency = counts.mean(0)
    assert frequency[:32].mean() > 3 * frequency[-32:].mean()


def test_a_machine_hums_louder_in_few_bands():
    data = dataset("synthetic-spectra")
    means = np.stack([data.train_x[data.train_y == label].mean(0) for label in range(12)])
    loud = means > np.median(means) + 1
    assert ((loud.sum(1) >= 2) & (loud.sum(1) <= 14)).all()
    assert len(np.unique(loud, axis=0)) == 12


def test_columns_of_the_table_are_standardised_and_keep_their_kind():
    x = dataset("synthetic-table").train_x
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-3)
    assert ((x[:, :2] ** 3).mean(0) > 2).all()  # money is skewed
    assert all(len(np.unique(column)) == 2 for column in x[:, 8:].T)


def test_a_class_of_clusters_is_at_four_corners_that_no_other_class_has():
    data = dataset("synthetic-clusters")
    patterns = (data.train_x[:, :10] > 0) @ (1 << np.arange(10))
    corners = []
    for label in range(8):
        seen = np.bincount(patterns[data.train_y == label], minlength=1024)
        four = np.argsort(-seen)[:4]
        assert (seen[four] > 0.1 * seen.sum()).all()
        corners += four.tolist()
    assert len(set(corners)) == 32


def test_the_class_nearest_to_one_on_the_curve_is_its_neighbour():
    data = dataset("synthetic-curve")
    means = np.stack([data.train_x[data.train_y == label].mean(0) for label in range(10)])
    distance = ((means[:, None] - means) ** 2).sum(2) + 1e9 * np.eye(10)
    np.testing.assert_array_equal(np.abs(distance.argmin(1) - np.arange(10)), 1)


def test_features_of_the_teacher_are_uniform():
    x = dataset("synthetic-teacher").train_x
    bound = 1 / np.sqrt(1 + np.arange(40) / 8)
    assert (np.abs(x) <= bound + 0.5 / synthetic.GRID).all()
    np.testing.assert_allclose(x.std(0), bound / np.sqrt(3), rtol=0.05)


def test_pixels_are_those_of_a_loop():
    place = np.random.default_rng(0).uniform(-1, 1, size=(2, 3, 2))
    fine = [-1.3 + 2.6 * at / 19 for at in range(20)]
    for letter, pooled in zip(place, synthetic._pixels(place), strict=True):
        for row in range(10):
            for column in range(10):
                total = 0.0
                for down in fine[2 * row : 2 * row + 2]:
                    for right in fine[2 * column : 2 * column + 2]:
                        pen = (
                            exp(-((x - right) ** 2 + (y - down) ** 2) / (2 * 0.14**2))
                            for x, y in letter
                        )
                        total += 1 - exp(-sum(pen))
                assert pooled[10 * row + column] == pytest.approx(total / 4, abs=1e-12)


def test_a_type_of_cell_expresses_about_a_tenth_of_the_genes_more():
    data = dataset("synthetic-genes")
    means = np.stack([data.train_x[data.train_y == label].mean(0) for label in range(20)])
    more = means > np.median(means, axis=0) * 1.2
    assert 0.05 < more.mean() < 0.15
    assert (data.train_x >= 0).all()
