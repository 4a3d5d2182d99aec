"""What the federation knows of its features' second moment: a sketch, and the curvature behind it.

A Newton step needs the second moment A of all agents' features, p² numbers; an agent's own examples
are too few to estimate it. Agents share a sketch instead, Y = A Ω with k random directions Ω that all
of them know, which averages like everything else. Nyström's approximation Y (Ωᵀ Y)⁻¹ Yᵀ finds the
leading directions of A in it; the other directions get what is left of its trace, in equal parts.

E. J. Nyström, "Über die praktische Auflösung von Integralgleichungen …", Acta Mathematica 54, 1930;
J. A. Tropp, A. Yurtsever, M. Udell and V. Cevher, "Fixed-rank approximation of a positive-semidefinite
matrix from streaming data", NeurIPS 2017.

With few features, or so few that half of A is no more numbers than a sketch, agents share A itself.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedsurf.common.randomness import generator as seeded

WIDTH, WIDTH_THROUGH_SERVER = 8, 32
"""The number of random directions, where there is a sketch."""
FEW = 32
"""Of so few features, A itself is shared, although that is more numbers than a narrow sketch."""
SHIFT = 1e-5
"""What is added to the sketch's diagonal, as a share of its trace, so that it can be inverted."""


@lru_cache(maxsize=64)
def directions(features: int, dtype: torch.dtype, width: int = WIDTH) -> Tensor:
    """Return Ω, orthonormal columns that depend on the number of features only, `[features, k]`."""
    if features <= max(FEW, 2 * width):
        return torch.eye(features, dtype=dtype)
    random = torch.randn(features, width, generator=seeded(features, "sketch"), dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(random).Q
    return basis.to(dtype)


def pack(sketch: Tensor) -> Tensor:
    """Turn sketches `[agents, k, features]` into messages: of a whole A, which is symmetric, half."""
    if sketch.shape[1] < sketch.shape[2]:
        return sketch.flatten(1)
    row, column = torch.tril_indices(*sketch.shape[1:])
    return sketch[:, row, column]


def unpack(message: Tensor, features: int, width: int) -> Tensor:
    """Undo `pack`."""
    if features > width:
        return message.reshape(len(message), width, features)
    row, column = torch.tril_indices(width, features)
    sketch = message.new_empty(len(message), width, features)
    sketch[:, row, column] = message
    sketch[:, column, row] = message
    return sketch


@dataclass(frozen=True)
class Curvature:
    """The second moment as each agent knows it: A ≈ Uᵀ diag(values) U + rest (I − Uᵀ U).

    Attributes
    ----------
    axes : Tensor
        U, `[agents, k, features]`.
    values : Tensor
        The second moments along them, `[agents, k]`.
    rest : Tensor
        The second moment along every other direction, `[agents]`.
    """

    axes: Tensor
    values: Tensor
    rest: Tensor

    @staticmethod
    @torch.no_grad()
    def of(sketch: Tensor, known: Tensor, scale: Tensor, varying: Tensor) -> "Curvature":
        """Find the leading directions.

        Parameters
        ----------
        sketch : Tensor
            Yᵀ = Ωᵀ A of each agent, `[agents, k, features]`.
        known : Tensor
            Ω, `[features, k]`.
        scale : Tensor
            tr(A) / features of each agent, `[agents]`.
        varying : Tensor
            How many of the features are not constant, `[agents]`.
        """
        features, width = known.shape
        trace = (features * scale.double()).clamp(min=1e-30)
        scale = scale * (features / varying)  # of those that vary
        if features == width:
            values, turn = torch.linalg.eigh(sketch.double())
            # There is no other direction: the rest is nobody's.
            axes = turn.mT.to(sketch.dtype)
            return Curvature(axes, values.clamp(min=0).to(sketch.dtype), scale)
        shift = SHIFT * trace[:, None, None]
        long = torch.addcmul(sketch, shift.to(sketch.dtype), known.T)
        core = (long @ known).double()
        values, turn = torch.linalg.eigh((core + core.mT) / 2)
        values = values.clamp(min=SHIFT / 10 * trace[:, None])
        # Y (Ωᵀ Y)^(-1/2): its squares are the values that are sought, not their squares.
        long = (turn / values.sqrt()[:, None]).mT.to(sketch.dtype) @ long
        squares, turn = torch.linalg.eigh((long @ long.mT).double())
        squares = squares.clamp(min=0)
        kept = squares > 1e-10 * squares.amax(1, keepdim=True).clamp(min=1e-30)
        turn = torch.where(kept, 1 / squares.clamp(min=1e-30).sqrt(), 0.0)[:, None] * turn
        found = torch.where(kept, (squares - shift[:, 0]).clamp(min=0), 0.0)
        left = (trace - found.sum(1)) / (varying.double() - width).clamp(min=1)
        rest = torch.minimum(left.clamp(min=1e-3 * scale), scale.double())
        axes = turn.mT.to(sketch.dtype) @ long
        return Curvature(axes, found.to(sketch.dtype), rest.to(sketch.dtype))
