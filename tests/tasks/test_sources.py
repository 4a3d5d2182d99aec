"""Sources: readers of standard files, embedded data, the table of sources, and downloads."""

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
from dataclasses import replace
from functools import partial
from importlib.resources import files

import numpy as np
import pytest

from fedsurf.common.files import FileError
from fedsurf.tasks import sources
from fedsurf.tasks.sources import SOURCES, formats
from fedsurf.tasks.sources.fetch import FetchError, fetch

DOWNLOADED = [name for name, source in SOURCES.items() if source.files]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Use an empty data folder."""
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
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
    return dict(zip(formats.IDX_FILES, map(idx_bytes, parts), strict=True))


def test_an_idx_file_is_read_back(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(formats.read_idx(tmp_path / "file"), array)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\x89PNG....",
        idx_bytes(np.zeros((2, 3)))[:7],
        idx_bytes(np.zeros((2, 3)))[:-1],
        idx_bytes(np.zeros((2, 3))) + b"!",
        b"\0\0\x08\x02" + b"\xff" * 8,
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_damaged_idx_files_are_named(tmp_path, content, ending):
    path = tmp_path / f"file{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(FileError, match=rf"^{path}: truncated, damaged or not an IDX file"):
        formats.read_idx(path)


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


def test_files_that_do_not_belong_together_are_named_by_their_folder(tmp_path):
    for file, content in idx_files().items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / formats.IDX_FILES[1]).write_bytes(idx_bytes(np.arange(19) % 10))
    with pytest.raises(FileError, match=rf"^{tmp_path}: train_y: got .*shape \[19\]"):
        sources.load("mnist", tmp_path)


# ---- CIFAR-10


def cifar_examples(examples, seed=1):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (examples, 32, 32, 3), dtype=np.uint8)
    return images, random.integers(0, 10, examples)


def cifar_batch(images, labels):
    """Return a binary batch: of each image the label, then the red, green and blue planes."""
    return b"".join(
        bytes([label, *image[..., 0].flat, *image[..., 1].flat, *image[..., 2].flat])
        for image, label in zip(images, labels, strict=True)
    )


def test_cifar10_is_read_from_binary_batches(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    parts = [cifar_examples(3, seed) for seed in range(6)]
    for name, part in zip(formats.CIFAR10_FILES, parts, strict=True):
        (folder / name).write_bytes(cifar_batch(*part))
    dataset = sources.load("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.train_x, np.concatenate([x for x, _ in parts[:5]]))
    np.testing.assert_array_equal(dataset.test_y, parts[5][1])


def test_damaged_batches_of_cifar10_are_named(tmp_path):
    for name in formats.CIFAR10_FILES:
        (tmp_path / name).write_bytes(cifar_batch(*cifar_examples(2)))
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(cifar_batch(*cifar_examples(2))[:-1])
    with pytest.raises(FileError, match=rf"^{path}: truncated, damaged or not a binary batch"):
        sources.load("cifar10", tmp_path)
    path.write_bytes(cifar_batch(cifar_examples(1)[0], [10]))
    with pytest.raises(FileError, match=rf"^{tmp_path}: train_y: got .*10"):
        sources.load("cifar10", tmp_path)


# ---- small sources


def test_mnist_5k_is_divided_by_class(tmp_path):
    random = np.random.default_rng(2)
    rows = np.column_stack([random.integers(0, 256, (100, 784)), np.repeat(np.arange(10), 10)])
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / formats.MNIST_5K_FILE).write_bytes(gzip.compress(text.encode()))
    dataset = sources.load("mnist-5k", tmp_path)
    assert np.bincount(dataset.train_y).tolist() == [7] * 10
    assert np.bincount(dataset.test_y).tolist() == [3] * 10
    np.testing.assert_array_equal(dataset.train_x[0].ravel(), rows[0, :-1])


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"1,2,3\n"), gzip.compress(b"1\n" * 99)[:-12]],
    ids=["short rows", "truncated"],
)
def test_a_damaged_mnist_5k_is_named(tmp_path, content):
    (tmp_path / formats.MNIST_5K_FILE).write_bytes(content)
    with pytest.raises(FileError, match=r"mnist_5k\.csv\.gz: truncated, damaged or not a gzipped"):
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


# ---- the table of sources


def test_a_source_is_included_missing_or_ready(home):
    for name, source in SOURCES.items():
        assert source.status == ("missing" if name in DOWNLOADED else "included")
        assert source.about
        assert source.licence
    (home / "data" / "mnist").mkdir(parents=True)
    for file, content in idx_files().items():
        (home / "data" / "mnist" / file).write_bytes(content)
    assert SOURCES["mnist"].status == "ready"


def test_included_data_has_the_stated_numbers_of_examples():
    data = sources.load("digits")
    assert SOURCES["digits"].examples == f"{len(data.train_y):,} + {len(data.test_y):,}"


@pytest.mark.parametrize("name", DOWNLOADED)
def test_missing_data_is_reported_with_the_command_that_gets_it(name, tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(sources.MissingDataError, match=f"fedsurf data get {name}$"):
            sources.load(name, folder)


def test_unknown_names_are_refused_with_a_guess():
    for call in (sources.load, sources.get):
        with pytest.raises(ValueError, match=r"got 'fashion_mnist', .* did you mean 'fashion-mni"):
            call("fashion_mnist")


def test_embedded_data_takes_no_folder_and_no_download(tmp_path):
    with pytest.raises(ValueError, match="folder: got"):
        sources.load("digits", tmp_path)
    for name in ("digits", "mine.npz"):
        with pytest.raises(ValueError, match="nothing to download"):
            sources.get(name)


# ---- data of users


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
        (
            np.zeros((4, 2)),
            [0, 1, 0],
            r"y: got shape \[3\], .* \[4\], a label for each example of x$",
        ),
        (np.zeros((4, 2)), [0, 2, 0, 2], r"y: got labels up to 2, but no example has the label 1:"),
        (np.zeros((12, 2)), [0, 0, 0, 0, 0, -1] * 2, r"y: got the label -1 \(example 5\), but"),
        (
            np.zeros((4, 2)),
            [0, 1, 0, 1],
            r"x: got 4 examples; .* 4 are for training and 0 for test",
        ),
        (np.zeros((0, 2)), [], r"x: got shape \[0, 2\], but there must be an example"),
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


# ---- downloads


def digest(content, kind="sha256"):
    return hashlib.new(kind, content).hexdigest()


def checksums(contents):
    return {name: digest(content) for name, content in contents.items()}


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, name
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def serve(tmp_path):
    """Serve files from this machine; return their addresses with their checksums."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()

        def put(contents):
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            address = f"http://127.0.0.1:{running.server_port}/"
            return {f"{address}{n}": f"md5:{digest(c, 'md5')}" for n, c in contents.items()}

        yield put
        running.shutdown()


