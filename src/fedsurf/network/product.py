"""The product behind a round: S, dense or sparse, and what all nodes hold."""

from typing import Any

import torch
from torch import Tensor


def product(operator: Tensor, values: Tensor) -> Tensor:
    """Return `operator[nodes, nodes]` times `values[nodes, columns]`, differentiable in the values."""
    if not operator.is_sparse:
        return _plain(operator, values)
    found: Tensor = _SparseProduct.apply(operator, values)  # type: ignore[no-untyped-call]
    return found


def _plain(operator: Tensor, values: Tensor) -> Tensor:
    # Adding nothing, instead of a plain product: that would make a matrix of zeros to begin with.
    return torch.addmm(values.detach(), operator, values, beta=0)


class _SparseProduct(torch.autograd.Function):
    """The product of a sparse matrix and a dense one; its derivative, too, does without a matrix of zeros."""

    # Without `setup_context`, for which torch would inspect the signature in every call.
    @staticmethod
    def forward(ctx: Any, operator: Tensor, values: Tensor) -> Tensor:
        ctx.operator = operator
        return _plain(operator, values)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        return None, _SparseProduct.apply(ctx.operator.t(), slope)  # type: ignore[no-untyped-call]
