"""The agents' examples, as each agent sees them: centred, and in units of its own.

Heads travel in the features' raw units, so units and centres stay local to the agent. A centre close to
the federation's mean matters all the same: centred at its own mean, an agent that holds one class would
learn nothing about the features.

Standardisation by communication: every agent sums up its examples (`own_spreads`), with the squares within
agents apart from those between them, so that a large offset does not drown the spread within. Over a graph
the sums are averaged along with the heads in the first rounds; through a server, the agents that are called
in them send theirs, and the server pools them. From these, agents estimate each feature's mean and unit
(`feature_units`), first from their own examples, then better in each of these rounds.

Agents whose numbers of examples differ a lot are in groups (`tasks.groups`), each padded to its own
largest agent. An operation on examples is for one group; `by_group` applies it to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.tasks.groups import join_groups, split_groups
from fedsurf.tasks.task import Examples

FAST_MULTIPLE = 8
"""Products are up to a third faster where the number of rows is a multiple of this."""
ROUNDING_MULTIPLE = 16
"""Differences of up to this many units in the last place are taken for rounding."""
ALIKE_RATIO, UNLIKE_RATIO = 10.0, 100.0
"""Spreads with a ratio below the first have one unit; above the second, several."""
FEW_ROWS, ENOUGH_ROWS = 2, 5
"""Small spreads of the first number of rows are ignored, those of the second are used."""
MOST_QUANTILES = (0.1, 0.9)
"""The quantiles between which the spreads of most features are."""

Groups = tuple[Tensor, ...]
"""The numbers of each group's agents, int64 `[agents of the group]`."""
Rows = TypeVar("Rows", bound=tuple[Tensor, ...])


def by_group(function: Callable[..., Rows], groups: Groups, *values: Any) -> Rows:
    """Apply `function` to each group of agents, and join the rows of the named tuples that it returns.

    `values` are tensors or named tuples of tensors with a row for each agent, or tuples with an item for
    each group; `Streams` are divided like tensors.
    """
    parts = [function(*own) for own in zip(*(split_rows(v, groups) for v in values), strict=True)]
    if len(parts) == 1:
        return parts[0]
    return type(parts[0])(*(join_groups(rows, groups) for rows in zip(*parts, strict=True)))


def split_rows(values: Any, groups: Groups) -> Sequence[Any]:
    """Return each group's part of one of the values of `by_group`."""
    if isinstance(values, Tensor):
        return split_groups(values, groups)
    if isinstance(values, Streams):
        return [values[agents] for agents in groups]
    if not hasattr(values, "_fields"):
        items: Sequence[Any] = values
        return items
    return [
        type(values)(*own) for own in zip(*(split_groups(v, groups) for v in values), strict=True)
    ]


