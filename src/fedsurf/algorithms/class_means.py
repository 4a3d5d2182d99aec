"""Nearest class mean, from averaged class sums and counts.

T. Mensink, J. Verbeek, F. Perronnin and G. Csurka, "Distance-based image classification:
generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.algorithms.checks import check_head, check_head_fits
from fedsurf.algorithms.gossip import AveragingMethod
from fedsurf.models import SoftmaxHead, head_weights
from fedsurf.tasks.task import Examples, Task


@dataclass(frozen=True)
class ClassMeans(AveragingMethod):
    """Average class sums and counts and choose the nearest class mean; fields as in `AveragingMethod`.

    An example belongs to the class c with the nearest mean μ_c. Without the terms of −½‖x − μ_c‖² that
    all classes share, this is the linear classifier

        score_c(x) = μ_c·x − ½‖μ_c‖².

    It is computed as (μ_c − μ)·(x − ½(μ_c + μ)) with μ the mean of the class means, so that features
    far from zero do not drown the differences between classes. Sums and counts, averaged over the
    agents, give the class means of the pooled examples. A message holds (features + 1) · classes
    floats, as many as the weights.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import ClassMeans
    >>> ClassMeans(SoftmaxHead(features=64, classes=10)).name
    'class means'
    """

    model: SoftmaxHead
    name = "class means"

    def __post_init__(self) -> None:
        check_head(self.model, self.name)

    def _statistics(self, task: Task, first: Tensor) -> Tensor:  # noqa: ARG002
        check_head_fits(self.model, task)
        return class_sums(task.train, task.classes)

    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        sums, counts = split_class_sums(estimates, self.model.classes)
        seen = seen_classes(counts)
        means = class_means(sums, counts, seen)
        middle = means.sum(1, keepdim=True) / seen.sum(1).clamp(min=1)[:, None, None]
        matrix = means - middle
        bias = -(matrix * (means + middle)).sum(2, keepdim=True) / 2
        return head_weights(torch.cat([matrix, bias], 2), seen)


def class_sums(examples: Examples, classes: int) -> Tensor:
    """Return each agent's class sums of features, then its counts, `[agents, classes · (p + 1)]`."""
    labels = functional.one_hot(examples.y, classes).to(examples.x.dtype)
    if examples.mask is not None:
        labels = labels * examples.mask[:, :, None]
    sums = torch.bmm(labels.transpose(1, 2), examples.x)
    return torch.cat([sums.flatten(1), labels.sum(1)], 1)


def split_class_sums(statistics: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Undo `class_sums`: sums `[agents, classes, features]` and counts `[agents, classes]`."""
    sums, counts = statistics[:, :-classes], statistics[:, -classes:]
    return sums.reshape(len(sums), classes, sums.shape[1] // classes), counts


def seen_classes(counts: Tensor) -> Tensor:
    """Return a mask of the classes that have examples, beyond rounding, given counts `[agents, classes]`.

    Counts may be negative in the first rounds of accelerated gossip: such a class is not known yet.
    """
    rounding = 8 * torch.finfo(counts.dtype).eps
    return counts > rounding * counts.sum(1, keepdim=True).clamp(min=0)


def class_means(sums: Tensor, counts: Tensor, seen: Tensor) -> Tensor:
    """Return the class means, 0 for classes without examples, `[agents, classes, features]`."""
    divided = sums / torch.where(seen, counts, 1)[:, :, None]
    return torch.where(seen[:, :, None], divided, 0)
