"""Devices by name."""

import pytest
import torch

from fedsurf.common.devices import device_named


def having(monkeypatch, *, cuda=False, mps=False):
    """Pretend that torch has these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({}, "cpu"),
        ({"cuda": True}, "cuda:0"),
        ({"mps": True}, "cpu"),
        ({"cuda": True, "mps": True}, "cuda:0"),
    ],
)
def test_auto_is_cuda_or_the_cpu(devices, expected, monkeypatch):
    having(monkeypatch, **devices)
    assert device_named("auto") == torch.device(expected)


def test_a_device_may_be_named_or_given():
    assert device_named("cpu") == torch.device("cpu")
    assert device_named(torch.device("cuda:1")) == torch.device("cuda:1")  # checked by its user


@pytest.mark.parametrize("name", ["gpu", "cpu:x", "", "cuda:99", 3.5, None])
def test_a_name_that_torch_cannot_use_here_is_refused(name):
    with pytest.raises(ValueError, match=rf"^device: got {name!r}, .* must be one of auto, cpu, "):
        device_named(name)
