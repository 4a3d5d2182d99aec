"""Examples of agents of very different size, kept row after row.

Where one agent holds most of the rows, tensors in which everyone has room for as many would be nearly all
padding, and may not fit into memory. These are padded for some agents at a time (`trimmed`); whoever asks for
`x`, `y` or `mask` gets them as other examples have them, padded to the largest agent of all.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.tasks.examples import Examples


class UnpaddedExamples(Examples):
    """Labelled examples of agents, the rows of each behind those of the one before.

    Parameters
    ----------
    rows : Tensor
        Features, `[rows, features]`.
    labels : Tensor
        Labels as int64, `[rows]`.
    sizes : sequence of int
        How many of the rows are each agent's.
    """

    def __init__(self, rows: Tensor, labels: Tensor, sizes: Sequence[int]) -> None:
        if not len(rows) == len(labels) == sum(sizes):
            raise ValueError(
                f"sizes: got {sum(sizes)} rows of all agents, but there are {len(rows)} rows and "
                f"{len(labels)} labels"
            )
        self.rows, self.labels, self.sizes = rows, labels, list(sizes)

    @cached_property
    def x(self) -> Tensor:
        """Features, padded to the largest agent, `[agents, examples, features]`."""
        return self._padded.x

    @cached_property
    def y(self) -> Tensor:
        """Labels, padded to the largest agent, `[agents, examples]`."""
        return self._padded.y

    @cached_property
    def mask(self) -> Tensor | None:
        """True where an example is real, `[agents, examples]`; None where all of them are."""
        return self._padded.mask

    @cached_property
    def _padded(self) -> Examples:
        if len(set(self.sizes)) == 1:  # nothing to pad, nor to copy
            each = (self.agents, self.sizes[0])
            return Examples(self.rows.reshape(*each, *self.shape), self.labels.reshape(each))
        return self.trimmed(torch.arange(self.agents))

    @property
    def agents(self) -> int:
        """The number of agents."""
        return len(self.sizes)

    @property
    def shape(self) -> torch.Size:
        """The shape of an example."""
        return self.rows.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the features."""
        return self.rows.dtype

    @property
    def counts(self) -> Tensor:
        """How many examples each agent holds, int64 `[agents]`."""
        return torch.tensor(self.sizes, device=self.rows.device)

    @cached_property
    def extents(self) -> Tensor:
        """Up to which place each agent has examples, int64 `[agents]`."""
        return self.counts

    def place(self, row: int) -> tuple[int, int]:
        """Return whose a row is, and which of that agent's."""
        ends = self.counts.cumsum(0)
        agent = int(torch.searchsorted(ends, row, right=True))
        return agent, row - int(ends[agent]) + self.sizes[agent]

    def trimmed(self, agents: Tensor) -> Examples:
        """Return the examples of some agents, padded to the largest of them only."""
        xs, ys = self.rows.split(self.sizes), self.labels.split(self.sizes)  # type: ignore[no-untyped-call]
        chosen = agents.tolist()
        return Examples.pad([xs[agent] for agent in chosen], [ys[agent] for agent in chosen])

    def pooled(self) -> Examples:
        """Return all examples of all agents as the examples of one agent."""
        return Examples(self.rows[None], self.labels[None])

    def to(self, dtype: torch.dtype) -> Examples:
        """Return the same examples with features of another floating type."""
        return UnpaddedExamples(self.rows.to(dtype), self.labels, self.sizes)

    def __repr__(self) -> str:
        """Say how many there are, and pad nothing for it."""
        return f"UnpaddedExamples({len(self.rows)} rows of {self.agents} agents)"
