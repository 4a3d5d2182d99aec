"""Summaries of data and progress that agents exchange next to their heads, and what they conclude.

Summaries are averaged over the network as heads are. Of its examples, an agent sends in every round a few
sums (`data_sums`), from which all estimate the kind of problem (`FederationEstimate`): the number of
examples, noise, how many directions matter, how different agents are. In the first rounds it also sends
the sum of its examples, for a common centre, and a sketch of A, the second moment of the centred examples,
for the Newton-like steps: Y = A Ω with k random directions Ω that all agents know (`Curvature`), or A
itself where that is about as small. No summary is an example, and none depends on learned parameters.

E. J. Nyström, "Über die praktische Auflösung von Integralgleichungen …", Acta Mathematica 54, 1930;
J. A. Tropp, A. Yurtsever, M. Udell and V. Cevher, "Fixed-rank approximation of a positive-semidefinite
matrix from streaming data", NeurIPS 2017.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.common.randomness import generator as seeded
from fedsurf.models import SoftmaxHead
from fedsurf.network.wire import Layout, Sections
from fedsurf.unrolled.transferable.local import Groups, LocalExamples, by_group

SUMS_SIZE = 7
"""Numbers that describe an agent's data, after those of the classes."""
PROGRESS_SIZE = 4
"""Numbers that describe how an agent's head fits, after those of the classes."""
DESCRIPTION_SIZE = 11
"""Numbers that describe the problem to the controller."""
PRIOR_COUNT = 5.0
"""The number of examples that the federation's label distribution is worth to an agent."""
PROGRESS_DECAY = 0.5
"""The weight of earlier progress in a round."""
SKETCH_WIDTH, SERVER_SKETCH_WIDTH = 8, 32
"""The number of random directions of a sketch, over a graph and through a server."""
MAX_WHOLE_FEATURES = 32
"""Up to this many features, A itself is sent, although it is larger than a narrow sketch."""
DIAGONAL_SHIFT = 1e-5
"""Added to the sketch's diagonal, as a share of its trace, so that it can be inverted."""
ROUNDING_MULTIPLE = 32
"""A feature is constant if its examples are within this many roundings of their mean."""


@lru_cache(maxsize=64)
def sketch_directions(
    features: int, dtype: torch.dtype, width: int = SKETCH_WIDTH, device: torch.device = CPU
) -> Tensor:
    """Return Ω, orthonormal columns that depend on the number of features only, `[features, k]`."""
    if features <= max(MAX_WHOLE_FEATURES, 2 * width):
        return torch.eye(features, dtype=dtype, device=device)
    random = torch.randn(
        features, width, generator=seeded(features, "sketch"), dtype=torch.float64, device=CPU
    )
    basis: Tensor = torch.linalg.qr(random).Q
    return basis.to(device, dtype)


def pack(sketch: Tensor) -> Tensor:
    """Flatten sketches `[agents, k, features]` into messages; of a whole A, which is symmetric, half."""
    if sketch.shape[1] < sketch.shape[2]:
        return sketch.flatten(1)
    row, column = torch.tril_indices(*sketch.shape[1:], device=sketch.device)
    return sketch[:, row, column]


def unpack(message: Tensor, features: int, width: int) -> Tensor:
    """Undo `pack`."""
    if features > width:
        return message.reshape(len(message), width, features)
    row, column = torch.tril_indices(width, features, device=message.device)
    sketch = message.new_empty(len(message), width, features)
    sketch[:, row, column] = message
    sketch[:, column, row] = message
    return sketch


def message_layout(head: SoftmaxHead, sums: int, moments: int, others: int) -> Layout:
    """Return the sections of a message: a head, class by class, then these counts of numbers.

    The weights of one feature have its unit, and a section of their own. Sums, counts and what is in the
    features' raw units differ by orders of magnitude, and travel as they are; `moments` end with a sketch.
    """
    sketch = max(0, moments - head.features)
    layout = [
        Sections(head.features + 1, head.classes, interleaved=True),
        Sections(sums + moments - sketch, 1),
        Sections(1, sketch),
        Sections(others, 1),
    ]
    return [section for section in layout if section.repeats * section.size]


class Contribution(NamedTuple):
    """Each agent's summaries of its data, or averages of them."""

    sums: Tensor
    """`data_sums`, `[agents, classes + SUMS_SIZE]`."""
    moments: Tensor
    """The sum of the raw examples and the packed sketch, `[agents, …]`."""


@torch.no_grad()
def contributions(
    examples: tuple[LocalExamples, ...],
    groups: Groups,
    sketch: Tensor,
    directions: Tensor,
    *,
    centred: bool,
) -> Contribution:
    """Summarise the data of all groups of agents; `centred` is whether centres are the agents' means.

    `sketch` is that of the examples from `LocalExamples.base`, along Ω, `directions`.
    """

    def of_group(own: LocalExamples, from_base: Tensor) -> Contribution:
        moments = torch.cat([own.raw_sum, pack(own.sketch(directions, from_base))], 1)
        return Contribution(data_sums(own, centred=centred), moments)

    return by_group(of_group, groups, examples, sketch)


