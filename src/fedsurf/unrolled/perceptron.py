"""The perceptron of U-DGD: σ(M [w_i ‖ b_i] + d), the learned local update of the paper."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsurf.tasks.examples import Examples

Activation = Literal["relu", "tanh", "leaky-relu", "identity"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "leaky-relu": functional.leaky_relu,
    "identity": lambda values: values,
}


class Perceptron(nn.Module):
    """One fully-connected layer, shared by all agents, from weights and a mini-batch to an update.

    Attributes
    ----------
    matrix : Parameter
        M, `[parameters, parameters + batch]`. (The shape that the paper prints is a misprint.)
    offset : Parameter
        d, `[parameters]`.
    """

    def __init__(
        self, parameters: int, batch: int, activation: Activation, generator: torch.Generator
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation: got {activation!r}, but it must be one of {', '.join(_ACTIVATIONS)}"
            )
        self._activation = _ACTIVATIONS[activation]
        bound = (parameters + batch) ** -0.5
        matrix = torch.empty(parameters, parameters + batch)
        self.matrix = nn.Parameter(matrix.uniform_(-bound, bound, generator=generator))
        offset = torch.empty(parameters)
        self.offset = nn.Parameter(offset.uniform_(-bound, bound, generator=generator))

    def forward(self, weights: Tensor, flat_batch: Tensor) -> Tensor:
        """Map `weights[agents, parameters]` and `flat_batch[agents, batch]` to an update of the weights."""
        joined = torch.cat([weights, flat_batch], 1)
        return self._activation(functional.linear(joined, self.matrix, self.offset))


def flatten_batch(batch: Examples, classes: int) -> Tensor:
    """Lay out each agent's mini-batch example after example, each followed by its one-hot label.

    Returns `[agents, examples · (features + classes)]`.
    """
    labels = functional.one_hot(batch.y, classes).to(batch.x.dtype)
    return torch.cat([batch.x, labels], 2).flatten(1)
