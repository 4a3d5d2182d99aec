"""Every algorithm computes on the device of its data: fake CUDA tensors refuse operations that mix devices."""

import ast
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_data import seeded
from test_rows_anywhere import FAULTS, SUBJECTS, task
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

import fedsurf
from fedsurf.common.streams import Streams
from fedsurf.network import with_faults

CUDA = torch.device("cuda:0")  # without a number, torch would ask the driver


BY_AUTOGRAD = ("moon", "modules")
"""Backward passes on CUDA ask for a driver; tensors without numbers refuse mixed devices, too."""


class FakeCuda(FakeTensorMode):
    """Tensors on CUDA are fake, those of the host are real: draws, calls and sizes are known there."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        given = tree_leaves((arguments, named))
        device = named.get("device")
        elsewhere = device is not None and torch.device(device).type != "cpu"
        if elsewhere or any(isinstance(one, FakeTensor) for one in given):
            return super().__torch_dispatch__(function, types, arguments, named)
        with unset_fake_temporarily():
            return function(*arguments, **named)


def indexed(values, key):
    """Index as torch does. Torch's own function asks for a driver, which a CPU build lacks."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, torch.Tensor)]:
        place = next(i for i, k in enumerate(keys) if k is Ellipsis)
        taken = sum(k is not None for k in keys) - 1
        keys[place : place + 1] = [slice(None)] * (values.dim() - taken)
    dimension, indices = 0, []
    for one in keys:
        if one is None:
            values = values.unsqueeze(dimension)
        elif isinstance(one, int):
            values = values.select(dimension, one)
            continue
        elif isinstance(one, slice):
            values = torch.ops.aten.slice(values, dimension, one.start, one.stop, one.step or 1)
        indices.append(one if isinstance(one, torch.Tensor) else None)
        dimension += 1
    if any(index is not None for index in indices):
        values = torch.ops.aten.index(values, indices)
    return values


def assign(values, key, new):
    """Assign to an index; see `indexed`."""
    place = indexed(values, key)
    torch.ops.aten.copy_(place, new) if isinstance(new, torch.Tensor) else place.fill_(new)


def inverted(mask):
    """Invert a mask; see `indexed`."""
    return torch.ops.aten.bitwise_not(mask)


def with_parameters_on(algorithm, device):
    """Return a copy whose learned parameters are fake tensors on a device."""
    algorithm = copy(algorithm)
    module = (
        algorithm if isinstance(algorithm, nn.Module) else getattr(algorithm, "optimizer", None)
    )
    for part in module.modules() if module is not None else ():
        for name, value in list(part._parameters.items()):
            if value is not None:
                part._parameters[name] = nn.Parameter(torch.empty(value.shape, device=device))
    return algorithm


def two_steps(subject, device):
    """Return the weights after two steps on a device, with data and network set up on the host."""
    network = subject.network()
    if subject.faults:
        network = with_faults(network, FAULTS, seeded(4))
    network.reset(seeded(7))
    data, algorithm = task(torch.float32), subject.algorithm(torch.float32)
    if hasattr(algorithm, "iterations"):
        algorithm = replace(algorithm, iterations=2)
    streams = Streams(9, network.ids)
    spectrum = network.facts.spectrum
    assert spectrum.averages
    assert spectrum.lowest_eigenvalue < spectrum.second_eigenvalue
    assert spectrum.keeps_average
    with FakeCuda(allow_non_fake_inputs=True) if device == CUDA else nullcontext():
        data, algorithm = data.to(device=device), with_parameters_on(algorithm, device)
        state = algorithm.init(data, network, streams.at("start"))
        for step in range(2):
            state = algorithm.step(state, data, network, streams.at("step", step))
    return state.weights


@torch.no_grad()
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.name not in BY_AUTOGRAD], ids=str)
def test_init_and_two_steps_stay_on_the_device(subject, monkeypatch):
    monkeypatch.setattr(FakeTensor, "__getitem__", indexed)
    monkeypatch.setattr(FakeTensor, "__setitem__", assign)
    monkeypatch.setattr(FakeTensor, "__invert__", inverted)
    weights = two_steps(subject, CUDA)
    assert isinstance(weights, FakeTensor)
    assert weights.device == CUDA


@torch.no_grad()
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.name in BY_AUTOGRAD], ids=str)
def test_methods_with_gradients_by_autograd_stay_on_the_device(subject):
    assert two_steps(subject, torch.device("meta")).is_meta


FACTORIES = {
    "arange",
    "as_tensor",
    "empty",
    "eye",
    "full",
    "linspace",
    "normal",
    "ones",
    "rand",
    "randint",
}
FACTORIES |= {"randn", "randperm", "sparse_coo_tensor", "tensor", "tril_indices", "triu_indices"}
FACTORIES |= {"zeros"}
CORE = ("algorithms", "network", "unrolled", "surf", "tasks/task.py", "tasks/groups.py", "common")


def factories_without_device(path):
    """Return the calls in a file that make a tensor on whatever torch's default device is."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    return [
        f"{path.name}:{call.lineno}: {ast.unparse(call)}"
        for call in calls
        if ast.unparse(call.func) in {f"torch.{name}" for name in FACTORIES}
        and not any(keyword.arg == "device" for keyword in call.keywords)
    ]


def test_the_core_makes_no_tensor_without_a_device():
    root = Path(fedsurf.__file__).parent
    found = [root / "models.py", root / "evaluation" / "measures.py"]
    for name in CORE:
        found += [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
    assert len(found) > 40
    assert [call for path in found for call in factories_without_device(path)] == []


def test_a_factory_without_a_device_is_found(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("a = torch.zeros(3)\nb = torch.zeros(3, device=a.device)\n")
    assert factories_without_device(path) == ["one.py:1: torch.zeros(3)"]
