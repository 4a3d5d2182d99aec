"""Cached results are read only for the content that they were computed from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from disks import full_disk

from fedsurf.common.cache import Cache
from fedsurf.common.files import read_all_tensors
from fedsurf.common.writing import write_tensors


@dataclass(frozen=True)
class Config:
    rounds: int = 3
    folder: Path = Path("data")


CONTENT = {"config": Config(), "seeds": (0, 1), "data": "5f2a", "rate": 0.1, "none": None}
TENSORS = {"loss": torch.arange(6.0).reshape(2, 3), "rounds": torch.tensor([1, 2])}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_an_entry_comes_back_bit_by_bit(cache):
    assert cache.read("DGD", CONTENT) is None
    cache.write("DGD", CONTENT, TENSORS)
    found = cache.read("DGD", CONTENT)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    "change",
    [{"config": Config(4)}, {"seeds": [0, 2]}, {"data": "5f2b"}, {"rate": 0.2}, {"none": 0}],
)
def test_other_content_is_another_entry(cache, change):
    cache.write("DGD", CONTENT, TENSORS)
    assert cache.read("DGD", CONTENT | change) is None


def test_equal_content_is_the_same_entry_in_any_order_and_types(cache):
    cache.write("DGD", CONTENT, TENSORS)
    same = {
        "rate": np.float64(0.1),
        "data": "5f2a",
        "seeds": [np.int64(0), 1],
        "config": {"folder": "data", "rounds": 3},
        "none": None,
    }
    assert cache.read("DGD", same) is not None


def test_a_collision_of_file_names_is_not_read(cache):
    cache.write("DGD", CONTENT, TENSORS)
    cache.path("DGD", CONTENT).rename(cache.path("DGD", {"other": 1}))
    assert cache.read("DGD", {"other": 1}) is None


def test_damaged_entries_are_not_read(cache):
    cache.write("DGD", CONTENT, TENSORS)
    path = cache.path("DGD", CONTENT)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        assert cache.read("DGD", CONTENT) is None
    write_tensors(path, TENSORS, {"content": "{}"})
    assert cache.read("DGD", CONTENT) is None
    cache.write("DGD", CONTENT, TENSORS)
    assert cache.read("DGD", CONTENT) is not None


def test_names_of_files_are_readable_safe_and_short(cache):
    name = "Møller's /../ method" + "é" * 300
    cache.write(name, CONTENT, TENSORS)
    (file,) = cache.folder.iterdir()
    assert file.name.startswith("møller-s------method")
    assert len(file.name.encode()) < 120
    assert cache.read(name, CONTENT) is not None


def test_without_a_folder_nothing_is_cached():
    cache = Cache(None)
    cache.write("DGD", CONTENT, TENSORS)
    assert cache.read("DGD", CONTENT) is None


def test_a_full_disk_gives_a_warning_and_leaves_no_entry(cache, caplog):
    with full_disk():
        cache.write("DGD", CONTENT, {"loss": torch.zeros(10_000)})
    assert "cannot be cached" in caplog.text
    assert cache.read("DGD", CONTENT) is None
    assert list(cache.folder.iterdir()) == []


def test_entries_are_ordinary_tensor_files(cache):
    cache.write("DGD", CONTENT, TENSORS)
    assert torch.equal(read_all_tensors(cache.path("DGD", CONTENT))["loss"], TENSORS["loss"])
