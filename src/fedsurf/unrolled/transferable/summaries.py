"""What agents tell each other beside their heads: a few sums about their data and their progress.

The sums are averaged over the network round by round, as the heads are. From them every agent
estimates what kind of problem the federation has: how many examples, how noisy, how many directions
matter, how different the agents are. Nothing in them is an example.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.unrolled.transferable.local_view import LocalView

SUMS = 7
"""Numbers that describe an agent's data."""
PROGRESS = 4
"""Numbers that describe how its head fits, beside one for each class."""
SIGNALS = 11
"""Numbers that an agent derives from them."""
PRIOR = 5.0
"""How many examples the federation's label distribution is worth beside an agent's own."""
FORGETTING = 0.5
"""How much of what was heard of progress before stays in a round."""


def data_sums(view: LocalView, *, centred: bool) -> Tensor:
    """Sum up each agent's data: `[agents, classes + SUMS]`.

    The examples of each class; then the examples, their squared lengths, the degrees of freedom of
    these, the products of pairs of one class, the number of such pairs, the squared products of
    pairs, and the number of pairs.

    Parameters
    ----------
    view : LocalView
        The data.
    centred : bool
        Whether the agents' centres are their own means, which costs each a degree of freedom.
    """
    if view.wide:
        products = view.gram
        lengths = products.diagonal(dim1=1, dim2=2)
        of_classes = ((view.labels @ products) * view.labels).sum((1, 2))
    else:
        lengths = view.x.square().sum(2)
        products = view.x.mT @ view.x
        of_classes = (view.labels @ view.x).square().sum((1, 2))
    per_class = view.labels.sum(2)
    own = lengths.sum(1)
    count = view.count[:, 0, 0]
    same = of_classes - own
    same_pairs = (per_class * (per_class - 1)).sum(1)
    squares = products.square().sum((1, 2)) - lengths.square().sum(1)
    freedom = (count - int(centred)) * view.base.shape[1]
    scalars = [count, own, freedom, same, same_pairs, squares, count * (count - 1)]
    return torch.cat([per_class, torch.stack(scalars, 1)], 1)


@dataclass(frozen=True)
class Heard:
    """What an agent knows of the federation in a round.

    Attributes
    ----------
    classes : Tensor
        The estimated label distribution of the federation, `[agents, classes]`.
    bends : Tensor
        The mean of p (1 − p) of each class, `[agents, classes]`.
    scale : Tensor
        The mean square of a centred feature that varies, `[agents]`.
    varying : Tensor
        How many features vary, `[agents]`.
    examples : Tensor
        The mean number of an agent's examples, `[agents]`.
    total : Tensor
        The number of all agents' examples, `[agents]`.
    signals : Tensor
        Everything that the controller sees of the problem, `[agents, SIGNALS]`.
    """

    classes: Tensor
    bends: Tensor
    scale: Tensor
    varying: Tensor
    examples: Tensor
    total: Tensor
    signals: Tensor


def heard_scale(sums: Tensor) -> Tensor:
    """Return the mean square of a centred feature, `[agents]`, from the averages of `data_sums`."""
    _, own, freedom, *_ = sums[:, -SUMS:].unbind(1)
    known = torch.where(freedom > 0, own / freedom.clamp(min=1e-6), 0.0)
    return torch.where(known > 0, known, 1.0)


def hear(sums: Tensor, progress: Tensor, varying: Tensor, *, features: int, agents: int) -> Heard:
    """Interpret the averages of `data_sums` and of progress.

    Parameters
    ----------
    sums : Tensor
        `[agents, classes + SUMS]`.
    progress : Tensor
        `[agents, classes + PROGRESS]`.
    varying : Tensor
        How many of the features are not constant, `[agents]` (`moments.varying`).
    features, agents : int
        The number of features and of agents in the federation.
    """
    per_class, scalars = sums[:, :-SUMS], sums[:, -SUMS:]
    classes = per_class.shape[1]
    mean, _, _, same, same_pairs, squares, pairs = scalars.unbind(1)
    scale = heard_scale(sums)
    energy = features * scale
    signal = torch.where(same_pairs > 0, same / same_pairs.clamp(min=1e-6), 0.0) / energy
    concentration = squares / pairs.clamp(min=1e-6) / energy.square()
    # In very large or very small units these squares are no numbers: then they tell nothing.
    concentration = torch.where((pairs > 0) & concentration.isfinite(), concentration, 0.0)
    least = (1 / varying.double()).to(concentration.dtype)
    dimension = -concentration.clamp(least, torch.ones_like(least)).log()
    examples = (agents * mean).clamp(min=1.0)
    total = examples.log()
    log_classes = math.log(classes)
    signal_to_noise = (signal.clamp(min=0) * total.exp() / classes + 0.1).log()
    signals = [
        (total - dimension - log_classes) / 2,
        (torch.full_like(mean, log_classes) - math.log(10)) / 1.5,
        (mean.clamp(min=0.1).log() - log_classes) / 2,
        (dimension - 3) / 1.5,
        signal.clamp(min=0.003).log() / 2 + 1,
        signal_to_noise / 3,
        (varying.double().log().to(dimension.dtype) - dimension) / 2,
    ]
    learned = torch.stack(signals, 1).clamp(-4, 4)
    share = per_class.clamp(min=0) + 0.1
    share = share / share.sum(1, keepdim=True)
    bends, fit = progress[:, :classes], progress[:, classes:]
    scale = scale * (features / varying)
    return Heard(share, bends, scale, varying, mean, examples, torch.cat([learned, fit], 1))


def own_progress(
    probabilities: Tensor, fitted: Tensor, view: LocalView, own: Tensor, federation: Tensor
) -> Tensor:
    """Describe how an agent's head fits, `[agents, classes + PROGRESS]`.

    The mean of p (1 − p) of each class after the first step; the loss and the accuracy, on its own
    examples, of what it heard before it fitted it, which is close to what examples that nobody fitted
    would say; the loss after the first step; and how unusual its labels are. Losses are in units of
    guessing.
    """
    classes, count = view.labels.shape[1], view.count[:, 0, 0]
    unit = count * loss_of_guessing(classes)

    def loss(found: Tensor) -> Tensor:
        right = (found * view.labels).sum(1) + (1 - view.real[:, :, 0])
        return -right.clamp(min=1e-6).log().sum(1) / unit

    # Ties, as at W = 0, are shared by all that tie.
    best = probabilities.amax(1, keepdim=True) <= probabilities * (1 + 1e-6)
    hits = ((best * view.labels).sum(1) / best.sum(1)).sum(1) / count
    unusual = (own * (own.log() - federation.log())).sum(1)
    values = [loss(probabilities) - 0.5, hits - 0.5, loss(fitted) - 0.5, unusual]
    bends = (fitted * (view.real.mT - fitted)).sum(2) / count[:, None]
    return torch.cat([bends, torch.stack(values, 1).clamp(-3, 3)], 1)


def loss_of_guessing(classes: int) -> float:
    """Return the loss of guessing, the unit of losses; of one class half a nat."""
    return max(math.log(classes), 0.5)


def no_progress(nodes: int, classes: int, like: Tensor) -> Tensor:
    """Return what is known of progress before the first round: every class is as likely as any."""
    bends = like.new_full((nodes, classes), (1 - 1 / classes) / classes)
    return torch.cat([bends, like.new_zeros(nodes, PROGRESS)], 1)
