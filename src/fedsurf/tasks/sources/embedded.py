"""The default data, inside the package: all of Fashion-MNIST, small enough to be carried along.

The 28×28 images are averaged over 2×2 pixels and rounded to 12 grey levels, which costs a linear
classifier little. `scripts/make_fashion_mnist_mini.py` makes the file from the official ones.
"""

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from fedsurf.tasks.dataset import Array, Dataset
from fedsurf.tasks.sources.source import Source

FILE = "fashion-mnist-mini.npz"


def read(_: Path) -> Dataset:
    """Return the images, the official training and test ones in their parts.

    The file is sorted by class, which is how it compresses well; here the classes take turns.
    """
    with (
        as_file(files("fedsurf.tasks") / "embedded" / FILE) as path,
        np.load(path, allow_pickle=False) as file,
    ):
        train = _taking_turns(file["train_x"], file["train_y"])
        test = _taking_turns(file["test_x"], file["test_y"])
    return Dataset.from_arrays(*train, *test, name="fashion-mnist-mini", classes=10)


def _taking_turns(x: Array, y: Array) -> tuple[Array, Array]:
    order = np.arange(len(y)).reshape(10, -1).T.ravel()
    return x[order], y[order]


FASHION_MNIST_MINI = Source(
    name="fashion-mnist-mini",
    about="Fashion-MNIST at 14×14 in 12 grey levels (Zalando Research)",
    examples="60,000 + 10,000",
    licence="MIT",
    read=read,
)
