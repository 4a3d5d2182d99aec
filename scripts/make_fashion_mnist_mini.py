"""Make the embedded dataset from the official Fashion-MNIST files, the same bytes every time.

    python scripts/make_fashion_mnist_mini.py [--folder FOLDER] [--output FILE]

Each image is averaged over 2×2 pixels, to 14×14, and rounded to the nearest of the 12 grey levels
0, 23, …, 253. Sorted by class, all 70,000 of them take less than three million bytes under LZMA,
which `numpy.load` reads as it is.
"""

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np

from fedsurf.tasks import sources
from fedsurf.tasks.dataset import Array

OUTPUT = (
    Path(__file__).resolve().parent.parent / "src/fedsurf/tasks/embedded/fashion-mnist-mini.npz"
)
STEP = 23
LIMIT = 3_000_000
MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip file


def shrink(images: Array) -> Array:
    """Average uint8 `[n, 28, 28, 1]` over 2×2 pixels and round to multiples of 23."""
    sums = images.reshape(-1, 14, 2, 14, 2).astype(np.int64).sum((2, 4))
    levels = (sums + 2 * STEP) // (4 * STEP)
    shrunk: Array = (levels * STEP).astype(np.uint8)[..., None]
    return shrunk


def by_class(images: Array, labels: Array) -> tuple[Array, Array]:
    """Sort by class, keeping the official order within each."""
    order = np.argsort(labels, kind="stable")
    return shrink(images[order]), labels[order].astype(np.uint8)


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write an `.npz` file under LZMA with a fixed date."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", MOMENT)
            member.compress_type = zipfile.ZIP_LZMA
            member.create_system = 3
            member.external_attr = 0o644 << 16
            archive.writestr(member, content.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the official files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args()
    official = sources.load("fashion-mnist", chosen.folder)
    train_x, train_y = by_class(official.train_x, official.train_y)
    test_x, test_y = by_class(official.test_x, official.test_y)
    write(
        chosen.output,
        {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y},
    )
    size = chosen.output.stat().st_size
    print(f"{chosen.output}: {len(train_y):,} + {len(test_y):,} images in {size:,} bytes")
    if size > LIMIT:
        raise SystemExit(f"that is more than {LIMIT:,} bytes")


if __name__ == "__main__":
    main()
