"""Problems: what one step of meta-training unrolls an optimizer on."""

from dataclasses import dataclass
from typing import Protocol

from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class Problem:
    """A task, the network over which it is trained, and for how many rounds.

    Attributes
    ----------
    task : Task
        The federated problem.
    network : Network
        Over which the agents talk.
    rounds : int or None
        How many communication rounds there are; None for as many as the optimizer has.
    """

    task: Task
    network: Network
    rounds: int | None = None


class Problems(Protocol):
    """Where meta-training gets its problems from."""

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""
        ...

    def validation(self, number: int) -> Problem:
        """Return a problem of validation, the same each time."""
        ...
