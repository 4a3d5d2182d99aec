"""Files that are whole or not there, and reading that names the file."""

import json
import math
import os
from contextlib import suppress

import numpy as np
import pytest
import torch
from disks import full_disk
from safetensors.torch import save_file

from fedsurf.common.files import FileError, read_json, read_metadata, read_tensors_into
from fedsurf.common.writing import (
    filled_folder,
    json_text,
    new_folder,
    replacing,
    write_json,
    write_rows,
    write_tensors,
)


def tensors():
    return {
        "a": torch.arange(6.0).reshape(2, 3),
        "b.c": torch.tensor([1.5], dtype=torch.float64),
        "scalar": torch.tensor(3.0),
        "count": torch.tensor([1, 2, 3]),
    }


def blank():
    return {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}


def test_tensors_and_metadata_come_back_bit_by_bit(tmp_path):
    path, metadata = (
        tmp_path / "deep" / "x.safetensors",
        {"rule": "é", "nested": {"list": [1, None]}},
    )
    write_tensors(path, tensors(), metadata)
    found = blank()
    assert read_tensors_into(path, found) == metadata
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor)
    assert read_metadata(path) == metadata


def test_parameters_views_and_empty_tensors_can_be_written(tmp_path):
    path = tmp_path / "x.safetensors"
    value = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    write_tensors(path, {"turned": value.T, "none": torch.zeros(0, 3)}, {})
    found = {"turned": torch.nn.Parameter(torch.zeros(3, 2)), "none": torch.ones(0, 3)}
    read_tensors_into(path, found)
    assert torch.equal(found["turned"].detach(), value.detach().T)


def test_the_same_content_gives_the_same_bytes(tmp_path):
    written = set()
    for number in range(10):
        write_tensors(tmp_path / str(number), tensors(), {"a": 1, "b": 2})
        written.add((tmp_path / str(number)).read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("left", [0, 4, 50, 0.5, -1])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, left):
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {})
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) if left == 0.5 else left])
    into = blank()
    for read in (lambda: read_tensors_into(path, into), lambda: read_metadata(path)):
        with pytest.raises(FileError, match=r"x\.safetensors: truncated, damaged or not"):
            read()
    assert all(tensor.abs().sum() == 0 for tensor in into.values())


def test_a_text_file_a_foreign_file_and_a_missing_one_are_errors_that_name_them(tmp_path):
    text, foreign = tmp_path / "text.safetensors", tmp_path / "foreign.safetensors"
    text.write_text("These are not tensors. " * 20)
    save_file(tensors(), foreign)
    with pytest.raises(FileError, match=r"text\.safetensors: truncated, damaged or not"):
        read_tensors_into(text, blank())
    with pytest.raises(FileError, match=r"foreign\.safetensors: .*not one that fedsurf wrote"):
        read_tensors_into(foreign, blank())
    with pytest.raises(FileError, match=r"none\.safetensors: there is no such file"):
        read_tensors_into(tmp_path / "none.safetensors", blank())
    with pytest.raises(FileError, match="this is a folder, but it must be a file"):
        read_metadata(tmp_path)


def test_damaged_metadata_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(tensors(), path, {"fedsurf": "{half"})
    with pytest.raises(FileError, match=r"x\.safetensors: truncated, damaged"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(3, 2)}, r"a has shape \[2, 3\], but \[3, 2\] was expected"),
        ({"scalar": torch.zeros(1)}, r"scalar has shape \[\], but \[1\]"),
        ({"a": torch.zeros(2, 3).double()}, r"a is .*float32, but .*float64 was expected"),
        ({"count": torch.zeros(3)}, r"count is .*int64, but .*float32 was expected"),
        ({"more": torch.zeros(1)}, r"lacks the tensors more"),
    ],
)
def test_tensors_of_other_names_shapes_or_types_change_nothing(tmp_path, change, message):
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {})
    into = {**blank(), **change}
    with pytest.raises(FileError, match=rf"x\.safetensors: {message}"):
        read_tensors_into(path, into)
    assert all(tensor.abs().sum() == 0 for tensor in into.values())


def test_unknown_tensors_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {})
    into = blank()
    del into["a"]
    with pytest.raises(FileError, match=r"unknown ones a"):
        read_tensors_into(path, into)


