"""Agents with unequal numbers of examples: examples without padding, and groups of agents of similar size.

Agents are rows of tensors, with as many places for each agent as the largest has examples. Where few agents
hold most examples, nearly all of that is padding. So agents are divided into groups, each padded to its own
largest agent; problems of ordinary size are one group.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.tasks.task import Examples

MAX_ORDINARY_SIZE = 4_000_000
"""Size of all agents' padded features up to which all agents are one group."""
MAX_PADDING, MAX_PADDING_SHARE = 250_000, 0.25
"""Size of the padding of a group in larger problems, absolute and relative to its features without padding."""


class UnpaddedExamples(Examples):
    """Labelled examples of agents, one agent's rows after another's: `rows[rows, features]`, `labels[rows]`.

    They are padded for some agents at a time (`trimmed`); `x`, `y` and `mask` are padded to the largest
    agent, as those of other examples, when they are first used. `sizes` are the agents' numbers of rows.

    Examples
    --------
    >>> import torch
    >>> from fedsurf.tasks.groups import UnpaddedExamples
    >>> examples = UnpaddedExamples(torch.ones(5, 2), torch.tensor([0, 1, 0, 1, 1]), [1, 4])
    >>> examples, examples.x.shape
    (UnpaddedExamples(5 rows of 2 agents), torch.Size([2, 4, 2]))
    """

    def __init__(self, rows: Tensor, labels: Tensor, sizes: Sequence[int]) -> None:
        if not len(rows) == len(labels) == sum(sizes):
            raise ValueError(
                f"sizes: got {sum(sizes)} rows of all agents, but there are {len(rows)} rows and "
                f"{len(labels)} labels"
            )
        self.rows, self.labels = rows, labels
        vars(self)["sizes"] = tuple(sizes)

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
    def host_mask(self) -> Tensor | None:
        """The mask on the CPU."""
        return self._padded.host_mask

    @cached_property
    def _padded(self) -> Examples:
        if len(set(self.sizes)) == 1:  # nothing to pad or copy
            each = (self.agents, self.sizes[0])
            return Examples(self.rows.reshape(*each, *self.shape), self.labels.reshape(each))
        return self.trimmed(torch.arange(self.agents, device=CPU))

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
        """The number of examples of each agent, int64 `[agents]`."""
        return torch.tensor(self.sizes, device=self.rows.device)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The number of places up to each agent's last example."""
        return self.sizes

    def stored(self) -> Examples:
        """Return the rows as the examples of one agent."""
        return self.pooled()

    def place(self, agent: int, example: int) -> tuple[int, int]:
        """Return the agent of a row, and the position among its examples."""
        ends = torch.tensor(self.sizes, device=CPU).cumsum(0)
        agent = int(torch.searchsorted(ends, example, right=True))
        return agent, example - int(ends[agent]) + self.sizes[agent]

    def trimmed(self, agents: Tensor) -> Examples:
        """Return the examples of some agents, padded to the largest of these."""
        sizes = list(self.sizes)
        xs, ys = self.rows.split(sizes), self.labels.split(sizes)  # type: ignore[no-untyped-call]
        chosen = agents.tolist()
        return Examples.pad([xs[agent] for agent in chosen], [ys[agent] for agent in chosen])

    def pooled(self) -> Examples:
        """Return all examples of all agents as the examples of one agent."""
        return Examples(self.rows[None], self.labels[None])

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Examples:
        """Return the same examples with features of another floating type, or on another device."""
        rows = self.rows.to(device=device, dtype=dtype)
        return UnpaddedExamples(rows, self.labels.to(device), self.sizes)

    def __repr__(self) -> str:
        """Show the numbers of rows and agents, without padding anything."""
        return f"UnpaddedExamples({len(self.rows)} rows of {self.agents} agents)"


def group_agents(examples: Examples) -> tuple[Tensor, ...]:
    """Divide agents into groups of similar size; return the numbers of the agents of each group.

    Examples
    --------
    >>> import torch
    >>> from fedsurf.tasks.groups import UnpaddedExamples, group_agents
    >>> sizes = [1] * 9 + [10_000]
    >>> examples = UnpaddedExamples(torch.ones(10_009, 50), torch.zeros(10_009, dtype=torch.int64), sizes)
    >>> [len(agents) for agents in group_agents(examples)]
    [1, 9]
    """
    extents, features = examples.extents, examples.features
    if len(extents) * max(extents, default=0) * features <= MAX_ORDINARY_SIZE:
        return (torch.arange(len(extents), device=CPU),)
    sizes, order = torch.tensor(extents, device=CPU).sort(descending=True, stable=True)
    begins, padding, held, largest = [], 0, 0, int(sizes[0])
    for place, size in enumerate(sizes.tolist()):
        padding += (largest - size) * features
        held += size * features
        if padding > max(MAX_PADDING, MAX_PADDING_SHARE * held):
            begins.append(place)
            padding, held, largest = 0, size * features, size
    return tuple(agents.sort().values for agents in order.tensor_split(begins))


def split_examples(examples: Examples, groups: tuple[Tensor, ...]) -> list[Examples]:
    """Return the examples of each group, padded to its own largest agent."""
    if len(groups) == 1:
        return [examples]
    return [examples.trimmed(agents) for agents in groups]


def split_groups(values: Tensor, groups: tuple[Tensor, ...]) -> list[Tensor]:
    """Return each group's rows of `values[agents, …]`."""
    if len(groups) == 1:
        return [values]
    return [values[agents] for agents in groups]


def join_groups(parts: Sequence[Tensor], groups: tuple[Tensor, ...]) -> Tensor:
    """Undo `split_groups`."""
    if len(groups) == 1:
        return parts[0]
    return torch.cat(list(parts))[torch.cat(groups).argsort()]
