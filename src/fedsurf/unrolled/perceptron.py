"""The perceptron of U-DGD: σ(M [w_i ‖ b_i] + d), the learned local update of the paper.

All agents share M, so its gradient over n agents is Gᵀ X, with the rows g_i of slopes and x_i of inputs.
At the paper's scale that matrix has 53 million numbers and its two factors have 1.5 million together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsurf.common.devices import CPU
from fedsurf.tasks.task import Examples
from fedsurf.unrolled.config import Activation

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "leaky-relu": functional.leaky_relu,
    "identity": lambda values: values,
}


class SharedMatrix(nn.Parameter):
    """A matrix by which all agents multiply, whose gradient can be taken as factors.

    While `factors` is a list, a backward pass appends the pair G `[agents, rows]`, X `[agents, columns]`
    to it instead of adding the matrix Gᵀ X to `grad`. None, as usual, leaves everything to autograd.
    """

    factors: list[tuple[Tensor, Tensor]] | None = None


class Perceptron(nn.Module):
    """One fully-connected layer, shared by all agents, from weights and a mini-batch to an update.

    Attributes
    ----------
    matrix : SharedMatrix
        M, `[parameters, parameters + batch]`. (The shape that the paper prints is a misprint.)
    offset : Parameter
        d, `[parameters]`.
    """

    def __init__(
        self, parameters: int, batch: int, activation: Activation, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[activation]
        bound = (parameters + batch) ** -0.5
        matrix = torch.empty(parameters, parameters + batch, device=CPU)
        self.matrix = SharedMatrix(matrix.uniform_(-bound, bound, generator=generator))
        offset = torch.empty(parameters, device=CPU)
        self.offset = nn.Parameter(offset.uniform_(-bound, bound, generator=generator))

    def forward(self, weights: Tensor, flat_batch: Tensor) -> Tensor:
        """Map `weights[agents, parameters]` and `flat_batch[agents, batch]` to an update of the weights."""
        product: Tensor = _Affine.apply(  # type: ignore[no-untyped-call]
            weights, flat_batch, self.matrix, self.offset
        )
        return self._activation(product)


class _Affine(torch.autograd.Function):
    """M [w_i ‖ b_i] + d for every agent, differentiated only by inputs that need it.

    The mini-batch usually does not: autograd would compute its half of the product in vain.
    """

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, flat_batch: Tensor, matrix: Tensor, offset: Tensor
    ) -> Tensor:
        joined = torch.cat([weights, flat_batch], 1)
        ctx.save_for_backward(joined, matrix)
        ctx.width = weights.shape[1]
        # Saved tensors may come back as other objects, without `factors`.
        ctx.shared = matrix if isinstance(matrix, SharedMatrix) else None
        return functional.linear(joined, matrix, offset)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        joined, matrix = ctx.saved_tensors
        for_weights, for_batch, for_matrix, for_offset = ctx.needs_input_grad
        factors = None if ctx.shared is None else ctx.shared.factors
        if for_matrix and factors is not None:
            factors.append((slope, joined))
            for_matrix = False
        return (
            slope @ matrix[:, : ctx.width] if for_weights else None,
            slope @ matrix[:, ctx.width :] if for_batch else None,
            slope.T @ joined if for_matrix else None,
            slope.sum(0) if for_offset else None,
        )


def flatten_batch(batch: Examples, classes: int) -> Tensor:
    """Lay out each agent's mini-batch example after example, each followed by its one-hot label.

    Returns `[agents, examples · (features + classes)]`.

    Examples
    --------
    >>> import torch
    >>> from fedsurf.tasks.task import Examples
    >>> flatten_batch(Examples(torch.tensor([[[0.5, 2.0]]]), torch.tensor([[1]])), classes=3)
    tensor([[0.5000, 2.0000, 0.0000, 1.0000, 0.0000]])
    """
    labels = functional.one_hot(batch.y, classes).to(batch.x.dtype)
    return torch.cat([batch.x, labels], 2).flatten(1)
