"""An agent's own view of its examples.

Agents look at their examples from a centre and in units of their own; heads travel in the features'
raw units, so that these are nobody else's affair. A centre close to the federation's matters all the
same: seen from its own mean, an agent that holds one class would learn nothing about the features.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.tasks.examples import Examples

EVEN = 8
"""Numbers of rows that are a multiple of this make fast products."""


@dataclass(frozen=True)
class LocalView:
    """Every agent's examples, as it sees them from its centre, in its units.

    Where there are more features than examples, a view from another centre is of the same numbers: only
    what is small changes.

    Attributes
    ----------
    rows : Tensor
        The examples from `base`, in its units, with a zero where heads have their bias,
        `[agents, examples, features + 1]`; padding is zero.
    moved : Tensor
        What brings them to the centre, in its units: an example is x + moved, `[agents, features]`.
    gram : Tensor
        The products of examples from the centre, `[agents, examples, examples]`; without columns
        where there are no fewer examples than features, and nobody needs it.
    total : Tensor
        The sum of `x` over the examples, `[agents, features]`.
    base : Tensor
        Where they are seen from, raw, `[agents, features]`.
    unit : Tensor or None
        The unit of each feature, raw, `[agents, features]`; None where it is 1.
    labels : Tensor
        One-hot labels, zero for padding, `[agents, classes, examples]`.
    real : Tensor
        1 where an example is real, 0 for padding, `[agents, examples, 1]`.
    count : Tensor
        The number of examples, `[agents, 1, 1]`.
    """

    rows: Tensor
    moved: Tensor
    gram: Tensor
    total: Tensor
    base: Tensor
    unit: Tensor | None
    labels: Tensor
    real: Tensor
    count: Tensor

    @staticmethod
    def of(
        examples: Examples,
        classes: int,
        centre: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> "LocalView":
        """Look at examples, from each agent's own mean and in raw units where nothing else is given."""
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
        return LocalView(
            rows=rows,
            moved=torch.zeros_like(centre),
            gram=_gram(rows[:, :, :-1]),
            total=seen.sum(1),
            base=centre,
            unit=unit,
            labels=labels,
            real=real,
            count=count,
        )

    @property
    def x(self) -> Tensor:
        """The examples from `base`, in its units, `[agents, examples, features]`."""
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
    def own_sum(self) -> Tensor:
        """The sum of each agent's examples, raw, `[agents, features]`."""
        return self.to_raw(self.total) + self.count[:, 0] * self.base

    def about(self, centre: Tensor) -> "LocalView":
        """Return the same examples as seen from other centres, raw, `[agents, features]`."""
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

    def of_agents(self, agents: Tensor) -> "LocalView":
        """Return the view of some agents, numbered by `agents`."""
        parts: dict[str, Any] = {
            name: None if value is None else value[agents] for name, value in vars(self).items()
        }
        return LocalView(**parts)

    def sketch(self, directions: Tensor, from_base: Tensor | None = None) -> Tensor:
        """Return Ωᵀ Σ x xᵀ of each agent's examples from its centre, `[agents, k, features]`.

        Parameters
        ----------
        directions : Tensor
            Ω, `[features, k]`.
        from_base : Tensor or None
            The same from `base`, which a view of more features than examples keeps: then it need not be
            computed again.
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
        """Turn distances in raw units into the agent's, `[agents, features]`."""
        return values if self.unit is None else values / self.unit

    def to_raw(self, values: Tensor) -> Tensor:
        """Undo `from_raw`."""
        return values if self.unit is None else values * self.unit


def with_column(values: Tensor, last: float) -> Tensor:
    """Put a column of equal numbers behind `values[…, columns]`."""
    return functional.pad(values, (0, 1), value=last)


def _padding(examples: int) -> int:
    """Return how many rows to add: products with a multiple of eight rows are up to a third faster."""
    missing = -examples % EVEN
    return missing if examples > EVEN and missing < EVEN / 2 else 0


def _gram(x: Tensor) -> Tensor:
    agents, examples, features = x.shape
    return x @ x.mT if features > examples else x.new_empty(agents, examples, 0)
