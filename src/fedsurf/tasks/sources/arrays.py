"""The user's own data: a NumPy `.npz` file of labelled arrays."""

from pathlib import Path

from fedsurf.common.data_files import array_names, read_arrays
from fedsurf.common.files import FileError
from fedsurf.common.text import listed
from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Dataset

PARTS = ("train_x", "train_y", "test_x", "test_y")
WHOLE = ("x", "y")


def read_npz(path: Path, test_fraction: float = TEST_FRACTION) -> Dataset:
    """Read `train_x, train_y, test_x, test_y`, or `x, y` to be divided, from an `.npz` file.

    `Dataset.from_arrays` says what the arrays may be. Other arrays in the file are not read.
    """
    stored = array_names(path)
    names = next((keys for keys in (PARTS, WHOLE) if set(keys) <= set(stored)), None)
    if names is None:
        raise FileError(
            f"{path}: got the arrays {listed(stored)}, but it must hold "
            f"{', '.join(PARTS)}, or {' and '.join(WHOLE)}"
        )
    arrays = read_arrays(path, names)
    try:
        return Dataset.from_arrays(
            *(arrays[name] for name in names),
            name=path.name,
            test_fraction=test_fraction,
            called=(names[0], names[1]),
        )
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