def data_sums(examples: LocalExamples, *, centred: bool) -> Tensor:
    """Sum up each agent's data, `[agents, classes + SUMS_SIZE]`.

    The examples of each class; then the examples, their squared lengths, the degrees of freedom of
    these, the products of pairs of one class, the number of such pairs, the squared products of pairs,
    and the number of pairs. A centre at the agent's own mean, `centred`, costs one degree of freedom.
    """
    if examples.wide:
        products = examples.gram
        lengths = products.diagonal(dim1=1, dim2=2)
        of_classes = ((examples.labels @ products) * examples.labels).sum((1, 2))
    else:
        lengths = examples.x.square().sum(2)
        products = examples.x.mT @ examples.x
        of_classes = (examples.labels @ examples.x).square().sum((1, 2))
    per_class = examples.labels.sum(2)
    own = lengths.sum(1)
    count = examples.count[:, 0, 0]
    same = of_classes - own
    same_pairs = (per_class * (per_class - 1)).sum(1)
    squares = products.square().sum((1, 2)) - lengths.square().sum(1)
    freedom = (count - int(centred)) * examples.base.shape[1]
    scalars = [count, own, freedom, same, same_pairs, squares, count * (count - 1)]
    return torch.cat([per_class, torch.stack(scalars, 1)], 1)


def common_centre(moments: Tensor, sums: Tensor, features: int) -> Tensor:
    """Return the mean of the examples behind averaged summaries, raw, `[agents, features]`."""
    return moments[:, :features] / _example_count(sums)[:, None]


@torch.no_grad()
def varying_count(sums: Tensor, moments: Tensor, directions: Tensor, unit: Tensor) -> Tensor:
    """Return how many features vary according to averaged summaries, `[agents]`; all if no feature does.

    The sketch of a constant feature is zero, but for rounding. Constant features are no reason to
    regularise less. `unit` is that of each feature, raw, `[agents, features]`; without columns for 1.
    """
    features = len(directions)
    sketch = unpack(moments[:, features:], *directions.shape)
    mean = common_centre(moments, sums, features).abs()
    rounding = ROUNDING_MULTIPLE * torch.finfo(sketch.dtype).eps * mean
    rounding = rounding / unit if unit.shape[1] else rounding
    # The largest product of a number of that size with all examples.
    lengths = sums[:, 1 - SUMS_SIZE].clamp(min=0)
    largest = rounding * (_example_count(sums) * lengths).sqrt()[:, None]
    found = (sketch.abs().amax(1) > largest).sum(1)
    return torch.where(found > 0, found, features).to(sketch.dtype)


@torch.no_grad()
def curvature(sums: Tensor, moments: Tensor, directions: Tensor, varying: Tensor) -> Curvature:
    """Return the second moment behind averaged summaries, of `varying[agents]` features."""
    sketch = unpack(moments[:, len(directions) :], *directions.shape)
    sketch = sketch / _example_count(sums)[:, None, None]
    return Curvature.of(sketch, directions, _mean_square(sums), varying)


def _example_count(sums: Tensor) -> Tensor:
    return sums[:, -SUMS_SIZE].clamp(min=1e-6)


def _mean_square(sums: Tensor) -> Tensor:
    """Return the mean square of a centred feature, `[agents]`."""
    _, own, freedom, *_ = sums[:, -SUMS_SIZE:].unbind(1)
    known = torch.where(freedom > 0, own / freedom.clamp(min=1e-6), 0.0)
    return torch.where(known > 0, known, 1.0)


class Curvature(NamedTuple):
    """Each agent's estimate of the federation's second moment: A ≈ Uᵀ diag(values) U + rest (I − Uᵀ U)."""

    axes: Tensor
    """U, `[agents, k, features]`."""
    values: Tensor
    """The second moments along the axes, `[agents, k]`."""
    rest: Tensor
    """The second moment in every other direction, `[agents]`."""

    @staticmethod
    @torch.no_grad()
    def of(sketch: Tensor, directions: Tensor, scale: Tensor, varying: Tensor) -> Curvature:
        """Find the leading directions by Nyström's approximation Y (Ωᵀ Y)⁻¹ Yᵀ.

        The other directions share the rest of the trace equally.

        `sketch` is Yᵀ = Ωᵀ A of each agent, `[agents, k, features]`, along Ω, `directions`; `scale` is
        tr(A) / features, and `varying` the number of features that are not constant, `[agents]`.
        """
        features, width = directions.shape
        trace = (features * scale.double()).clamp(min=1e-30)
        scale = scale * (features / varying)  # of those that vary
        if features == width:  # no other direction: the rest is not used
            values, turn = torch.linalg.eigh(sketch.double())
            axes = turn.mT.to(sketch.dtype)
            return Curvature(axes, values.clamp(min=0).to(sketch.dtype), scale)
        shift = DIAGONAL_SHIFT * trace[:, None, None]
        long = torch.addcmul(sketch, shift.to(sketch.dtype), directions.T)
        core = (long @ directions).double()
        values, turn = torch.linalg.eigh((core + core.mT) / 2)
        values = values.clamp(min=DIAGONAL_SHIFT / 10 * trace[:, None])
        # The squared singular values of Y (Ωᵀ Y)^(-1/2) are the values of Y (Ωᵀ Y)⁻¹ Yᵀ.
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


