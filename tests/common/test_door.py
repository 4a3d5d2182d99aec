"""Files of every kind, damaged at random: a `FileError` comes out, or a value, and nothing else."""

import json
import resource
import struct
import zipfile
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.torch import save_file

import fedsurf
from fedsurf.algorithms import Start
from fedsurf.common import files
from fedsurf.common.files import (
    FileError,
    array_names,
    column_names,
    read_all_tensors,
    read_arrays,
    read_columns,
    read_json,
    read_metadata,
)
from fedsurf.common.writing import write_json, write_tensors
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.evaluation.config import StudyConfig, TuneConfig
from fedsurf.evaluation.methods import METHODS
from fedsurf.evaluation.tuning import Trial, Tuned, TunedSettings
from fedsurf.tasks.features import Features, fingerprint
from fedsurf.tasks.sources.formats import read_npz
from fedsurf.unrolled import Transferable, TransferableConfig


def _frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    columns = {name: random.normal(size=12).round(3) for name in "ab"}
    return pd.DataFrame({**columns, "agent": list("xyz") * 4, "label": ["0", "1"] * 6})


def _write_arrays(path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    np.savez_compressed(path, x=x, y=np.arange(12) % 2, agents=np.array(list("xyz") * 4))


def _write_classifier(path: Path) -> None:
    SavedClassifier(np.eye(2), np.ones(2), ["a", "b"], ["x", "z"], "label", {}).write(path.parent)
    (path.parent / "head.safetensors").rename(path)


def _write_optimizer(path: Path) -> None:
    optimizer = Transferable(TransferableConfig(2, 2, 2), fedsurf.generator(0))
    about = {"optimizer": vars(optimizer.config)}
    write_tensors(path, dict(optimizer.named_parameters()), about)


def _read_all_arrays(path: Path) -> None:
    read_arrays(path, array_names(path))


def _read_table(path: Path) -> None:
    read_columns(path, column_names(path), text=["label"])


@cache
def _tuned_settings() -> TunedSettings:
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6) % 2
    features = Features("mine", x, y, x, y, 2)
    methods = {
        name: Tuned(name, [Trial(dict(METHODS[name].defaults), 0.5)])
        for name in ("dgd", "moon", "lda")
    }
    return TunedSettings(methods, StudyConfig(), TuneConfig(), fingerprint(features))


def _use_settings(path: Path) -> None:
    """Read tuned settings and compare them with others, as `fedsurf tune` and `compare` do."""
    found, own = TunedSettings.read(path), _tuned_settings()
    found.differences_from(own.study, own.data)
    with suppress(ValueError):  # settings out of their range, or of another study, are no damage
        own.extended(path)
        for name in own.methods.keys() & found.methods:
            METHODS[name].make(fedsurf.SoftmaxHead(4, 2), Start(), found.methods[name].best)


KINDS = {
    "settings": ("a.json", lambda path: _tuned_settings().write(path), _use_settings),
    "json": ("a.json", lambda path: write_json(path, {"a": [1, None, {"b": "é"}]}), read_json),
    "tensors": (
        "a.safetensors",
        lambda path: write_tensors(path, {"a": torch.ones(3, 2)}, {"b": [1, None]}),
        lambda path: (read_metadata(path), read_all_tensors(path)),
    ),
    "classifier": ("a.safetensors", _write_classifier, SavedClassifier.read),
    "optimizer": ("a.safetensors", _write_optimizer, fedsurf.load),
    "arrays": ("a.npz", _write_arrays, _read_all_arrays),
    "dataset": ("a.npz", _write_arrays, read_npz),
    "csv": ("a.csv", lambda path: _frame().to_csv(path, index=False), _read_table),
    "parquet": ("a.parquet", lambda path: _frame().to_parquet(path), _read_table),
}


@cache
def _original(kind: str) -> bytes:
    name, write, _ = KINDS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


_POSITION = st.floats(0, 1, exclude_max=True)
_EDIT = st.one_of(
    st.tuples(st.just("replace"), _POSITION, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("insert"), _POSITION, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("delete"), _POSITION, st.integers(1, 40)),
    st.tuples(st.just("cut"), _POSITION, st.none()),
    st.tuples(st.just("bit"), _POSITION, st.integers(0, 7)),
)


def _edited(content: bytes, edits) -> bytes:
    for edit, position, value in edits:
        at = int(position * len(content))
        if edit == "replace":
            content = content[:at] + value + content[at + len(value) :]
        elif edit == "insert":
            content = content[:at] + value + content[at:]
        elif edit == "delete":
            content = content[:at] + content[at + value :]
        elif edit == "cut":
            content = content[:at]
        elif content:
            flipped = bytes([content[at] ^ (1 << value)])
            content = content[:at] + flipped + content[at + 1 :]
    return content


