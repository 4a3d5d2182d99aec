"""Readers of data sets in their standard files.

MNIST and Fashion-MNIST are four IDX files, CIFAR-10 is six binary batches, `mnist-5k` is a gzipped table of
numbers, and data of users is an `.npz` file. Damaged files raise a `FileError`.
"""

import gzip
import struct
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from fedsurf.common.files import FileError, array_names, read_arrays, reading
from fedsurf.common.text import listed
from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Array, Dataset

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
MNIST_5K_FILE = "mnist_5k.csv.gz"
NPZ_PARTS: tuple[str, ...] = ("train_x", "train_y", "test_x", "test_y")
NPZ_WHOLE: tuple[str, ...] = ("x", "y")

RECORD_BYTES = 1 + 3 * 32 * 32
"""Size of an image in a batch of CIFAR-10: the label, then a red, a green and a blue plane."""
MAX_IDX_BYTES = 2**30
"""Size up to which an IDX file is read."""
DIGITS_TEST_FRACTION, MNIST_5K_TEST_FRACTION = 0.4, 0.3
"""Shares of each class in the test part."""


def locate(folder: Path, name: str) -> Path | None:
    """Return the file with a standard name, raw or gzipped; `-idx` in it may be `.idx`."""
    spellings = [s + end for s in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / s for s in spellings if (folder / s).is_file()), None)


def read_idx(path: Path) -> Array:
    """Read an IDX file of bytes, raw or gzipped.

    It is two zero bytes, the type of the entries (8 for bytes), the number of dimensions, each dimension
    as a big-endian 32-bit number, and the entries.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, "an IDX file of bytes"), opened(path, "rb") as file:
        content = file.read(MAX_IDX_BYTES)
        if content[:3] != b"\0\0\x08":
            raise ValueError("it must begin with the bytes 0 0 8")
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def read_mnist(folder: Path, name: str) -> Dataset:
    """Read the four IDX files of MNIST or Fashion-MNIST."""
    arrays = [read_idx(locate(folder, file) or folder / file) for file in IDX_FILES]
    return _dataset(folder, *arrays, name=name, classes=10)


def read_cifar10(folder: Path) -> Dataset:
    """Read the six binary batches of CIFAR-10."""
    batches = []
    for path in (folder / file for file in CIFAR10_FILES):
        with reading(path, "a binary batch of CIFAR-10"):
            batches.append(np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES))
    arrays = []
    for records in (np.concatenate(batches[:-1]), batches[-1]):
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        arrays += [np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0]]
    return _dataset(folder, *arrays, name="cifar10", classes=10)


def read_mnist_5k(folder: Path) -> Dataset:
    """Read rows of 784 pixels and a label; of each class 70 % are for training and 30 % for test."""
    path = folder / MNIST_5K_FILE
    with reading(path, "a gzipped table"), gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, dtype=np.uint8, delimiter=",", ndmin=2)
        images = rows[:, :-1].reshape(-1, 28, 28, 1)
    options = {"name": "mnist-5k", "classes": 10, "test_fraction": MNIST_5K_TEST_FRACTION}
    return _dataset(folder, images, rows[:, -1], **options)


def read_digits(_: Path | None = None) -> Dataset:
    """Read scikit-learn's digits; of each class 60 % are for training and 40 % for test.

    Their 17 grey levels, 0 … 16, are spread over 0 … 255.
    """
    from sklearn.datasets import load_digits  # slow to import

    x, y = load_digits(return_X_y=True)
    images = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return Dataset.from_arrays(
        images, y, name="digits", classes=10, test_fraction=DIGITS_TEST_FRACTION
    )


def read_fashion_mnist_mini(_: Path | None = None) -> Dataset:
    """Read the embedded small version of Fashion-MNIST; `scripts/make_fashion_mnist_mini.py` makes it.

    The 28×28 images are averaged over 2×2 pixels and rounded to 12 grey levels. The file is sorted by
    class, which compresses well; here the classes take turns.
    """
    with as_file(files("fedsurf.tasks") / "embedded" / "fashion-mnist-mini.npz") as path:
        stored = read_arrays(path, NPZ_PARTS)
    orders = [np.arange(len(stored[y])).reshape(10, -1).T.ravel() for y in ("train_y", "test_y")]
    arrays = [stored[name][orders[place // 2]] for place, name in enumerate(NPZ_PARTS)]
    return Dataset.from_arrays(*arrays, name="fashion-mnist-mini", classes=10)


def part_names(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays of examples in an `.npz` file: `NPZ_PARTS` or `NPZ_WHOLE`."""
    stored = set(array_names(path))
    for names in (NPZ_PARTS, NPZ_WHOLE):
        if stored.issuperset(names):
            return names
    raise FileError(
        f"{path}: got the arrays {listed(sorted(stored))}, but it must hold {', '.join(NPZ_PARTS)}, "
        f"or {' and '.join(NPZ_WHOLE)}"
    )


def read_npz(path: Path, test_fraction: float = TEST_FRACTION) -> Dataset:
    """Read `train_x, train_y, test_x, test_y`, or `x, y` to be divided, from an `.npz` file.

    `Dataset.from_arrays` describes the arrays. Other arrays in the file are not read.
    """
    names = part_names(path)
    arrays = read_arrays(path, names)
    return _dataset(
        path,
        *(arrays[name] for name in names),
        name=path.name,
        test_fraction=test_fraction,
        argument_names=(names[0], names[1]),
    )


def _dataset(place: Path, *arrays: Array, **options: Any) -> Dataset:
    """Make a dataset; errors name the file or folder of its arrays."""
    try:
        return Dataset.from_arrays(*arrays, **options)
    except ValueError as error:
        raise FileError(f"{place}: {error}") from error
