"""Reading JSON and tensors, and errors that name the file."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fedsurf.common.files import (
    FileError,
    read_columns,
    read_json,
    read_json_lines,
    read_metadata,
    read_tensors_into,
)
from fedsurf.common.writing import (
    write_json,
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
def test_a_truncated_file_is_named(tmp_path, left):
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors(), {})
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) if left == 0.5 else left])
    into = blank()
    for read in (lambda: read_tensors_into(path, into), lambda: read_metadata(path)):
        with pytest.raises(FileError, match=r"x\.safetensors: truncated, damaged or not"):
            read()
    assert all(tensor.abs().sum() == 0 for tensor in into.values())


def test_files_of_another_kind_and_missing_ones_are_named(tmp_path):
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


def test_damaged_metadata_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(tensors(), path, {"fedsurf": "{half"})
    with pytest.raises(FileError, match=r"x\.safetensors: truncated, damaged"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(3, 2)}, r"a is .* of shape \[2, 3\], but .*\[3, 2\] was expected"),
        ({"scalar": torch.zeros(1)}, r"scalar is .* of shape \[\], but .*\[1\]"),
        ({"a": torch.zeros(2, 3).double()}, r"a is .*float32 .*but .*float64 .*was expected"),
        ({"count": torch.zeros(3)}, r"count is .*int64 .*but .*float32 .*was expected"),
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


def test_damaged_and_missing_json_is_named(tmp_path):
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


def test_a_file_of_json_lines_is_read_line_by_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n[2]\n')
    assert read_json_lines(path) == [{"step": 1}, [2]]
    path.write_text('{"step": 1}\n{"ste')
    with pytest.raises(FileError, match=r"log\.jsonl: truncated, damaged or not lines of JSON"):
        read_json_lines(path)


def test_the_reason_of_the_csv_reader_ends_without_a_line_break(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(FileError, match=r"line 3, saw 3\)$"):
        read_columns(tmp_path / "a.csv", ["a"])
