"""The user's own data: a NumPy `.npz` file of labelled arrays."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedsurf.tasks.config import TEST_FRACTION
from fedsurf.tasks.dataset import Array, Dataset

PARTS = ("train_x", "train_y", "test_x", "test_y")
WHOLE = ("x", "y")


def open_npz(path: Path) -> "np.lib.npyio.NpzFile":
    """Open an `.npz` file without reading its arrays, or say that it is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: truncated, damaged, or not a .npz file")
    try:
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: truncated, damaged, or not a .npz file ({error})") from error


def read_npz(path: Path, test_fraction: float = TEST_FRACTION) -> Dataset:
    """Read `train_x, train_y, test_x, test_y`, or `x, y` to be divided, from an `.npz` file.

    What the arrays may be is said at `Dataset.from_arrays`. Other arrays in the file are left alone.
    """
    with open_npz(path) as file:
        names = next((keys for keys in (PARTS, WHOLE) if set(keys) <= set(file.files)), None)
        if names is None:
            raise ValueError(
                f"{path}: got the arrays {', '.join(file.files) or '(none)'}, but it must hold "
                f"{', '.join(PARTS)}, or {' and '.join(WHOLE)}"
            )
        arrays = [_member(path, file, name) for name in names]
    try:
        return Dataset.from_arrays(
            *arrays, name=path.name, test_fraction=test_fraction, called=(names[0], names[1])
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _member(path: Path, file: "np.lib.npyio.NpzFile", name: str) -> Array:
    try:
        array: Array = file[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: {name}: got an array of Python objects or a damaged one ({error}), "
            "but it must hold integers or floats"
        ) from error
    return array
