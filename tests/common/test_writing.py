"""Files that are complete or absent, and the forms of numbers and tables in them."""

import math
import os
from contextlib import suppress

import numpy as np
import pytest
import torch
from disks import full_disk

from fedsurf.common.files import read_json, read_metadata
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
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5], dtype=torch.float64)}


def test_a_write_on_a_full_disk_keeps_the_old_file(tmp_path):
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


def test_a_rename_or_flush_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
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


def test_a_file_has_its_name_only_after_the_block_succeeds(tmp_path):
    path = tmp_path / "deep" / "x"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path, umask):
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


def test_infinity_and_nan_are_null_in_json_and_in_metadata(tmp_path):
    content = {"a": [1.5, math.inf, (math.nan, -math.inf)]}
    write_json(tmp_path / "x.json", content)
    write_tensors(tmp_path / "x.safetensors", tensors(), content)
    for read in (read_json(tmp_path / "x.json"), read_metadata(tmp_path / "x.safetensors")):
        assert read == {"a": [1.5, None, [None, None]]}


def test_tables_are_utf_8_with_the_columns_of_all_rows_or_those_given(tmp_path):
    path = tmp_path / "x.csv"
    rows = [{"å": 1}, {"å": "ß,", "b": None}, {"b": "łódź"}]
    write_rows(path, rows)
    assert path.read_bytes() == 'å,b\n1,\n"ß,",\n,łódź\n'.encode()
    write_rows(path, iter(rows[:1]), ["b", "å"])
    assert path.read_bytes() == "b,å\n,1\n".encode()


def test_too_little_space_for_tensors_is_an_error_that_names_the_file(tmp_path):
    with full_disk(), pytest.raises(OSError, match=r"large\.safetensors: cannot be written"):
        write_tensors(tmp_path / "large.safetensors", {"a": torch.zeros(10_000)}, {})
    assert not any(path.name == "large.safetensors" for path in tmp_path.iterdir())


def test_errors_of_a_full_disk_have_the_final_name(tmp_path):
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


def test_numpys_numbers_are_written_like_pythons():
    numbers = {"a": np.int64(3), "b": [np.float32(0.5), np.longdouble(2)], "c": np.float64("nan")}
    assert json_text(numbers) == '{"a": 3, "b": [0.5, 2.0], "c": null}'


def test_text_that_spreadsheets_would_run_is_written_with_an_apostrophe(tmp_path):
    path = tmp_path / "x.csv"
    cells = ["=cmd|1", "+a", "@b", "-c", "-1.5", "+2e3", "a=b", -3]
    write_rows(path, [{"=x": cell} for cell in cells])
    expected = ["'=x", "'=cmd|1", "'+a", "'@b", "'-c", "-1.5", "+2e3", "a=b", "-3"]
    assert path.read_text().splitlines() == expected
