"""Checks of methods' arguments, and that a task, a network and a model fit together."""

import torch

from fedsurf.common.checks import check_count, check_kind, check_whole
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Task


def check_batch_size(batch_size: int | None) -> None:
    """Raise unless a mini-batch holds at least one example; None stands for all examples."""
    if batch_size is not None:
        check_whole(batch_size, "batch_size", " or None for all examples")
        check_count(batch_size, "batch_size", why=", or None for all examples")


def check_fits(task: Task, network: Network, model: Model | None = None) -> None:
    """Raise unless task and network have the same agents and the model takes their examples."""
    here = len(network.ids) - network.servers
    if task.agents != here:
        raise ValueError(
            f"task: got examples of {task.agents} agents, but the network has {here} agents"
        )
    if model is not None:
        model.check_takes(task.train, task.classes)


def check_head(model: Model, method: str) -> None:
    """Raise unless the model is a softmax head."""
    wanted = f"a SoftmaxHead, since {method} is a closed form for a linear classifier"
    check_kind(model, SoftmaxHead, "model", wanted)


def check_head_fits(model: SoftmaxHead, task: Task) -> None:
    """Raise unless the head has the task's features and classes."""
    if (model.features, model.classes) != (task.features, task.classes):
        raise ValueError(
            f"task: got {task.features} features and {task.classes} classes, but the model has "
            f"{model.features} features and {model.classes} classes"
        )


def check_precision(task: Task, method: str) -> None:
    """Raise if the covariance of a feature far from zero would be lost to rounding.

    The covariance is a difference of second moments, which are rounded to a share of the squared mean.
    """
    x = task.train.pooled().x[0].double()
    variance, offset = x.var(0, correction=0), x.mean(0).square()
    lost = (variance > 0) & (torch.finfo(task.train.x.dtype).eps * offset > variance / 2)
    if lost.any():
        feature = int(lost.nonzero()[0])
        raise ValueError(
            f"task: got feature {feature} with mean {float(x[:, feature].mean()):.4g} and standard deviation "
            f"{float(variance[feature].sqrt()):.2g}, but {method} cannot resolve it in "
            f"{task.train.x.dtype}: centre the features, or use float64"
        )


def check_server(network: Network) -> None:
    """Raise unless the network has a server."""
    if not network.server:
        raise ValueError(
            f"network: got a {type(network).__name__} without a server, but it must be a StarNetwork"
        )


def check_mixes(network: Network, method: str) -> None:
    """Raise unless the rows of S sum to 1, so that mixing keeps agreement."""
    if not network.facts.spectrum.averages:
        raise ValueError(
            f"network: got the shift operator {network.facts.shift!r}, which does not average, but {method} "
            "mixes averages: use 'metropolis' or 'adjacency'"
        )


def check_averages(network: Network, method: str) -> None:
    """Raise unless S is symmetric and its rows sum to 1, so that mixing keeps the agents' average.

    A star in which only some agents report is judged by the S of all agents.
    """
    if not network.facts.spectrum.keeps_average:
        raise ValueError(
            f"network: got the shift operator {network.facts.shift!r}, which on this graph is not "
            f"symmetric with rows that sum to 1, but {method} needs that: use 'metropolis'"
        )
