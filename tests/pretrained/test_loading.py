"""Pretrained optimizers: loading by name and from files, cards, and damaged files."""

from pathlib import Path

import pytest
import torch
from random_data import seeded
from random_data import task as draw_task
from running import run
from safetensors.torch import save_file

import fedsurf
from fedsurf import pretrained
from fedsurf.common.files import FileError, read_all_tensors
from fedsurf.common.writing import write_tensors
from fedsurf.network import StarNetwork
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.config import GradientTransferConfig
from fedsurf.unrolled.module_layer import GradientTransfer

SHAPE = {"width": 4, "class_width": 3, "confidence_width": 0}
ABOUT = {"optimizer": SHAPE}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    optimizer = Transferable(TransferableConfig(4, 3), seeded(0))
    path = tmp_path / "folder" / "small.safetensors"
    write_tensors(path, dict(optimizer.named_parameters()), {**ABOUT, "note": "for a test"})
    return path


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_parameters_have_the_type_of_the_file_whatever_torchs_default(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        optimizer = fedsurf.load(name)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(optimizer.parameters(), fedsurf.load(name).parameters(), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_optimizers_inside_the_package_are_loaded_by_name(name: str) -> None:
    optimizer = fedsurf.load(name)
    assert isinstance(optimizer, Transferable)
    assert all(not value.requires_grad for value in optimizer.parameters())
    assert all(value.isfinite().all() for value in optimizer.parameters())
    assert pretrained.card(name)["optimizer"] == vars(optimizer.config)
    assert len(pretrained.digest(name)) == 64
    assert fedsurf.load().config == optimizer.config


def test_the_shipped_optimizer_learns_over_a_graph_and_through_a_server() -> None:
    task = draw_task(0, agents=20, train=10, test=10, features=20, dtype=torch.float32)
    model = fedsurf.SoftmaxHead(20, 3)
    for network in (
        fedsurf.make_network(fedsurf.NetworkConfig(shift="metropolis"), 20, seeded(0)),
        StarNetwork(20, 10, seeded(0)),
    ):
        algorithm = fedsurf.load().on(model, rounds=10)
        weights = run(algorithm, task, network, algorithm.steps).agent_weights(network)
        assert model.pooled_accuracy(weights, task.test).min() > 0.8


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_loaded_by_its_path(file: Path, kind: type) -> None:
    optimizer = fedsurf.load(kind(file))
    assert optimizer.config == TransferableConfig(4, 3)
    stored = read_all_tensors(file)
    for name, value in optimizer.named_parameters():
        assert torch.equal(value, stored[name])
    assert pretrained.card(kind(file))["note"] == "for a test"


def test_an_optimizer_without_confidence_is_loaded(file: Path) -> None:
    assert fedsurf.load(file).confidence is None
    write_tensors(file, read_all_tensors(file), {"optimizer": {**SHAPE, "confidence_width": 2}})
    with pytest.raises(FileError, match=r"lacks the tensors .*confidence"):
        fedsurf.load(file)


@pytest.mark.parametrize(
    ("name", "least"), [("width", 1), ("class_width", 1), ("confidence_width", 0)]
)
def test_invalid_shapes_are_refused(name: str, least: int) -> None:
    for value, error in ((least - 1, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match=rf"^{name}: got {value}, but it must be "):
            Transferable(TransferableConfig(**{name: value}), seeded(0))


def test_other_weights_have_another_digest(file: Path) -> None:
    before = pretrained.digest(file)
    assert pretrained.digest(file) == before != pretrained.digest()
    tensors = read_all_tensors(file)
    tensors["graph.round_out.bias"][0] += 1e-6
    write_tensors(file, tensors, ABOUT)
    assert pretrained.digest(file) != before


def test_unknown_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^name: got 'nothing', .* one of module,"):
        fedsurf.load_for_modules("nothing")
    for act in (fedsurf.load, pretrained.card, pretrained.digest):
        with pytest.raises(ValueError, match=r"^name: got 'nothing', .* one of softmax-head"):
            act("nothing")
        with pytest.raises(FileError, match=r"no\.safetensors: there is no such file"):
            act(tmp_path / "no.safetensors")


def test_an_optimizer_of_another_kind_is_refused(file: Path) -> None:
    with pytest.raises(
        FileError, match=r"small\.safetensors: does not hold an optimizer of modules"
    ):
        fedsurf.load_for_modules(file)
    optimizer = GradientTransfer(GradientTransferConfig(4), seeded(0))
    card = {"optimizer": vars(optimizer.config)}
    write_tensors(file, dict(optimizer.named_parameters()), card)
    with pytest.raises(FileError, match=r"does not hold an optimizer of softmax heads"):
        fedsurf.load(file)


def test_damaged_and_foreign_files_are_errors_that_name_them(file: Path) -> None:
    content = file.read_bytes()
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(FileError, match=r"small\.safetensors: truncated"):
            fedsurf.load(file)
    save_file({"other": torch.zeros(3)}, file)
    with pytest.raises(FileError, match=r"small\.safetensors: .* not one that fedsurf wrote"):
        fedsurf.load(file)
    write_tensors(file, {"other": torch.zeros(3)}, {"config": {}})
    with pytest.raises(FileError, match=r"does not hold an optimizer of softmax heads"):
        fedsurf.load(file)
    write_tensors(file, {"other": torch.zeros(3)}, {"optimizer": {"width": 4, "colour": "red"}})
    with pytest.raises(FileError, match=r"does not hold an optimizer of softmax heads .*colour"):
        fedsurf.load(file)
    write_tensors(file, {"other": torch.zeros(3)}, {"optimizer": {**SHAPE, "width": 0}})
    with pytest.raises(FileError, match=r"small\.safetensors: does not hold .*width: got 0"):
        fedsurf.load(file)
    write_tensors(file, {"other": torch.zeros(3)}, ABOUT)
    with pytest.raises(FileError, match=r"small\.safetensors: lacks the tensors"):
        fedsurf.load(file)


def test_weights_of_another_shape_are_refused(file: Path) -> None:
    write_tensors(file, read_all_tensors(file), {"optimizer": {**SHAPE, "width": 5}})
    with pytest.raises(FileError, match=r"of shape \[4, 20\], but .*\[5, 20\] was expected"):
        fedsurf.load(file)
