"""Tasks, the D of the paper: labelled examples of all agents, padded and masked where numbers are unequal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_kind, check_option, check_whole
from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.tasks.config import AgentWeighting


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
    def host_mask(self) -> Tensor | None:
        """The mask on the CPU, where groups and draws are made; `mask` must not change."""
        return None if self.mask is None else self.mask.cpu()

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The number of places up to each agent's last example."""
        if self.host_mask is None:
            return (self.x.shape[1],) * self.agents
        mask = self.host_mask.numpy()
        return tuple((np.arange(1, mask.shape[1] + 1) * mask).max(1, initial=0).tolist())

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of examples of each agent."""
        if self.host_mask is None:
            return (self.x.shape[1],) * self.agents
        return tuple(self.host_mask.numpy().sum(1).tolist())

    def mean(self, values: Tensor) -> Tensor:
        """Average `values[agents, examples]` over each agent's real examples, to `[agents]`."""
        if self.mask is None:
            return values.mean(1)
        return torch.where(self.mask, values, 0).sum(1) / self.mask.sum(1)

    def draw(self, size: int, streams: Streams, argument: str = "batch_size") -> "Examples":
        """Draw `size` examples of every agent, uniformly without replacement; errors name `argument`.

        An agent's draw depends on its own stream and its own examples alone.
        """
        check_whole(size, argument)
        smallest = min(self.sizes, default=size)
        if not 1 <= size <= smallest:
            raise ValueError(
                f"{argument}: got {size}, but it must be between 1 and {smallest}, "
                "the number of examples of the agent with the fewest"
            )
        among = self.y.shape[1] if self.host_mask is None else self.host_mask
        chosen = streams.choose(size, among).to(self.x.device)
        row = torch.arange(self.agents, device=self.x.device)[:, None]
        return Examples(self.x[row, chosen], self.y[row, chosen])

    def of(self, agents: Tensor) -> "Examples":
        """Return the examples of some agents, whose numbers are on the CPU."""
        there = agents.to(self.x.device)
        mask = None if self.mask is None else self.mask[there]
        host = None if self.host_mask is None else self.host_mask[agents]
        return Examples(self.x[there], self.y[there], mask)._with_host_mask(host)

    def cropped(self, size: int) -> "Examples":
        """Return the first `size` places of every agent; some may be padding."""
        mask = None if self.mask is None else self.mask[:, :size]
        host = None if self.host_mask is None else self.host_mask[:, :size]
        return Examples(self.x[:, :size], self.y[:, :size], mask)._with_host_mask(host)

    def trimmed(self, agents: Tensor) -> "Examples":
        """Return the examples of some agents, padded to the largest of these."""
        longest = max((self.extents[agent] for agent in agents.tolist()), default=0)
        return self.cropped(longest).of(agents)

    def pooled(self) -> "Examples":
        """Return all real examples of all agents as the examples of one agent."""
        x, y = self.x.flatten(0, 1), self.y.flatten()
        if self.host_mask is not None:
            places = self.host_mask.flatten().nonzero().flatten().to(x.device)
            x, y = x[places], y[places]
        return Examples(x[None], y[None])

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> "Examples":
        """Return the same examples with features of another floating type, or on another device."""
        mask = None if self.mask is None else self.mask.to(device)
        x = self.x.to(device=device, dtype=dtype)
        return Examples(x, self.y.to(device), mask)._with_host_mask(self.host_mask)

    def _with_host_mask(self, mask: Tensor | None) -> "Examples":
        # Known already: reading it from a device would wait for that.
        vars(self)["host_mask"] = mask
        return self

    def stored(self) -> "Examples":
        """Return the examples as they are in memory, without padding them."""
        return self

    def place(self, agent: int, example: int) -> tuple[int, int]:
        """Return the agent of an entry of `stored()`, and the position among its examples."""
        return agent, example

    @staticmethod
    def pad(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> "Examples":
        """Stack one `[examples, features]` and one `[examples]` tensor per agent, padding with zeros."""
        if not len(xs):
            raise ValueError("xs: got no agents, but there must be at least one")
        if len(xs) != len(ys):
            raise ValueError(f"ys: got labels of {len(ys)} agents, but xs has {len(xs)} agents")
        for x in xs:
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
        mask = torch.arange(longest, device=CPU) < torch.tensor(sizes, device=CPU)[:, None]
        return Examples(all_x, all_y, mask.to(all_x.device))._with_host_mask(mask)


@dataclass(frozen=True)
class Task:
    """Each agent's training and test examples.

    Attributes
    ----------
    train, test : Examples
        Of the same agents.
    classes : int
        Labels are `0 … classes − 1`.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import Examples, Task
    >>> examples = Examples(torch.randn(10, 20, 4), torch.randint(3, (10, 20)))
    >>> task = Task(examples, examples, classes=3)
    >>> task.agents, task.features
    (10, 4)
    """

    train: Examples
    test: Examples
    classes: int

    def __post_init__(self) -> None:
        check_count(self.classes, "classes")
        for name, part in (("train", self.train), ("test", self.test)):
            _check_examples(name, part, self.classes)
        if self.train.agents != self.test.agents:
            raise ValueError(
                f"test: got examples of {self.test.agents} agents, "
                f"but train has {self.train.agents} agents"
            )
        if self.train.shape != self.test.shape:
            raise ValueError(
                f"test: got examples of shape {list(self.test.shape)}, "
                f"but train has examples of shape {list(self.train.shape)}"
            )
        if self.train.dtype != self.test.dtype:
            raise ValueError(f"test.x: got {self.test.dtype}, but train.x is {self.train.dtype}")

    @property
    def agents(self) -> int:
        """The number of agents."""
        return self.train.agents

    @property
    def features(self) -> int:
        """The number of features of an example."""
        return self.train.features

    def agent_weights(self, weighting: AgentWeighting = "uniform") -> Tensor:
        """Return the weight of each agent in f, `[agents]`; they sum to 1.

        That is for a task with all agents; see `evaluation.measures.shares` for a part of them.
        """
        check_option(weighting, AgentWeighting, "weighting")
        if weighting == "uniform":
            return self.train.x.new_full((self.agents,), 1 / self.agents)
        counts = self.train.counts.to(self.train.dtype)
        return counts / counts.sum()

    def of(self, agents: Tensor) -> "Task":
        """Return the task of some agents, perhaps none, such as those of one process."""
        return _unchecked(self.train.of(agents), self.test.of(agents), self.classes)

    @staticmethod
    def without_agents(features: int, classes: int, dtype: torch.dtype) -> "Task":
        """Return the task of a process in which only a server lives."""
        x = torch.empty(0, 1, features, dtype=dtype, device=CPU)
        examples = Examples(x, torch.empty(0, 1, dtype=torch.int64, device=CPU))
        return _unchecked(examples, examples, classes)

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> "Task":
        """Return the same task with features of another floating type, or on another device."""
        x = self.train.stored().x
        if dtype in (None, x.dtype) and device in (None, x.device):
            return self
        return _unchecked(self.train.to(dtype, device), self.test.to(dtype, device), self.classes)


def _unchecked(train: Examples, test: Examples, classes: int) -> Task:
    """Return a task from parts of one that was checked: reading numbers would wait for a device."""
    task = object.__new__(Task)
    vars(task).update(train=train, test=test, classes=classes)
    return task


def _check_examples(name: str, part: Examples, classes: int) -> None:
    check_kind(part, Examples, name, "Examples")
    stored = part.stored()
    x, y, mask = stored.x, stored.y, stored.mask
    check_kind(x, Tensor, f"{name}.x", "a torch tensor")
    check_kind(y, Tensor, f"{name}.y", "a torch tensor")
    if x.dim() < 3 or not x.is_floating_point():
        raise ValueError(
            f"{name}.x: got {x.dtype} of shape {list(x.shape)}, "
            "but it must be floating point of shape [agents, examples, features]"
        )
    if y.shape != x.shape[:2] or y.dtype != torch.int64:
        raise ValueError(
            f"{name}.y: got {y.dtype} of shape {list(y.shape)}, "
            f"but it must be int64 of shape {list(x.shape[:2])}"
        )
    if mask is not None and (mask.shape != y.shape or mask.dtype != torch.bool):
        raise ValueError(
            f"{name}.mask: got {mask.dtype} of shape {list(mask.shape)}, "
            f"but it must be bool of shape {list(y.shape)}"
        )
    empty = (part.counts == 0).nonzero().flatten().tolist()
    if empty or part.agents == 0:
        raise ValueError(f"{name}: agents {empty[:5]} have no examples, but each agent needs one")
    # A finite sum has finite terms only, and is much faster to compute.
    if not x.sum().isfinite() and not x.isfinite().all():
        finite = x.isfinite().flatten(2).all(2)
        agent, example = part.place(*(~finite).nonzero()[0].tolist())
        raise ValueError(
            f"{name}.x: got a feature that is NaN or infinite (agent {agent}, example {example}), "
            "but all features must be finite"
        )
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        agent, example = part.place(*wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{name}.y: got label {int(y[wrong][0])} (agent {agent}, example {example}), "
            f"but labels must be between 0 and {classes - 1}"
        )
