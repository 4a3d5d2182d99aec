"""Features: PCA against a naive one, fitted on the training part alone, and the cache."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.features import CHUNK_EXAMPLES, Projection, features_of, load_features

RANDOM = np.random.default_rng(0)
IMAGES = Dataset.from_arrays(
    RANDOM.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8), np.arange(60) % 3, name="toy"
)


class Counting(nn.Module):
    """A small network that counts its images."""

    def __init__(self, seed=0):
        super().__init__()
        weights = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(7, 108, generator=weights))
        self._seen = 0

    @property
    def seen(self):
        return self._seen

    def forward(self, images):
        self._seen += len(images)
        return torch.tanh(images.flatten(1) @ self.weight.T)


OWN = FeatureConfig(backbone="mine", components=4, image_size=6)


def cached(module, config=OWN, dataset=IMAGES, version="1"):
    return features_of(dataset, config, module=module, version=version, progress=False)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def naive_pca(train, other, components):
    train, other = train.astype(np.float64), other.astype(np.float64)
    mean = train.mean(0)
    _, axes = np.linalg.eigh((train - mean).T @ (train - mean) / len(train))
    axes = axes[:, ::-1][:, :components]
    for column in range(components):
        if axes[np.abs(axes[:, column]).argmax(), column] < 0:
            axes[:, column] *= -1
    scale = np.sqrt((((train - mean) @ axes) ** 2).mean())
    return (train - mean) @ axes / scale, (other - mean) @ axes / scale


@pytest.mark.parametrize("examples", [30, CHUNK_EXAMPLES + 5])
def test_pca_is_that_of_a_naive_eigendecomposition(examples):
    x = (RANDOM.normal(size=(examples, 9)) * np.arange(9, 0, -1) + 3).astype(np.float32)
    other = RANDOM.normal(size=(7, 9)).astype(np.float32)
    projection = Projection.fit(x, 4)
    expected, expected_other = naive_pca(x, other, 4)
    np.testing.assert_allclose(projection.apply(x), expected, atol=1e-5)
    np.testing.assert_allclose(projection.apply(other), expected_other, atol=1e-5)


def test_coordinates_are_centred_keep_their_order_and_have_mean_square_1():
    for found in (load_features(), load_features(FeatureConfig(backbone="none"))):
        x = found.train_x.double()
        assert x.mean(0).abs().max() < 1e-5
        assert x.square().mean() == pytest.approx(1, abs=1e-5)
        assert found.train_x.dtype == torch.float32
        assert found.train_y.dtype == torch.int64
    variances = load_features().train_x.var(0)
    assert (variances.diff() < 0).all()
    assert variances[0] > 10 * variances[-1]


def test_the_defaults_give_32_features_of_the_embedded_data():
    found = load_features()
    assert found.name == "fashion-mnist-mini/pca"
    assert found.train_x.shape == (60_000, 32)
    assert found.test_x.shape == (10_000, 32)
    assert found.classes == 10


def test_the_backbone_none_keeps_every_pixel_constant_ones_too():
    x = IMAGES.train_x.copy()
    x[:, 0, 0] = 9
    found = features_of(replace(IMAGES, train_x=x), FeatureConfig(backbone="none"))
    assert found.train_x.shape[1] == 108
    assert (found.train_x[:, :3] == 0).all()
    pixels = x.reshape(len(x), -1) / 255
    centred = pixels - pixels.mean(0)
    np.testing.assert_allclose(found.train_x, centred / np.sqrt((centred**2).mean()), atol=1e-5)


@pytest.mark.parametrize("name", ["none", "pca"])
def test_equal_examples_become_zeros(name):
    x = np.full((10, 4), 5, np.float32)
    found = features_of(
        Dataset.from_arrays(x, np.arange(10) % 2), FeatureConfig(backbone=name, components=2)
    )
    assert (found.train_x == 0).all()


@pytest.mark.parametrize(
    "config", [FeatureConfig(backbone="none"), FeatureConfig(components=5), OWN]
)
def test_only_the_training_part_is_fitted(config):
    module = Counting() if config is OWN else None
    other = replace(IMAGES, test_x=255 - IMAGES.test_x, version="other")
    first = features_of(IMAGES, config, module=module, progress=False)
    second = features_of(other, config, module=module, progress=False)
    assert torch.equal(first.train_x, second.train_x)
    assert not torch.equal(first.test_x, second.test_x)


def test_features_in_a_file_are_projected_as_images_are(tmp_path):
    x = RANDOM.normal(size=(50, 6)) * np.arange(1, 7)
    np.savez(tmp_path / "mine.npz", x=x.astype(np.float16), y=np.arange(50) % 5)
    config = FeatureConfig(source=str(tmp_path / "mine.npz"), components=3, test_fraction=0.4)
    found = load_features(config)
    assert found.train_x.shape == (30, 3)
    assert found.test_x.shape == (20, 3)
    assert load_features(replace(config, backbone="none")).train_x.shape == (30, 6)
    with pytest.raises(ValueError, match="holds features, not images"):
        load_features(replace(config, backbone="own"), module=Counting())


@pytest.mark.parametrize(
    ("components", "words"),
    [(0, "components: got 0"), (109, "components: got 109, .* between 1 and 108")],
)
def test_impossible_numbers_of_components_are_refused(components, words):
    with pytest.raises(ValueError, match=words):
        features_of(IMAGES, FeatureConfig(components=components))


def test_none_as_components_keeps_all():
    pca = features_of(IMAGES, FeatureConfig(components=None))
    none = features_of(IMAGES, FeatureConfig(backbone="none"))
    assert pca.train_x.shape == none.train_x.shape
    products = none.train_x @ none.train_x.T  # which a rotation keeps
    torch.testing.assert_close(pca.train_x @ pca.train_x.T, products, atol=1e-3, rtol=1e-3)
    deep = features_of(IMAGES, replace(OWN, components=None), module=Counting(), progress=False)
    assert deep.train_x.shape[1] == 7


def test_a_second_call_reads_the_cache_without_running_the_module():
    module = Counting()
    first = cached(module)
    assert module.seen == 60
    second = cached(module, replace(OWN, components=2))
    third = cached(module)
    assert module.seen == 60
    assert second.train_x.shape[1] == 2
    assert torch.equal(first.train_x, third.train_x)
    assert torch.equal(first.test_x, third.test_x)


def test_the_cache_distinguishes_data_versions_names_and_sizes(home):
    cached(Counting())
    cached(Counting(seed=1), version="2")
    cached(Counting(), replace(OWN, backbone="other"))
    cached(Counting(), dataset=replace(IMAGES, version="2"))
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    for size in (6, 8):
        cached(pooled, replace(OWN, image_size=size), version="pooled")
    assert len(list((home / "features").iterdir())) == 6


def test_features_of_a_module_without_a_version_are_not_cached(home):
    module = Counting()
    features_of(IMAGES, OWN, module=module, progress=False)
    features_of(IMAGES, OWN, module=module, progress=False)
    assert module.seen == 120
    assert not home.exists()


def test_a_damaged_cache_is_reported_and_computed_again(home, caplog):
    module = Counting()
    first = cached(module)
    (path,) = (home / "features").iterdir()
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        second = cached(module)
    assert "damaged and is computed again" in caplog.text
    assert torch.equal(first.train_x, second.train_x)
    cached(module)
    assert module.seen == 120


def test_features_are_not_lost_where_the_cache_cannot_be_written(home, caplog):
    home.write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        found = cached(Counting())
    assert "cannot be cached" in caplog.text
    assert found.train_x.isfinite().all()