def test_a_write_that_fails_on_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    path, note = tmp_path / "x.safetensors", tmp_path / "x.json"
    write_tensors(path, tensors(), {"version": 1})
    write_json(note, [1])
    before = path.read_bytes()
    with full_disk(), pytest.raises(Exception, match=r"File too large|os error 27|write"):
        write_tensors(path, {"a": torch.zeros(100_000)}, {"version": 2})
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_json(note, list(range(100_000)))
    assert path.read_bytes() == before
    assert read_json(note) == [1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.json", "x.safetensors"]


def test_a_rename_or_flush_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, [1])

    def full(*_):
        raise OSError(28, "No space left on device")

    for target in ("os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(target, full)
            with pytest.raises(OSError, match="No space left"):
                write_json(path, [2])
        assert read_json(path) == [1]
        assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_block_that_fails_replaces_nothing(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with suppress(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_until_a_block_succeeds_nothing_is_seen_under_the_name(tmp_path):
    path = tmp_path / "deep" / "x"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_and_folders_are_open_to_those_whom_the_umask_lets_in(tmp_path, umask):
    before = os.umask(umask)
    try:
        with new_folder(tmp_path / "folder") as temporary:
            write_json(temporary / "file", [1])
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    folder = tmp_path / "folder"
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
    assert (folder / "file").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    path = tmp_path / "state"
    with suppress(RuntimeError), new_folder(path) as temporary:
        (temporary / "file").write_text("half")
        assert not path.exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with new_folder(path) as temporary:
        (temporary / "file").write_text("whole")
    assert [file.name for file in path.iterdir()] == ["file"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("make", [new_folder, filled_folder])
def test_a_folder_that_another_process_made_meanwhile_is_named(tmp_path, make):
    path = tmp_path / "state"

    def write_late():
        with make(path) as temporary:
            (temporary / "file").write_text("late")
            path.mkdir()
            (path / "file").write_text("early")

    with pytest.raises(FileExistsError, match=r"state: another process has made this folder"):
        write_late()
    assert [file.read_text() for file in tmp_path.rglob("file")] == ["early"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["state"]


def test_json_that_is_damaged_or_missing_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(FileError, match=r"x\.json: there is no such file"):
        read_json(path)
    for content in (b'{"a": ', b"", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"x\.json: truncated, damaged or not JSON"):
            read_json(path)
    write_json(path, {"a": [1, None, "é"]})
    assert read_json(path) == {"a": [1, None, "é"]}
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [1, None, "é"]}


def test_what_is_not_finite_is_null_in_json_and_in_metadata(tmp_path):
    content = {"a": [1.5, math.inf, (math.nan, -math.inf)]}
    write_json(tmp_path / "x.json", content)
    write_tensors(tmp_path / "x.safetensors", tensors(), content)
    for read in (read_json(tmp_path / "x.json"), read_metadata(tmp_path / "x.safetensors")):
        assert read == {"a": [1.5, None, [None, None]]}


def test_tables_are_utf_8_and_have_the_columns_of_all_rows_or_those_named(tmp_path):
    path = tmp_path / "x.csv"
    rows = [{"å": 1}, {"å": "ß,", "b": None}, {"b": "łódź"}]
    write_rows(path, rows)
    assert path.read_bytes() == 'å,b\n1,\n"ß,",\n,łódź\n'.encode()
    write_rows(path, iter(rows[:1]), ["b", "å"])
    assert path.read_bytes() == "b,å\n,1\n".encode()


def test_tensors_for_which_there_is_no_space_are_an_error_that_names_the_file(tmp_path):
    with full_disk(), pytest.raises(OSError, match=r"large\.safetensors: cannot be written"):
        write_tensors(tmp_path / "large.safetensors", {"a": torch.zeros(10_000)}, {})
    assert not any(path.name == "large.safetensors" for path in tmp_path.iterdir())


def test_what_there_is_no_space_for_is_named_by_its_final_name(tmp_path):
    def json_in_a_folder(make):
        with make(tmp_path / "model") as temporary:
            write_json(temporary / "large.json", ["x" * 10_000])

    with full_disk(), pytest.raises(OSError, match=r"large\.json: cannot be written \(File too"):
        write_json(tmp_path / "large.json", ["x" * 10_000])
    for make in (new_folder, filled_folder):
        with full_disk(), pytest.raises(OSError, match="cannot be written") as caught:
            json_in_a_folder(make)
        assert str(caught.value).startswith(f"{tmp_path / 'model' / 'large.json'}: ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "model").mkdir()
    with full_disk(), pytest.raises(OSError, match=r"model/large\.json: cannot be written"):
        json_in_a_folder(filled_folder)


@pytest.mark.parametrize("new", [True, False])
def test_a_folder_is_filled_with_all_files_or_none(tmp_path, new):
    folder = tmp_path / "folder"
    if not new:
        folder.mkdir()
        (folder / "a").write_text("old")
    with suppress(RuntimeError), filled_folder(folder) as temporary:
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert folder.exists() != new
    assert [path.read_text() for path in folder.rglob("*")] == ([] if new else ["old"])
    with filled_folder(folder) as temporary:
        for name in "ab":
            (temporary / name).write_text("new")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "new", "b": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_numbers_of_numpy_are_those_of_python():
    numbers = {"a": np.int64(3), "b": [np.float32(0.5), np.longdouble(2)], "c": np.float64("nan")}
    assert json_text(numbers) == '{"a": 3, "b": [0.5, 2.0], "c": null}'


def test_text_that_spreadsheets_would_run_is_written_with_an_apostrophe(tmp_path):
    path = tmp_path / "x.csv"
    cells = ["=cmd|1", "+a", "@b", "-c", "-1.5", "+2e3", "a=b", -3]
    write_rows(path, [{"=x": cell} for cell in cells])
    expected = ["'=x", "'=cmd|1", "'+a", "'@b", "'-c", "-1.5", "+2e3", "a=b", "-3"]
    assert path.read_text().splitlines() == expected