class FederationEstimate(NamedTuple):
    """Each agent's knowledge of the federation in a round."""

    classes: Tensor
    """The label distribution of the federation, `[agents, classes]`."""
    bends: Tensor
    """The mean of p (1 − p) of each class, `[agents, classes]`."""
    scale: Tensor
    """The mean square of a centred feature that varies, `[agents]`."""
    varying: Tensor
    """The number of features that vary, `[agents]`."""
    examples: Tensor
    """The mean number of an agent's examples, `[agents]`."""
    total: Tensor
    """The number of all agents' examples, `[agents]`."""
    description: Tensor
    """The controller's description of the problem, `[agents, DESCRIPTION_SIZE]`."""

    @staticmethod
    def of(
        sums: Tensor, progress: Tensor, varying: Tensor, *, features: int, agents: int
    ) -> FederationEstimate:
        """Interpret averages of `data_sums` and of `own_progress`; `varying[agents]` features vary."""
        per_class, scalars = sums[:, :-SUMS_SIZE], sums[:, -SUMS_SIZE:]
        classes = per_class.shape[1]
        mean, _, _, same, same_pairs, squares, pairs = scalars.unbind(1)
        scale = _mean_square(sums)
        energy = features * scale
        signal = torch.where(same_pairs > 0, same / same_pairs.clamp(min=1e-6), 0.0) / energy
        concentration = squares / pairs.clamp(min=1e-6) / energy.square()
        # In very large or very small units these squares overflow.
        concentration = torch.where((pairs > 0) & concentration.isfinite(), concentration, 0.0)
        least = (1 / varying.double()).to(concentration.dtype)
        dimension = -concentration.clamp(least, torch.ones_like(least)).log()
        examples = (agents * mean).clamp(min=1.0)
        total = examples.log()
        log_classes = math.log(classes)
        signal_to_noise = (signal.clamp(min=0) * total.exp() / classes + 0.1).log()
        values = [
            (total - dimension - log_classes) / 2,
            (torch.full_like(mean, log_classes) - math.log(10)) / 1.5,
            (mean.clamp(min=0.1).log() - log_classes) / 2,
            (dimension - 3) / 1.5,
            signal.clamp(min=0.003).log() / 2 + 1,
            signal_to_noise / 3,
            (varying.double().log().to(dimension.dtype) - dimension) / 2,
        ]
        described = torch.stack(values, 1).clamp(-4, 4)
        share = per_class.clamp(min=0) + 0.1
        share = share / share.sum(1, keepdim=True)
        bends, fit = progress[:, :classes], progress[:, classes:]
        scale = scale * (features / varying)
        return FederationEstimate(
            share, bends, scale, varying, mean, examples, torch.cat([described, fit], 1)
        )


def own_progress(
    probabilities: Tensor, fitted: Tensor, examples: LocalExamples, own: Tensor, federation: Tensor
) -> Tensor:
    """Describe how each agent's head fits, `[agents, classes + PROGRESS_SIZE]`.

    The mean of p (1 − p) of each class after the first step; the loss and the accuracy of the received
    head on the agent's examples before it fits them, close to those on test examples; the loss after the
    first step; and the divergence of its labels. Losses are in units of guessing.
    """
    classes, count = examples.labels.shape[1], examples.count[:, 0, 0]
    unit = count * loss_of_guessing(classes)

    def loss(found: Tensor) -> Tensor:
        right = (found * examples.labels).sum(1) + (1 - examples.real[:, :, 0])
        return -right.clamp(min=1e-6).log().sum(1) / unit

    # Ties, as at W = 0, are shared by all that tie.
    best = probabilities.amax(1, keepdim=True) <= probabilities * (1 + 1e-6)
    hits = ((best * examples.labels).sum(1) / best.sum(1)).sum(1) / count
    unusual = (own * (own.log() - federation.log())).sum(1)
    values = [loss(probabilities) - 0.5, hits - 0.5, loss(fitted) - 0.5, unusual]
    bends = (fitted * (examples.real.mT - fitted)).sum(2) / count[:, None]
    return torch.cat([bends, torch.stack(values, 1).clamp(-3, 3)], 1)


def no_progress(nodes: int, classes: int, like: Tensor) -> Tensor:
    """Return the progress before the first round: all classes equally likely."""
    bends = like.new_full((nodes, classes), (1 - 1 / classes) / classes)
    return torch.cat([bends, like.new_zeros(nodes, PROGRESS_SIZE)], 1)


def loss_of_guessing(classes: int) -> float:
    """Return the loss of guessing, the unit of losses; half a nat for one class."""
    return max(math.log(classes), 0.5)
