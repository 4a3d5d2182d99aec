"""Every algorithm computes on the device of its data: fake CUDA tensors refuse operations that mix devices."""

import functools
from copy import copy

import pytest
import torch
from random_data import seeded
from test_rows_anywhere import FAULTS, SUBJECTS, task
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from fedsurf.common.streams import Streams
from fedsurf.network import StarNetwork, with_faults
from fedsurf.network.network import Called
from fedsurf.tasks.task import Examples, _unchecked

CUDA = torch.device("cuda:0")  # without a number, torch would ask the driver
ON_THE_HOST = [(Streams, name) for name in ("__init__", "__getitem__", "bits", "choose", "shared")]
ON_THE_HOST += [(Streams, name) for name in ("uniform", "normal", "at")]
ON_THE_HOST += [(StarNetwork, "call"), (Called, "only")]


def really(function):
    """Let a function of the host, such as a draw, compute real numbers within the fake mode."""

    @functools.wraps(function)
    def wrapped(*arguments, **named):
        with unset_fake_temporarily():
            return function(*arguments, **named)

    return wrapped


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
    place.copy_(new) if isinstance(new, torch.Tensor) else place.fill_(new)


def faked(examples, mode):
    """Return examples as fake tensors, whose mask is known on the host."""
    x, y, mask = (mode.from_tensor(one) for one in (examples.x, examples.y, examples.mask))
    return Examples(x, y, mask)._with_host_mask(examples.host_mask)


def with_parameters_on(algorithm, device):
    """Return a copy whose learned parameters are fake tensors on a device."""
    algorithm = copy(algorithm)
    module = algorithm if isinstance(algorithm, nn.Module) else getattr(algorithm, "optimizer", None)
    for part in module.modules() if module is not None else ():
        for name, value in list(part._parameters.items()):
            if value is not None:
                part._parameters[name] = nn.Parameter(torch.empty(value.shape, device=device))
    return algorithm


@torch.no_grad()
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_init_and_two_steps_stay_on_the_device(subject, monkeypatch):
    for owner, name in ON_THE_HOST:
        monkeypatch.setattr(owner, name, really(getattr(owner, name)))
    monkeypatch.setattr(FakeTensor, "__getitem__", indexed)
    monkeypatch.setattr(FakeTensor, "__setitem__", assign)
    network = subject.network()
    if subject.faults:
        network = with_faults(network, FAULTS, seeded(4))
    network.reset(seeded(7))
    data, algorithm = task(torch.float32), subject.algorithm(torch.float32)
    streams = Streams(9, network.ids)
    spectrum = network.facts.spectrum
    assert spectrum.averages and spectrum.lowest_eigenvalue < spectrum.second_eigenvalue  # set-up
    assert spectrum.keeps_average == (spectrum.averages or subject.star)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        parts = (faked(part, mode) for part in (data.train, data.test))
        data = _unchecked(*parts, data.classes)
        data, algorithm = data.to(device=CUDA), with_parameters_on(algorithm, CUDA)
        state = algorithm.init(data, network, streams.at("start"))
        for step in range(2):
            state = algorithm.step(state, data, network, streams.at("step", step))
    assert isinstance(state.weights, FakeTensor)
    assert state.weights.device.type == "cuda"
