"""Labelled examples of all agents as one batch, padded and masked where numbers of examples are unequal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedsurf.common.checks import check_kind, check_whole


@dataclass(frozen=True)
class Examples:
    """Labelled examples of agents.

    Attributes
    ----------
    x : Tensor
        Features, `[agents, examples, features]` (a `ModuleModel` takes further dimensions too).
    y : Tensor
        Labels as int64, `[agents, examples]`.
    mask : Tensor or None
        True where an example is real, `[agents, examples]`; None where all of them are. Padding holds
        zeros and must never influence a result.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import Examples
    >>> xs, ys = [torch.ones(3, 2), torch.ones(1, 2)], [torch.tensor([0, 1, 1]), torch.tensor([0])]
    >>> examples = Examples.pad(xs, ys)
    >>> examples.x.shape, examples.counts.tolist()
    (torch.Size([2, 3, 2]), [3, 1])
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None

    @property
    def agents(self) -> int:
        """The number of agents."""
        return self.x.shape[0]

    @property
    def shape(self) -> torch.Size:
        """The shape of an example."""
        return self.x.shape[2:]

    @property
    def features(self) -> int:
        """The number of features of an example."""
        return self.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the features."""
        return self.x.dtype

    @property
    def counts(self) -> Tensor:
        """The number of examples of each agent, int64 `[agents]`."""
        if self.mask is None:
            return torch.full((self.agents,), self.x.shape[1], device=self.x.device)
        return self.mask.sum(1)

    @cached_property
    def extents(self) -> Tensor:
        """The number of places up to each agent's last example, int64 `[agents]`; `mask` must not change."""
        if self.mask is None:
            return self.counts
        places = torch.arange(1, self.mask.shape[1] + 1, device=self.x.device)
        return (places * self.mask).amax(1)

    def mean(self, values: Tensor) -> Tensor:
        """Average `values[agents, examples]` over each agent's real examples, to `[agents]`."""
        if self.mask is None:
            return values.mean(1)
        return torch.where(self.mask, values, 0).sum(1) / self.mask.sum(1)

    def draw(
        self, size: int, generator: torch.Generator, argument: str = "batch_size"
    ) -> "Examples":
        """Draw a mini-batch for every agent: `size` of its examples, uniformly without replacement.

        The result has no padding. `argument` is the name of the size in errors.
        """
        check_whole(size, argument)
        smallest = int(self.counts.min())
        if not 1 <= size <= smallest:
            raise ValueError(
                f"{argument}: got {size}, but it must be between 1 and {smallest}, "
                "the number of examples of the agent with the fewest"
            )
        keys = torch.rand(self.y.shape, generator=generator, dtype=torch.float32)
        if self.mask is not None:
            keys = keys.masked_fill(~self.mask.cpu(), 2.0)
        chosen = keys.argsort(1)[:, :size].to(self.x.device)
        return self.take(chosen)

    def take(self, positions: Tensor) -> "Examples":
        """Return the real examples at `positions[agents, size]`."""
        row = torch.arange(self.agents, device=self.x.device)[:, None]
        return Examples(self.x[row, positions], self.y[row, positions])

    def of(self, agents: Tensor) -> "Examples":
        """Return the examples of some agents, numbered by `agents`."""
        mask = None if self.mask is None else self.mask[agents]
        return Examples(self.x[agents], self.y[agents], mask)

    def cropped(self, size: int) -> "Examples":
        """Return the first `size` places of every agent; some may be padding."""
        mask = None if self.mask is None else self.mask[:, :size]
        return Examples(self.x[:, :size], self.y[:, :size], mask)

    def trimmed(self, agents: Tensor) -> "Examples":
        """Return the examples of some agents, padded to the largest of these."""
        return self.cropped(int(self.extents[agents].max())).of(agents)

    def pooled(self) -> "Examples":
        """Return all real examples of all agents as the examples of one agent."""
        if self.mask is None:
            return Examples(self.x.flatten(0, 1)[None], self.y.flatten()[None])
        return Examples(self.x[self.mask][None], self.y[self.mask][None])

    def to(self, dtype: torch.dtype) -> "Examples":
        """Return the same examples with features of another floating type."""
        return replace(self, x=self.x.to(dtype))

    @staticmethod
    def pad(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> "Examples":
        """Stack one `[examples, features]` and one `[examples]` tensor per agent, padding with zeros."""
        if not len(xs):
            raise ValueError("xs: got no agents, but there must be at least one")
        if len(xs) != len(ys):
            raise ValueError(f"ys: got labels of {len(ys)} agents, but xs has {len(xs)} agents")
        for x, y in zip(xs, ys, strict=True):
            check_kind(x, Tensor, "xs", "a list of torch tensors")
            check_kind(y, Tensor, "ys", "a list of torch tensors")
            if x.shape[1:] != xs[0].shape[1:]:
                raise ValueError(
                    f"xs: got examples of shape {list(x.shape[1:])}, but those of the first agent have "
                    f"shape {list(xs[0].shape[1:])}"
                )
        sizes = [len(y) for y in ys]
        if [len(x) for x in xs] != sizes:
            raise ValueError(
                f"ys: got {sizes} labels per agent, but xs has {[len(x) for x in xs]} examples"
            )
        longest = max(sizes)
        all_x = xs[0].new_zeros((len(xs), longest, *xs[0].shape[1:]))
        all_y = torch.zeros((len(xs), longest), dtype=torch.int64, device=all_x.device)
        for agent, (x, y) in enumerate(zip(xs, ys, strict=True)):
            all_x[agent, : len(y)] = x
            all_y[agent, : len(y)] = y
        if min(sizes) == longest:
            return Examples(all_x, all_y)
        position = torch.arange(longest, device=all_x.device)
        mask = position < torch.tensor(sizes, device=all_x.device)[:, None]
        return Examples(all_x, all_y, mask)
