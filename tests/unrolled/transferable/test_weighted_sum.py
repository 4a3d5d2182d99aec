"""Sums of weighed rows, and their derivatives."""

import pytest
import torch
from random_data import weights as normal

from fedsurf.unrolled.transferable.graph import weighted_sum


def test_it_equals_a_loop():
    weights = normal(0, 4, 3)
    terms = [normal(10 + seed, 4, 5) for seed in range(3)]
    found = weighted_sum(weights, *terms)
    for row in range(4):
        for column in range(5):
            expected = sum(float(weights[row, k] * terms[k][row, column]) for k in range(3))
            assert float(found[row, column]) == pytest.approx(expected, rel=1e-12)
    plus = normal(20, 4, 5)
    torch.testing.assert_close(weighted_sum(weights, *terms, plus=plus), plus + found)


def test_its_derivatives_are_those_of_finite_differences():
    given = [normal(0, 4, 3), *(normal(10 + seed, 4, 5) for seed in range(3))]
    given = [value.requires_grad_() for value in given]
    assert torch.autograd.gradcheck(weighted_sum, given)

    def on_top(plus, *others):
        return weighted_sum(*others, plus=plus) + plus  # which is used twice

    assert torch.autograd.gradcheck(on_top, [normal(20, 4, 5).requires_grad_(), *given])


def test_terms_that_nobody_learns_get_no_derivative():
    weights = normal(0, 4, 2).requires_grad_()
    terms = [normal(10, 4, 5), normal(11, 4, 5).requires_grad_()]
    weighted_sum(weights, *terms).sum().backward()
    assert terms[0].grad is None
    torch.testing.assert_close(terms[1].grad, weights.detach()[:, 1:].expand(4, 5))
    torch.testing.assert_close(weights.grad[:, 0], terms[0].sum(1))
