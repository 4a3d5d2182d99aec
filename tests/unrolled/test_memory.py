"""The weights of mixing with memory stay where no head can run away, whatever the controller asks for."""

import torch
from random_data import weights as normal

from fedsurf.unrolled.transferable.graph import MIXING_LIMITS, mixing_weights
from fedsurf.unrolled.transferable.server import MAX_OLD_WEIGHT, server_weights


def test_over_a_graph_weights_sum_to_one_within_their_limits():
    correction, weights = mixing_weights(100 * normal(1, 500, len(MIXING_LIMITS)))
    torch.testing.assert_close(weights.sum(1), torch.ones_like(weights[:, 0]))
    found = torch.cat([correction, weights[:, 1:]], 1)
    for values, (below, above) in zip(found.T, MIXING_LIMITS.values(), strict=True):
        assert -below <= values.min() < -0.9 * below
        assert 0.9 * above < values.max() <= above


def test_small_wishes_are_nearly_granted():
    wish = 1e-4 * normal(2, 20, len(MIXING_LIMITS))
    correction, weights = mixing_weights(wish)
    granted = torch.cat([correction, weights[:, 1:]], 1)
    torch.testing.assert_close(granted, wish, rtol=2e-3, atol=0)


def test_a_wish_beyond_all_limits_still_has_a_slope():
    wish = torch.full((1, len(MIXING_LIMITS)), 50.0, requires_grad=True)
    correction, weights = mixing_weights(wish)
    (correction.sum() + weights[:, 1:].sum()).backward()
    assert (wish.grad > 0).all()


def test_a_server_means_over_its_agents_and_listens_to_them():
    wish = normal(3, 6, len(MIXING_LIMITS))
    keep, stay, old = server_weights(wish)
    bounded = wish / (1 + wish.abs())
    expected = bounded.mean(0)
    assert expected[2] + expected[3] < MAX_OLD_WEIGHT
    torch.testing.assert_close(torch.stack([keep, stay, old]), expected[1:])
    _, stay, old = server_weights(torch.full((3, len(MIXING_LIMITS)), 30.0))
    torch.testing.assert_close(stay + old, torch.tensor(MAX_OLD_WEIGHT, dtype=stay.dtype))
    torch.testing.assert_close(stay, old)
