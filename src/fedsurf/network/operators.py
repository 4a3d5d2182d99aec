"""Graph shift operators: the S of the paper, whose product with W is one round of communication.

Here are S itself, its eigenvalues, its weights in a round with lost messages, and the product.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.checks import check_option
from fedsurf.common.devices import CPU
from fedsurf.network.config import LostWeights, Shift

MAX_DENSE_NODES = 64
"""Number of nodes up to which S is stored densely; above it, if it has many links."""
MAX_DENSE_LOWEST = 300
"""Number of nodes up to which the lowest eigenvalue is taken from the whole spectrum."""
MAX_DENSE_SECOND = 1000
"""Number of nodes up to which the second eigenvalue is taken from the whole spectrum."""


def shift_weights(links: Tensor, nodes: int, shift: Shift) -> tuple[Tensor, Tensor]:
    """Return the diagonal of S, `[nodes]`, and its entry for each link (from, to), `[links]`, in float64.

    - `adjacency`: A + I, each row divided by its sum: the mean over an agent and its neighbours.
    - `metropolis`: Metropolis–Hastings weights 1 / (1 + max(degree_i, degree_j)), the rest on the
      diagonal (symmetric; rows and columns sum to 1).
    - `laplacian`: I − D^(−1/2) A D^(−1/2) (symmetric; eigenvalues between 0 and 2).
    """
    check_option(shift, Shift, "shift")
    senders, receivers = links
    degree = torch.bincount(receivers, minlength=nodes).double()
    match shift:
        case "adjacency":
            return 1 / (1 + degree), 1 / (1 + degree[receivers])
        case "metropolis":
            value = 1 / (1 + torch.maximum(degree[senders], degree[receivers]))
            return 1 - torch.zeros_like(degree).index_add(0, senders, value), value
        case "laplacian":
            return (degree > 0).double(), -1 / (degree[senders] * degree[receivers]).sqrt()


def lowest_eigenvalue(operator: Tensor) -> float:
    """Return the smallest eigenvalue of an S that averages, float64 `[nodes, nodes]`.

    S need not be symmetric, but the matrix of √(S_ij S_ji) is, and has the same eigenvalues.
    """
    nodes = len(operator)
    if nodes <= MAX_DENSE_LOWEST:
        dense = operator.to_dense()
        return float(torch.linalg.eigvalsh((dense * dense.T).sqrt())[0])
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.linalg import eigsh

    entries = operator.to_sparse().coalesce()
    places = tuple(entries.indices().numpy())
    matrix = csr_array((entries.values().numpy(), places), shape=(nodes, nodes))
    matrix = matrix.multiply(matrix.T).sqrt().tocsr()
    start = np.random.default_rng(0).standard_normal(nodes)  # ARPACK's own would be random
    found = eigsh(matrix, k=1, which="SA", v0=start, tol=1e-3, return_eigenvectors=False)
    return float(found[0])


def second_eigenvalue(operator: Tensor) -> float:
    """Return the second largest absolute eigenvalue of a symmetric S whose rows sum to 1."""
    nodes = len(operator)
    if nodes == 1:
        return 0.0
    if nodes <= MAX_DENSE_SECOND:
        # The eigenvalue 1, of the average, becomes 0.
        return float(torch.linalg.eigvalsh(operator.to_dense() - 1 / nodes).abs().max())
    from scipy.sparse.linalg import LinearOperator, eigsh  # slow to import

    def deflated(vector: np.ndarray) -> np.ndarray:
        column = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1, 1))
        mixed: np.ndarray = (operator @ column).flatten().numpy() - vector.mean()
        return mixed

    start = torch.randn(
        nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device=CPU
    )
    matrix = LinearOperator((nodes, nodes), matvec=deflated, dtype=np.float64)
    found = eigsh(matrix, k=1, ncv=100, v0=start.numpy(), return_eigenvectors=False)
    return float(abs(found[0]))


@dataclass(frozen=True)
class LostMessages:
    """The messages of one round that do not arrive, as masks over the links, bool `[links]`, or None.

    Attributes
    ----------
    renormalised : Tensor or None
        Lost; the receiver's remaining weights, its own included, are scaled to the same sum.
    kept : Tensor or None
        Lost; the receiver uses its own value instead.
    unsent : Tensor or None
        Lost messages that were never sent, and so do not count as floats.
    absent : Tensor or None
        Nodes that are away and keep their values, bool `[nodes]`.
    """

    renormalised: Tensor | None = None
    kept: Tensor | None = None
    unsent: Tensor | None = None
    absent: Tensor | None = None

    @property
    def links(self) -> Tensor | None:
        """All links whose message is lost."""
        return _union(self.renormalised, self.kept)

    def with_links(self, links: Tensor, weights: LostWeights) -> "LostMessages":
        """Lose the messages of these links, too; `kept` has precedence over `renormalised`."""
        if weights == "kept-by-receiver":
            return replace(self, kept=_union(self.kept, links))
        return replace(self, renormalised=_union(self.renormalised, links))

    def with_absent(self, absent: Tensor, links: Tensor, weights: LostWeights) -> "LostMessages":
        """Let these nodes be away, too: nothing is sent over their links."""
        unsent = absent[links[0]] | absent[links[1]]
        return replace(
            self.with_links(unsent, weights),
            unsent=_union(self.unsent, unsent),
            absent=_union(self.absent, absent),
        )

    def over(self, links: Tensor) -> "LostMessages":
        """Restrict the masks to some links, bool `[links]`."""
        if self is NOTHING_LOST:
            return self
        renormalised, kept, unsent = (
            None if mask is None else mask[links]
            for mask in (self.renormalised, self.kept, self.unsent)
        )
        return LostMessages(renormalised, kept, unsent, self.absent)

    def weigh(self, own: Tensor, links: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of this round from those of S.

        `own[nodes]` are the weights of the nodes' own values, the diagonal of S; `links[links]` those of
        the messages, which go to the nodes `receivers[links]`.
        """
        if self is NOTHING_LOST:
            return own, links
        receivers = receivers.to(links.device)
        kept, renormalised, absent = (
            None if mask is None else mask.to(links.device)
            for mask in (self.kept, self.renormalised, self.absent)
        )
        if kept is not None:
            own = own.index_add(0, receivers, links * kept)
            links = links.masked_fill(kept, 0)
        if renormalised is not None:
            before = own.index_add(0, receivers, links)
            links = links.masked_fill(renormalised, 0)
            scale = before / own.index_add(0, receivers, links)
            own, links = scale * own, scale[receivers] * links
        if absent is not None:
            own = own.masked_fill(absent, 1)
        return own, links


def _union(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return left if right is None else right
    return torch.logical_or(left, right)


NOTHING_LOST = LostMessages()
"""Every message arrives."""


def product(operator: Tensor, values: Tensor) -> Tensor:
    """Return `operator[nodes, nodes]` times `values[nodes, …]`, differentiable in the values."""
    flat, multiply = values.flatten(1), _multiply
    if operator.is_sparse:
        multiply = _SparseProduct.apply
    return multiply(operator, flat).reshape(values.shape)


def _multiply(operator: Tensor, values: Tensor) -> Tensor:
    # With beta = 0 nothing is added; torch.sparse.mm would first create a matrix of zeros.
    return torch.addmm(values.detach(), operator, values, beta=0)


class _SparseProduct(torch.autograd.Function):
    """Product of a sparse and a dense matrix, whose derivative creates no matrix of zeros either."""

    # Without `setup_context`, for which torch would inspect the signature in every call.
    @staticmethod
    def forward(ctx: Any, operator: Tensor, values: Tensor) -> Tensor:
        ctx.operator = operator
        return _multiply(operator, values)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        return None, _SparseProduct.apply(ctx.operator.t(), slope)  # type: ignore[no-untyped-call]
