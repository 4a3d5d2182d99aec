"""Measures of all agents together: each agent contributes its own numbers, and the network sums.

Where agents live in many processes, `Network.total` and `Network.collect` answer by messages, which are not
counted: no algorithm needs them.
"""

import torch
from torch import Tensor

from fedsurf.common.checks import check_option
from fedsurf.common.devices import CPU
from fedsurf.models import Model, SoftmaxHead, cross_entropy
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
    return mean_over_agents(weights, network)[None]


def mean_over_agents(values: Tensor, network: Network) -> Tensor:
    """Return the mean of `values[agents, numbers]` over all agents that answer, `[numbers]`."""
    total = network.total(torch.cat([values, torch.ones_like(values[:, :1])], 1))
    return total[:-1] / total[-1]


def pooled_accuracy(model: Model, weights: Tensor, examples: Examples, network: Network) -> Tensor:
    """Return the share of all agents' examples that each of all agents classifies correctly, `[all agents]`.

    Where all agents have the same weights, as in methods through a server, they are evaluated once.
    """
    pool, heads = examples.pooled(), network.collect(weights)
    # Of all agents, so that all processes decide alike, whichever rows they have.
    if (heads == heads[:1]).all():
        return share_of_hits(model, heads[:1], pool, network).expand(network.agents)
    return share_of_hits(model, heads, pool, network)


def share_of_hits(model: Model, heads: Tensor, pool: Examples, network: Network) -> Tensor:
    """Return the share of all agents' examples that each head classifies correctly, `[heads]`.

    `heads` are `[heads, parameters]`, and `pool` the examples of the agents that live here, as of one agent.
    """
    hits = model.logits(heads, pool.x).max(2).indices == pool.y
    return _mean_over_examples(hits.to(heads.dtype), network)


def mean_loss(model: SoftmaxHead, heads: Tensor, pool: Examples, network: Network) -> Tensor:
    """Return the mean cross-entropy of each head over all agents' examples, `[heads]`; see above."""
    scores = model.logits(heads, pool.x)
    return _mean_over_examples(cross_entropy(scores, pool.y.expand(len(heads), -1)), network)


def _mean_over_examples(values: Tensor, network: Network) -> Tensor:
    """Average `values[heads, examples]` over the examples of all processes."""
    count = values.new_full((1,), values.shape[1])
    total = network.total(torch.cat([values.sum(1), count])[None])
    return total[:-1] / total[-1]


def disagreement(weights: Tensor, network: Network) -> Tensor:
    """Return the root mean square distance of the agents' weights from their mean, a scalar."""
    squares = (weights - consensus(weights, network)).square().sum(1, keepdim=True)
    return mean_over_agents(squares, network)[0].sqrt()


def sent_so_far(network: Network) -> tuple[int, int]:
    """Return the numbers of floats and of bytes that all processes sent in rounds so far."""
    own = torch.tensor([[network.floats, network.bytes]], device=CPU)
    floats, size = network.total(own).tolist()
    return int(floats), int(size)


def all_finite(weights: Tensor, network: Network) -> bool:
    """Whether all agents' weights are finite."""
    wrong = (~weights.isfinite()).sum(1, keepdim=True)
    return not int(network.total(wrong)[0])
