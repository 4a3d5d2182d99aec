"""A task: one federated problem, the D of the paper."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_kind, check_option
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.groups import UnpaddedExamples


@dataclass(frozen=True)
class Task:
    """Each agent's training and test examples.

    Attributes
    ----------
    train, test : Examples
        Training and test examples of the same agents.
    classes : int
        The number of classes; labels are `0 … classes − 1`.

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
            _check(name, part, self.classes)
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
        """Return the weight of each agent in f, `[agents]`; they sum to 1."""
        check_option(weighting, AgentWeighting, "weighting")
        if weighting == "uniform":
            return torch.full((self.agents,), 1 / self.agents, dtype=self.train.dtype)
        counts = self.train.counts.to(self.train.dtype)
        return counts / counts.sum()

    def to(self, dtype: torch.dtype) -> "Task":
        """Return the same task with features of another floating type."""
        return Task(self.train.to(dtype), self.test.to(dtype), self.classes)


def _check(name: str, part: Examples, classes: int) -> None:
    check_kind(part, Examples, name, "Examples")
    unpadded = part if isinstance(part, UnpaddedExamples) else None
    stored = part if unpadded is None else unpadded.pooled()
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

    def place(wrong: Tensor) -> tuple[int, int]:
        agent, example = wrong.nonzero()[0].tolist()
        return (agent, example) if unpadded is None else unpadded.place(example)

    wrong = (y < 0) | (y >= classes)
    # A finite sum has finite terms only, and is much faster to compute.
    if not x.sum().isfinite() and not x.isfinite().all():
        finite = x.isfinite().flatten(2).all(2)
        agent, example = place(~finite)
        raise ValueError(
            f"{name}.x: got a feature that is NaN or infinite (agent {agent}, example {example}), "
            "but all features must be finite"
        )
    if wrong.any():
        agent, example = place(wrong)
        raise ValueError(
            f"{name}.y: got label {int(y[wrong][0])} (agent {agent}, example {example}), "
            f"but labels must be between 0 and {classes - 1}"
        )