@dataclass(frozen=True)
class LocalExamples:
    """The examples of a group of agents, from each agent's centre and in its units.

    With more features than examples, moving the centre changes small tensors only: `moved` and `gram`.
    """

    rows: Tensor
    """The examples from `base`, with a zero in the place of a head's bias; zero for padding, `[agents,
    examples, features + 1]`."""
    moved: Tensor
    """The vector from the centre to `base`, in the agent's units, `[agents, features]`."""
    gram: Tensor
    """The products of the centred examples, `[agents, examples, examples]`; empty unless there are more
    features than examples."""
    total: Tensor
    """The sum of `x` over the examples, `[agents, features]`."""
    base: Tensor
    """The origin of `rows`, raw, `[agents, features]`."""
    unit: Tensor | None
    """The unit of each feature, raw, `[agents, features]`; None for 1."""
    labels: Tensor
    """One-hot labels, zero for padding, `[agents, classes, examples]`."""
    real: Tensor
    """1 for an example, 0 for padding, `[agents, examples, 1]`."""
    count: Tensor
    """The number of examples, `[agents, 1, 1]`."""
    places: Tensor
    """Where examples are real, on the CPU, bool `[agents, examples]`."""

    @staticmethod
    def of(
        examples: Examples, classes: int, centre: Tensor | None = None, unit: Tensor | None = None
    ) -> LocalExamples:
        """Centre examples at `centre`, by default each agent's mean, and divide them by `unit`."""
        x = examples.x
        agents, most, features = x.shape
        rows = x.new_zeros(agents, most + _padding(most), features + 1)
        real = rows.new_zeros(*rows.shape[:2], 1)
        real[:, :most, 0] = 1 if examples.mask is None else examples.mask
        count = real.sum(1, keepdim=True)
        seen, present = rows[:, :most, :-1], real[:, :most]
        if centre is None:
            centre = (x if examples.mask is None else x * present).sum(1) / count[:, 0]
        torch.sub(x, centre[:, None], out=seen)
        if unit is not None:
            seen /= unit[:, None]
        if examples.mask is not None:
            seen *= present
        labels = x.new_zeros(agents, classes, rows.shape[1])
        labels[:, :, :most] = (functional.one_hot(examples.y, classes) * present).mT
        places = torch.zeros(agents, rows.shape[1], dtype=torch.bool, device=CPU)
        places[:, :most] = True if examples.host_mask is None else examples.host_mask
        own = rows[:, :, :-1]
        wide = features > rows.shape[1]
        return LocalExamples(
            rows=rows,
            moved=torch.zeros_like(centre),
            gram=own @ own.mT if wide else rows.new_empty(*rows.shape[:2], 0),
            total=seen.sum(1),
            base=centre,
            unit=unit,
            labels=labels,
            real=real,
            count=count,
            places=places,
        )

    @property
    def x(self) -> Tensor:
        """The examples from `base`, in the agent's units, `[agents, examples, features]`."""
        return self.rows[:, :, :-1]

    @property
    def wide(self) -> bool:
        """Whether there are more features than examples."""
        return self.gram.shape[2] > 0

    @property
    def centre(self) -> Tensor:
        """The agent's centre, raw, `[agents, features]`."""
        return self.base - self.to_raw(self.moved)

    @property
    def raw_sum(self) -> Tensor:
        """The sum of each agent's examples, raw, `[agents, features]`."""
        return self.to_raw(self.total) + self.count[:, 0] * self.base

    def recentred(self, centre: Tensor) -> LocalExamples:
        """Return the same examples from other centres, raw, `[agents, features]`."""
        moved = self.from_raw(self.base - centre)
        if not self.wide:
            rows = torch.addcmul(self.rows, with_column(moved, 0.0)[:, None], self.real)
            total = self.total + self.count[:, 0] * moved
            return replace(self, rows=rows, moved=torch.zeros_like(moved), total=total, base=centre)
        step = (moved - self.moved)[:, None]
        # A row times many is several times faster than many times a column.
        along = step @ self.x.mT + step @ self.moved[:, :, None]
        products = self.gram + along + along.mT + step.square().sum(2, keepdim=True)
        return replace(self, moved=moved, gram=products * self.real * self.real.mT)

    def batch(self, chosen: Tensor) -> LocalExamples:
        """Return a mini-batch: the examples in the places `chosen`, `[agents, size]`."""
        row = torch.arange(len(chosen), device=chosen.device)[:, None]
        rows, real, gram = self.rows[row, chosen], self.real[row, chosen], self.gram[row, chosen]
        if self.wide:
            gram = columns(gram, chosen)
        return replace(
            self,
            rows=rows,
            gram=gram,
            total=rows[:, :, :-1].sum(1),
            labels=columns(self.labels, chosen),
            real=real,
            count=real.sum(1, keepdim=True),
        )

    def sketch(self, directions: Tensor, from_base: Tensor | None = None) -> Tensor:
        """Return Ωᵀ Σ x xᵀ of each agent's centred examples for Ω `[features, k]`, `[agents, k, features]`.

        `from_base` is the sketch from `base`, which stays the same with more features than examples.
        """
        if from_base is None or not self.wide:
            from_base = (self.x @ directions).mT @ self.x
        if not self.wide:
            return from_base
        total, moved = self.total[:, None], self.moved[:, None]
        right = torch.cat([total + self.count * moved, moved], 1)
        along = torch.cat([moved, total], 1) @ directions
        return torch.baddbmm(from_base, along.mT, right)

    def from_raw(self, values: Tensor) -> Tensor:
        """Convert distances `[agents, features]` from raw units to the agent's."""
        return values if self.unit is None else values / self.unit

    def to_raw(self, values: Tensor) -> Tensor:
        """Convert distances `[agents, features]` from the agent's units to raw ones."""
        return values if self.unit is None else values * self.unit


