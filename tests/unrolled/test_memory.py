"""The weights of mixing with memory stay where no head can run away, whatever the controller asks for."""

import torch
from random_data import weights as normal

from fedsurf.unrolled import memory
from fedsurf.unrolled.memory import LIMITS, MOST_OLD


def test_over_a_graph_weights_sum_to_one_within_their_limits():
    correction, weights = memory.over_graph(100 * normal(1, 500, len(LIMITS)))
    torch.testing.assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))
    found = torch.cat([correction, weights[:, 1:]], 1)
    for values, (below, above) in zip(found.T, LIMITS.values(), strict=True):
        assert -below <= values.min() < -0.9 * below
        assert 0.9 * above < values.max() <= above


def test_small_wishes_are_nearly_granted():
    wish = 1e-4 * normal(2, 20, len(LIMITS))
    correction, weights = memory.over_graph(wish)
    granted = torch.cat([correction, weights[:, 1:]], 1)
    torch.testing.assert_close(granted, wish, rtol=2e-3, atol=0)


def test_a_wish_beyond_all_limits_still_has_a_slope():
    wish = torch.full((1, len(LIMITS)), 50.0, requires_grad=True)
    correction, weights = memory.over_graph(wish)
    (correction.sum() + weights[:, 1:].sum()).backward()
    assert (wish.grad > 0).all()


def test_a_server_means_over_its_agents_and_listens_to_them():
    wish = normal(3, 6, len(LIMITS))
    keep, stay, old = memory.through_server(wish)
    bounded = wish / (1 + wish.abs())
    expected = bounded.mean(0)
    assert expected[2] + expected[3] < MOST_OLD
    torch.testing.assert_close(torch.stack([keep, stay, old]), expected[1:])
    _, stay, old = memory.through_server(torch.full((3, len(LIMITS)), 30.0))
    torch.testing.assert_close(stay + old, torch.tensor(MOST_OLD, dtype=stay.dtype))
    torch.testing.assert_close(stay, old)
