"""Graph shift operators: the S of the paper, whose product with W is one round of communication."""

import networkx as nx
import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from fedsurf.network.config import Shift

SPARSE_ABOVE = 64
"""Above this number of nodes an operator with few links is stored sparsely."""
DENSE_UP_TO = 300
"""Up to this number of nodes all eigenvalues are found at once."""


def shift_operator(graph: nx.Graph, shift: Shift = "adjacency") -> Tensor:
    """Return S as float64 `[nodes, nodes]`, sparse above `SPARSE_ABOVE` nodes if that pays.

    - `adjacency`: A + I, each row divided by its sum (a weighted mean of oneself and one's
      neighbours; rows sum to 1).
    - `metropolis`: Metropolis–Hastings weights 1 / (1 + max(degree_i, degree_j)), the rest on the
      diagonal (symmetric; rows and columns sum to 1).
    - `laplacian`: I − D^(−1/2) A D^(−1/2) (symmetric; eigenvalues between 0 and 2).
    """
    nodes = graph.number_of_nodes()
    edges = torch.tensor(sorted(graph.edges), dtype=torch.int64).reshape(-1, 2)
    degree = torch.tensor([graph.degree[node] for node in range(nodes)], dtype=torch.float64)
    row = torch.cat([edges[:, 0], edges[:, 1]])
    column = torch.cat([edges[:, 1], edges[:, 0]])
    match shift:
        case "adjacency":
            value = 1 / (1 + degree[row])
            diagonal = 1 / (1 + degree)
        case "metropolis":
            value = 1 / (1 + torch.maximum(degree[row], degree[column]))
            diagonal = 1 - torch.zeros_like(degree).index_add(0, row, value)
        case "laplacian":
            value = -1 / (degree[row] * degree[column]).sqrt()
            diagonal = torch.where(degree > 0, 1.0, 0.0).to(torch.float64)
        case _:
            raise ValueError(
                f"shift: got {shift!r}, but it must be 'adjacency', 'metropolis' or 'laplacian'"
            )
    own = torch.arange(nodes)
    places = torch.stack([torch.cat([row, own]), torch.cat([column, own])])
    operator = torch.sparse_coo_tensor(
        places, torch.cat([value, diagonal]), (nodes, nodes), check_invariants=True
    ).coalesce()
    few_links = operator.values().numel() < nodes * nodes / 10
    return operator if nodes > SPARSE_ABOVE and few_links else operator.to_dense()


def lowest_eigenvalue(operator: Tensor) -> float:
    """Return the smallest eigenvalue of an S that averages, float64 `[nodes, nodes]`, dense or sparse.

    Such an S need not be symmetric, but the matrix of √(S_ij S_ji) is, and has the same eigenvalues.
    """
    nodes = len(operator)
    if nodes <= DENSE_UP_TO:
        dense = operator.to_dense()
        return float(torch.linalg.eigvalsh((dense * dense.T).sqrt())[0])
    entries = operator.to_sparse().coalesce()
    places = tuple(entries.indices().numpy())
    matrix = csr_array((entries.values().numpy(), places), shape=(nodes, nodes))
    matrix = matrix.multiply(matrix.T).sqrt().tocsr()
    start = np.random.default_rng(0).standard_normal(nodes)
    found = eigsh(matrix, k=1, which="SA", v0=start, tol=1e-3, return_eigenvectors=False)
    return float(found[0])