def sketches(examples: tuple[LocalExamples, ...], groups: Groups, directions: Tensor) -> Tensor:
    """Return the sketches of all groups, `[agents, k, features]`."""
    return join_groups([own.sketch(directions) for own in examples], groups)


def recentred(
    examples: tuple[LocalExamples, ...], groups: Groups, centre: Tensor
) -> tuple[LocalExamples, ...]:
    """Return the examples of all groups from other centres, raw, `[agents, features]`."""
    centres = split_groups(centre, groups)
    return tuple(own.recentred(to) for own, to in zip(examples, centres, strict=True))


def with_column(values: Tensor, last: float) -> Tensor:
    """Append a column of equal numbers to `values[…, columns]`."""
    return functional.pad(values, (0, 1), value=last)


def columns(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the columns `chosen[agents, size]` of `values[agents, rows, columns]`."""
    return values.gather(2, chosen[:, None].expand(-1, values.shape[1], -1))


def _padding(examples: int) -> int:
    """Return the number of rows to add for fast products."""
    missing = -examples % FAST_MULTIPLE
    return missing if examples > FAST_MULTIPLE and missing < FAST_MULTIPLE / 2 else 0


def feature_units(
    spreads: Tensor, dtype: torch.dtype, *, every: bool, agents: Tensor | int = 1
) -> tuple[Tensor, Tensor]:
    """Return the mean and the unit of each feature, `[agents, features]`.

    The unit is the standard deviation, 1 for constant features. But features in one unit, such as pixels,
    embeddings or principal components, show by their spread how much they matter, and standardising
    takes that away. So unless `every` feature is to be standardised, the unit of a feature of spread d is
    s (d/s)^γ with the median spread s, where γ is 0 while most spreads are within a factor of ten, and 1
    where they are a hundred apart; a single feature that far from the median has its own γ.

    In two rows, a feature's spread may by chance be a hundredth of the true one, and standardising would
    blow it up. Until an agent knows of a few rows, spreads below s give the unit s, or one in between.

    `spreads` are the averages or the sums of `own_spreads` of about `agents` agents, `[agents, 1]`;
    `dtype` is the type of the examples, whose precision limits that of differences.
    """
    centre, within, squared_means = (spreads[:, 1:] / spreads[:, :1]).chunk(3, 1)
    eps = torch.finfo(dtype).eps
    # In a higher precision only the sums that were sent are rounded; in this one, the squares' difference.
    noise = (ROUNDING_MULTIPLE * eps * centre).square()
    if spreads.dtype == dtype:
        noise = ROUNDING_MULTIPLE * eps * centre.square()
    between = squared_means - centre.square()
    between = torch.where(between > noise, between, 0.0)
    deviation = (within + between).clamp(min=0).sqrt()
    trust = ((agents * spreads[:, :1] - FEW_ROWS) / (ENOUGH_ROWS - FEW_ROWS)).clamp(0, 1)
    unit = _shared_unit(deviation, trust, every=every)
    if every:
        own = torch.where(deviation > 0, deviation, 1.0)
        unit = torch.where((trust < 1) & (deviation > 0), unit, own)
    return centre.to(dtype), unit.to(dtype)


def own_spreads(examples: Examples) -> Tensor:
    """Sum up each agent's examples, `[agents, 1 + 3 · features]`.

    Their number; their sums; the squares about their means, 0 where rounding explains them; and their
    number times the squares of the means.
    """
    mask = torch.ones_like(examples.y) if examples.mask is None else examples.mask
    real = mask[:, :, None].double()
    x = examples.x.double() * real
    count = real.sum(1)
    mean = x.sum(1) / count
    squares = ((x - mean[:, None]) * real).square().sum(1)
    noise = ROUNDING_MULTIPLE * torch.finfo(x.dtype).eps * x.abs().amax(1)
    squares = torch.where(squares > count * noise.square(), squares, 0.0)
    parts = [count, count * mean, squares, count * mean.square()]
    return torch.cat(parts, 1).to(examples.x.dtype)


def without_squared_means(spreads: Tensor) -> Tensor:
    """Return what agents send to a server, `[agents, 1 + 2 · features]`; it can square their means itself."""
    return spreads[:, : 1 + 2 * (spreads.shape[1] // 3)]


def pooled_spreads(before: Tensor, received: Tensor) -> Tensor:
    """Add what agents sent, `[agents, 1 + 2 · features]`, to a server's sums, float64 `[1 + 3 · features]`."""
    count, sums = received[:, :1].double(), received[:, 1:].double().chunk(2, 1)[0]
    return before + torch.cat([received.double(), sums.square() / count], 1).sum(0)


def _shared_unit(deviation: Tensor, trust: Tensor, *, every: bool) -> Tensor:
    """Return s (d/s)^γ, `[agents, features]`; s for constant features.

    `trust[agents, 1]` is the confidence in small deviations. With `every`, γ is 1.
    """
    varies = deviation > 0
    logs = torch.where(varies, deviation, 1.0).log()
    ordered = torch.where(varies, logs, math.inf).sort(1).values
    last = (varies.sum(1, keepdim=True) - 1).clamp(min=0).double()

    def quantile(share: float) -> Tensor:
        found = ordered.gather(1, (share * last).round().long())
        return torch.where(found.isfinite(), found, 0.0)  # nothing varies

    middle = quantile(0.5)
    own = torch.where(varies, logs - middle, 0.0)
    power = torch.ones_like(own)
    if not every:
        low, high = (quantile(share) for share in MOST_QUANTILES)
        power = torch.maximum(_unlike(high - low), _unlike(own.abs()))
    return (middle + power * torch.where(own < 0, trust * own, own)).exp()


def _unlike(apart: Tensor) -> Tensor:
    """Return γ for a difference of logarithms of spreads."""
    alike, unlike = math.log(ALIKE_RATIO), math.log(UNLIKE_RATIO)
    return ((apart - alike) / (unlike - alike)).clamp(0, 1)


class FeatureRangeError(ValueError):
    """The squares of a task's features are too large or too small for their floating type."""


def check_range(examples: Examples) -> None:
    """Raise unless the squares of features can be computed.

    Standardising does not help where these overflow: it squares features, too.
    """
    kind, limits = str(examples.dtype).removeprefix("torch."), torch.finfo(examples.dtype)
    x = examples.pooled().x[0]
    widest = float((x.amax(0).double() - x.amin(0).double()).max())
    square = widest * widest  # infinite where ** would raise
    if square * max(examples.sizes) > limits.max:
        raise FeatureRangeError(
            f"task: got features as large as {float(x.abs().max()):.2g}, whose squares overflow in {kind}: "
            "give them in another unit"
        )
    if widest > 0 and square < limits.tiny:
        raise FeatureRangeError(
            f"task: got features that differ by no more than {widest:.2g}, whose squares "
            f"vanish in {kind}: give them in another unit"
        )