def _check_reading(kind: str, content: bytes) -> None:
    name, _, read = KINDS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            read(path)
        except FileError as error:
            message = str(error)
            assert message.startswith(str(path))
            assert message.isprintable()


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_read(kind):
    _check_reading(kind, _original(kind))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, database=None)
@given(edits=st.lists(_EDIT, min_size=1, max_size=4))
def test_a_damaged_file_gives_a_file_error_or_a_value(kind, edits):
    _check_reading(kind, _edited(_original(kind), edits))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3000, deadline=None, database=None)
@given(edits=st.lists(_EDIT, min_size=1, max_size=4))
def test_thousands_of_damaged_files_give_file_errors_or_values(kind, edits):
    _check_reading(kind, _edited(_original(kind), edits))


_POSITIONS = st.lists(_POSITION, min_size=1, max_size=2)
_OTHER_KINDS = [
    None,
    True,
    5,
    -1.5,
    10**400,
    float("inf"),
    "text",
    "",
    [],
    [1],
    [[]],
    {},
    {"a": None},
]


def _places(content, path=()):
    """Yield the path of every value inside JSON."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


def _with_other_kinds(text: str, positions, value) -> str:
    """Replace values of JSON by one of another kind."""
    content = json.loads(text)
    for position in positions:
        places = list(_places(content))
        *path, key = places[int(position * len(places))]
        inner = content
        for name in path:
            inner = inner[name]
        inner[key] = deepcopy(value)
    return json.dumps(content)


def _check_other_kinds(kind: str, positions, value) -> None:
    original = _original(kind)
    if kind == "settings":
        changed = _with_other_kinds(original.decode(), positions, value).encode()
    else:  # safetensors: the length of the header, the header in JSON, which holds ours, and tensors
        end = 8 + int.from_bytes(original[:8], "little")
        header = json.loads(original[8:end])
        metadata = header["__metadata__"]
        metadata["fedsurf"] = _with_other_kinds(metadata["fedsurf"], positions, value)
        packed = json.dumps(header).encode()
        changed = len(packed).to_bytes(8, "little") + packed + original[end:]
    _check_reading(kind, changed)


@pytest.mark.parametrize("kind", ["settings", "classifier", "optimizer"])
@settings(max_examples=150, deadline=None, database=None)
@given(positions=_POSITIONS, value=st.sampled_from(_OTHER_KINDS))
def test_values_of_another_kind_give_a_file_error_or_a_value(kind, positions, value):
    _check_other_kinds(kind, positions, value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["settings", "classifier", "optimizer"])
@settings(max_examples=3000, deadline=None, database=None)
@given(positions=_POSITIONS, value=st.sampled_from(_OTHER_KINDS))
def test_thousands_of_values_of_another_kind_give_file_errors_or_values(kind, positions, value):
    _check_other_kinds(kind, positions, value)


@pytest.fixture
def frugal():
    """Fail if a test takes 200 MB more than before; time would depend on the machine's load."""
    before = _peak()
    yield
    assert _peak() - before < 200_000


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("width", [30_000_000, 2**62])
@pytest.mark.parametrize("name", ["width", "class_width", "confidence_width"])
def test_an_optimizer_wider_than_its_file_is_not_built(tmp_path, frugal, width, name):
    path = tmp_path / "a.safetensors"
    optimizer = Transferable(TransferableConfig(24, 12, 4), fedsurf.generator(0))
    about = {"optimizer": {**vars(optimizer.config), name: width}}
    write_tensors(path, dict(optimizer.named_parameters()), about)
    with pytest.raises(FileError, match=rf"a\.safetensors: .*{name}: got {width}, but the file is"):
        fedsurf.load(path)


