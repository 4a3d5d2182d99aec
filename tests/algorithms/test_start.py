"""Initial weights: independent ones, and the same at all agents."""

import pytest
import torch
from random_data import seeded
from torch import nn

from fedsurf.algorithms.algorithm import SharedStart, Start, fan_ins
from fedsurf.common.streams import Streams
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import StarNetwork

NET = nn.Sequential(
    nn.Conv2d(2, 40, 5), nn.GroupNorm(4, 40), nn.Flatten(), nn.Linear(40, 300, bias=False)
)
MODEL = ModuleModel(NET)


def test_a_start_is_normal_with_the_given_mean_and_deviation_at_every_agent():
    drawn = Start(2.0, 0.5).draw(SoftmaxHead(99, 10), Streams(0, range(50)), torch.empty(0))
    assert (drawn.shape, drawn.dtype) == ((50, 1000), torch.float32)
    assert abs(float(drawn.mean()) - 2) < 0.01
    assert abs(float(drawn.std()) - 0.5) < 0.01
    assert drawn.std(0).min() > 0.2  # independent agents


def test_matrices_of_a_shared_start_are_normal_by_their_fan_in_biases_zero_and_scales_one():
    like = torch.empty(0, dtype=torch.float64)
    weights = SharedStart(deviation=2.0).draw(MODEL, Streams(0, range(3)), like)
    assert weights.shape == (3, MODEL.parameters)
    assert weights.dtype == torch.float64
    assert (weights == weights[0]).all()
    sizes = [shape.numel() for shape in MODEL.shapes.values()]
    kernel, bias, scale, shift, matrix = torch.split(weights[0], sizes)
    assert kernel.std().item() == pytest.approx(2 / 50**0.5, rel=0.1)
    assert matrix.std().item() == pytest.approx(2 / 40**0.5, rel=0.05)
    assert (bias == 0).all()
    assert (shift == 0).all()
    assert (scale == 1).all()
    assert fan_ins(MODEL.shapes) == [50, 50, 50, 50, 40]


def test_a_shared_start_is_drawn_from_the_streams_only_and_a_server_has_it_too():
    network, before = StarNetwork(4, 2, seeded(0)), torch.get_rng_state()
    first, again, other = (
        SharedStart().draw(MODEL, Streams(seed, network.ids), torch.empty(0)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first) == 5
    alone = SharedStart().draw(MODEL, Streams(0, [3]), torch.empty(0))
    assert torch.equal(alone, first[:1])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shared_start_refuses_a_head():
    with pytest.raises(TypeError, match=r"^model: got a SoftmaxHead, .* a ModuleModel"):
        SharedStart().draw(SoftmaxHead(2, 2), Streams(0, range(3)), torch.empty(0))
