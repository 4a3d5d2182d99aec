"""scikit-learn's digits: 1,797 images that need no file."""

from pathlib import Path

import numpy as np

from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.sources.source import Source

TEST_FRACTION = 0.4


def read(_: Path) -> Dataset:
    """Return the digits, of each class 60 % for training and 40 % for test (see `dataset.split`).

    Their 17 grey levels, 0 … 16, are spread over 0 … 255.
    """
    from sklearn.datasets import load_digits  # slow to import, and nothing else here needs it

    x, y = load_digits(return_X_y=True)
    images = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return Dataset.from_arrays(images, y, name="digits", classes=10, test_fraction=TEST_FRACTION)


DIGITS = Source(
    name="digits",
    about="handwritten digits, 8×8 grey (UCI, from scikit-learn)",
    examples="1,083 + 714",
    licence="CC BY 4.0",
    read=read,
)