@pytest.fixture
def mnist(serve, monkeypatch):
    """Small MNIST, served gzipped, in the table of sources."""
    contents = idx_files()
    downloads = serve({f"{name}.gz": gzip.compress(body) for name, body in contents.items()})
    source = replace(SOURCES["mnist"], files=checksums(contents), downloads=downloads)
    monkeypatch.setitem(SOURCES, "mnist", source)
    return source


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_a_download_ends_in_verified_files(mnist, home, capfd):
    assert sources.get("mnist") == home / "data" / "mnist"
    assert left_in(home) == sorted(["data", "mnist", *formats.IDX_FILES])
    assert len(sources.load("mnist").train_y) == 20
    assert capfd.readouterr().out == ""


def test_intact_files_are_not_downloaded_again_but_damage_is_repaired(mnist, tmp_path, monkeypatch):
    target = tmp_path / "mine"
    sources.get("mnist", target, progress=False)
    (target / "notes.txt").write_text("mine")
    monkeypatch.setitem(SOURCES, "mnist", replace(mnist, downloads={}))
    sources.get("mnist", target, progress=False)
    monkeypatch.setitem(SOURCES, "mnist", mnist)
    (target / formats.IDX_FILES[0]).write_bytes(b"damaged")
    sources.get("mnist", target, progress=False)
    assert len(sources.load("mnist", target).train_y) == 20
    assert left_in(target) == sorted(["notes.txt", *formats.IDX_FILES])


def test_wrong_checksums_of_downloads_or_files_leave_nothing(mnist, home, monkeypatch):
    wrong_download = dict.fromkeys(mnist.downloads, f"md5:{'0' * 32}")
    wrong_file = {**mnist.files, formats.IDX_FILES[3]: "0" * 64}
    for source, words in (
        (replace(mnist, downloads=wrong_download), "does not match the known hash"),
        (replace(mnist, files=wrong_file), f"{formats.IDX_FILES[3]}: got the SHA-256"),
        (replace(mnist, downloads={}), "there is no such file in what was fetched"),
    ):
        monkeypatch.setitem(SOURCES, "mnist", source)
        with pytest.raises(FetchError, match=f"^mnist: the download failed .*{words}") as raised:
            sources.get("mnist", progress=False)
        assert "\n" not in str(raised.value)
        assert left_in(home) == ["data"]


def test_an_interrupted_download_leaves_nothing(mnist, home, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsurf.tasks.sources.fetch.unpack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.get("mnist", progress=False)
    assert left_in(home) == ["data"]


def test_only_the_named_regular_members_of_an_archive_are_extracted(serve, home, tmp_path):
    batches = {name: cifar_batch(*cifar_examples(2)) for name in formats.CIFAR10_FILES}
    members = {f"cifar-10-batches-bin/{name}": content for name, content in batches.items()}
    archive = tar_of({**members, "../../escaped": b"!", "cifar-10-batches-bin/readme": b"!"})
    target = home / "data" / "cifar10"
    fetch(serve({"cifar.tar.gz": archive}), checksums(batches), target, progress=False)
    assert left_in(tmp_path / "home") == sorted(["data", "cifar10", *batches])
    assert len(sources.load("cifar10").train_y) == 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("link.tar.gz", tar_of({"a/file.bin": None})),
        ("other.tar.gz", tar_of({"a/readme": b"hello"})),
        ("short.tar.gz", tar_of({"a/file.bin": bytes(100_000)})[:-30]),
        ("text.gz", b"not gzipped"),
        ("short.gz", gzip.compress(bytes(range(256)))[:-30]),
    ],
    ids=["link to itself", "other file", "short tar", "text", "short gzip"],
)
def test_odd_archives_raise_an_error_of_one_line_and_leave_nothing(serve, tmp_path, name, content):
    with pytest.raises(FetchError) as raised:
        fetch(serve({name: content}), {"file.bin": "0" * 64}, tmp_path / "data", progress=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_all_downloads_and_files_have_checksums():
    for name in DOWNLOADED:
        assert all(len(checksum) == 64 for checksum in SOURCES[name].files.values())
        assert all(one.partition(":")[2] for one in SOURCES[name].downloads.values())
