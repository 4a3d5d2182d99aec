"""Sums of matrices whose rows are weighed by learned numbers: what mixing with memory is made of."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def weighted_sum(weights: Tensor, *terms: Tensor, plus: Tensor | None = None) -> Tensor:
    """Return Σ_k weights[:, k] · terms[k], row by row: `weights[rows, terms]`, a term `[rows, columns]`.

    With `plus`, that is added as it is. Autograd would keep and pass over several long matrices for
    every term; this keeps the terms only. It is differentiable once.
    """
    total: Tensor = _WeightedSum.apply(weights, plus, *terms)  # type: ignore[no-untyped-call]
    return total


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, plus: Tensor | None, *terms: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *terms)
        first = weights[:, :1], terms[0]
        total = torch.mul(*first) if plus is None else torch.addcmul(plus, *first)
        for place, term in enumerate(terms[1:], 1):
            total.addcmul_(weights[:, place, None], term)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weights, *terms = ctx.saved_tensors
        product = torch.empty_like(slope)
        of_weights = [torch.mul(slope, term, out=product).sum(1) for term in terms]
        of_terms = [
            weights[:, place, None] * slope if needed else None
            for place, needed in enumerate(ctx.needs_input_grad[2:])
        ]
        of_plus = slope if ctx.needs_input_grad[1] else None
        return torch.stack(of_weights, 1), of_plus, *of_terms