def _write_bomb(path: Path) -> None:
    """Write an array x, and 1 GiB of zeros called y that take 1 MB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w") as member:
            np.lib.format.write_array(member, np.ones((2, 2)))
        with archive.open("y.npy", "w") as member:
            about = {"descr": "|u1", "fortran_order": False, "shape": (2**30,)}
            np.lib.format.write_array_header_1_0(member, about)
            block = bytes(2**24)
            for _ in range(2**6):
                member.write(block)


def test_large_arrays_are_unpacked_neither_unasked_nor_from_a_tiny_file(tmp_path):
    path = tmp_path / "a.npz"
    _write_bomb(path)
    before = _peak()
    assert array_names(path) == ["x", "y"]
    assert read_arrays(path, ["x"])["x"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(FileError, match=r"a\.npz: takes \d+ bytes when it is unpacked"):
        read_arrays(path, ["y"])
    assert _peak() - before < 200_000


def test_an_array_larger_than_its_part_of_the_file_is_not_allocated(tmp_path, frugal):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        about = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
        np.lib.format.write_array_header_1_0(member, about)
    with pytest.raises(FileError, match="x is cut short"):
        read_arrays(path, ["x"])


@pytest.mark.parametrize(
    ("at", "value"),
    [(6, struct.pack("<H", 1)), (8, struct.pack("<H", 77))],
    ids=["encrypted", "unknown compression"],
)
def test_arrays_packed_in_an_unknown_way_are_refused(tmp_path, at, value):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones(3))
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[at : at + 2] = content[central + at + 2 : central + at + 4] = value
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"a\.npz: truncated, damaged or not a \.npz file"):
        read_arrays(path, ["x"])


@pytest.mark.parametrize(
    "header", [b"{'descr': '<f8', 'shape': (", b"[1, 2]", b"{'a': 1}", b"f(3)"]
)
def test_headers_of_arrays_that_are_no_headers_are_refused(tmp_path, header):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        length = struct.pack("<H", len(header) + 1)
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + length + header + b"\n")
    with pytest.raises(FileError, match=r"a\.npz: truncated, damaged or not"):
        read_arrays(path, ["x"])


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}, []], dtype=object))
    with pytest.raises(FileError, match="x: got Python objects, but it must hold numbers or text"):
        read_arrays(path, ["x"])


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_deeply_nested_json_is_refused(tmp_path, depth):
    path, tensors = tmp_path / "a.json", tmp_path / "a.safetensors"
    nested = "[" * depth + "]" * depth
    path.write_text(nested)
    with pytest.raises(FileError, match=r"a\.json: "):
        read_json(path)
    save_file({"a": torch.ones(1)}, tensors, {"fedsurf": nested})
    with pytest.raises(FileError, match=r"a\.safetensors: "):
        read_metadata(tensors)


def test_files_above_the_limit_are_not_read(tmp_path, frugal):
    for name, read in (("a.json", read_json), ("a.csv", column_names), ("a.npz", array_names)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**36)  # sparse: it takes no space on the disk
        with pytest.raises(FileError, match=f"{name}: has {2**36} bytes, but"):
            read(tmp_path / name)


@pytest.mark.parametrize("metadata", ["null", "5", "[1]", '"text"'])
def test_metadata_must_be_a_table(tmp_path, metadata):
    path = tmp_path / "a.safetensors"
    save_file({"weight": torch.eye(2), "bias": torch.ones(2)}, path, {"fedsurf": metadata})
    for read in (read_metadata, SavedClassifier.read, fedsurf.load):
        with pytest.raises(
            FileError, match=r"a\.safetensors: damaged, its metadata must be a table"
        ):
            read(path)


def test_a_classifier_in_bfloat16_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    about = {"classes": [0, 1], "features": None, "label": None, "config": {}}
    tensors = {"weight": torch.eye(2).bfloat16(), "bias": torch.ones(2).bfloat16()}
    write_tensors(path, tensors, about)
    with pytest.raises(
        FileError, match=r"a\.safetensors: damaged, (weight|bias) must be finite, in float32"
    ):
        SavedClassifier.read(path)


@pytest.mark.parametrize("metadata", [b"[1]", b"5", b"null", b"{half", b'{"index_columns": 3}'])
def test_odd_pandas_metadata_of_parquet_give_a_file_error_or_a_table(tmp_path, metadata):
    path = tmp_path / "a.parquet"
    table = pa.table(_frame()).replace_schema_metadata({b"pandas": metadata})
    parquet.write_table(table, path)
    _check_reading("parquet", path.read_bytes())


def test_a_parquet_file_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 2**20)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": np.zeros(2**21), "y": np.zeros(2**21)}), path)
    with pytest.raises(FileError, match=r"a\.parquet: takes \d+ bytes when it is unpacked"):
        read_columns(path, ["x"])


def test_names_from_files_are_printable_and_short_in_messages(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **{"\x1b[31mred": np.ones(1), "long" * 15_000: np.ones(1)})
    with pytest.raises(FileError) as caught:
        read_npz(path)
    assert r"\x1b[31mred" in str(caught.value)
    assert len(str(caught.value)) < 2000
