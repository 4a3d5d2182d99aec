"""What is measured of all agents together: each agent contributes its own numbers, and the network sums.

Where agents live in many processes, `Network.total` and `Network.collect` answer by messages, which are not
counted: no algorithm needs them.
"""

import torch
from torch import Tensor

from fedsurf.common.checks import check_option
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Examples, Task


def shares(task: Task, network: Network, weighting: AgentWeighting = "uniform") -> Tensor:
    """Return the weights in f of the agents that live here, `[agents]`; over all agents they sum to 1."""
    check_option(weighting, AgentWeighting, "weighting")
    if weighting == "uniform":
        return task.train.x.new_full((task.agents,), 1 / network.agents)
    counts = task.train.counts.to(task.train.dtype)
    return counts / network.total(counts[:, None])


def consensus(weights: Tensor, network: Network) -> Tensor:
    """Return the mean of all agents' `weights[agents, parameters]`, `[1, parameters]`."""
    return network.total(weights)[None] / network.agents


def pooled_accuracy(model: Model, weights: Tensor, examples: Examples, network: Network) -> Tensor:
    """Return the share of all agents' examples that each of all agents classifies correctly, `[all agents]`.

    Where all agents have the same weights, as one expanded row, they are evaluated once.
    """
    if weights.stride(0) == 0 and len(weights):
        return pooled_hits(model, weights[:1], examples, network).expand(network.agents)
    return pooled_hits(model, network.collect(weights), examples, network)


def pooled_hits(model: Model, heads: Tensor, examples: Examples, network: Network) -> Tensor:
    """Return the share of all agents' examples that each of `heads[heads, parameters]` gets right."""
    pool = examples.pooled()
    hits = model.logits(heads, pool.x).max(2).indices == pool.y
    counts = torch.cat([hits.sum(1), hits.new_full((1,), hits.shape[1], dtype=torch.int64)])
    total = network.total(counts[None])
    return total[:-1].to(heads.dtype) / total[-1]


def disagreement(weights: Tensor, network: Network) -> Tensor:
    """Return the root mean square distance of the agents' weights from their mean, a scalar."""
    squares = (weights - consensus(weights, network)).square().sum(1, keepdim=True)
    return (network.total(squares)[0] / network.agents).sqrt()


def all_finite(weights: Tensor, network: Network) -> bool:
    """Whether all agents' weights are finite."""
    wrong = (~weights.isfinite()).sum(1, keepdim=True)
    return not int(network.total(wrong)[0])
