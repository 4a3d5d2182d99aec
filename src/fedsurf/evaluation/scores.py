"""Scores of a run: accuracy over rounds, the gap to centralised training, and the cost of getting near."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.text import counted
from fedsurf.evaluation.config import SHOWN_ROUNDS
from fedsurf.evaluation.run import Trajectories

REACHED_SHARES = (0.9, 0.95, 0.99)
"""Shares of the centralised accuracy; scores have the rounds, floats and bytes until each is reached."""


@dataclass(frozen=True)
class Reached:
    """The cost of reaching a share of the centralised accuracy, the median over tasks."""

    share: float
    """Share of the centralised accuracy on the same task."""
    tasks: float
    """Share of the tasks on which it was reached."""
    rounds: float | None
    """The median round; None if it was reached on fewer than half of the tasks."""
    floats: float | None
    """Floats per agent until then."""
    bytes: float | None
    """Bytes per agent until then."""


@dataclass(frozen=True)
class Score:
    """One row of a study's table; `score` has an example."""

    label: str
    """The name of the entrant."""
    accuracy: dict[int, tuple[float, float | None]]
    """Pooled accuracy by the number of rounds: mean and standard error over tasks and seeds."""
    end: tuple[int, float, float | None]
    """The last round, and the accuracy then: mean and standard error."""
    spread: float | None
    """Standard deviation of the last accuracy over tasks and seeds."""
    gap: tuple[float, float | None]
    """Centralised accuracy minus the last one on the same task: mean and standard error."""
    floats: float
    """Floats per agent at the end."""
    bytes: float
    """Bytes per agent at the end."""
    reached: list[Reached]
    """The cost of reaching shares of the centralised accuracy."""
    diverged: list[int]
    """The rounds at which runs diverged."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "label": self.label,
            "accuracy": {str(r): {"mean": m, "error": e} for r, (m, e) in self.accuracy.items()},
            "end": {"round": self.end[0], "mean": self.end[1], "error": self.end[2]},
            "spread": self.spread,
            "gap": {"mean": self.gap[0], "error": self.gap[1]},
            "floats_per_agent": self.floats,
            "bytes_per_agent": self.bytes,
            "reached": [vars(one) for one in self.reached],
            "diverged_at_rounds": self.diverged,
        }

    def to_row(self, counts: Sequence[int]) -> dict[str, Any]:
        """Return a row of a table, with the accuracy after each of `counts` rounds, None if unknown."""
        row: dict[str, Any] = {"method": self.label}
        for rounds in counts:
            mean, error = self.accuracy.get(rounds, (None, None))
            row |= {f"accuracy_{rounds}": mean, f"accuracy_{rounds}_error": error}
        row |= {"last_round": self.end[0], "accuracy_end": self.end[1]}
        row |= {"accuracy_end_error": self.end[2], "spread": self.spread}
        row |= {"gap": self.gap[0], "gap_error": self.gap[1], "floats_per_agent": self.floats}
        row["bytes_per_agent"] = self.bytes
        for reached in self.reached:
            share = round(100 * reached.share)
            row |= {f"rounds_to_{share}": reached.rounds, f"floats_to_{share}": reached.floats}
            row[f"bytes_to_{share}"] = reached.bytes
        return row | {"diverged": len(self.diverged)}


def score(
    runs: Trajectories, ceiling: Tensor, agents: int, rounds: Sequence[int] = SHOWN_ROUNDS
) -> Score:
    """Summarise an entrant's runs as one row of a study's table.

    `ceiling`, `[tasks]`, is the accuracy of centralised training on each run's task; floats and bytes are
    divided by the number of agents; `rounds` are those after which accuracy is shown.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> study = fedsurf.Study(replace(fedsurf.STUDIES["digits"].config, tasks=2, rounds=5))
    >>> found = score(study.run(fedsurf.Entrant("DGD", "dgd")), study.ceiling(), agents=30)
    >>> found.end[0], found.gap[0] > 0
    (5, True)
    """
    accuracy = runs.pooled_accuracy.double().nan_to_num(0.0)
    if ceiling.shape != accuracy.shape[:1]:
        raise ValueError(
            f"ceiling: got shape {list(ceiling.shape)}, but the runs are of "
            f"{counted(len(accuracy), 'task')}: it must be [{len(accuracy)}]"
        )
    columns = {count: _column(runs.taken, count) for count in rounds}
    shown = {
        count: mean_and_error(accuracy[:, column])
        for count, column in columns.items()
        if column is not None
    }
    last = accuracy[:, -1]
    return Score(
        runs.name,
        shown,
        (int(runs.taken[-1]), *mean_and_error(last)),
        float(last.std()) if len(last) > 1 else None,
        mean_and_error(ceiling - last),
        float(runs.floats[:, -1].double().mean()) / agents,
        float(runs.bytes[:, -1].double().mean()) / agents,
        [_reached(runs, accuracy, ceiling, agents, share) for share in REACHED_SHARES],
        [round_ for round_ in runs.diverged if round_ is not None],
    )


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Return the mean and its standard error, None for a single value."""
    return float(values.mean()), finite(standard_error(values))


def _column(rounds: Tensor, count: int) -> int | None:
    """Return the last record at or before `count` rounds, None if the run was shorter.

    For a method that does not communicate it is the last record.
    """
    if int(rounds[-1]) == 0:
        return len(rounds) - 1
    if count > int(rounds[-1]):
        return None
    return int((rounds <= count).nonzero()[-1])


def _reached(
    runs: Trajectories, accuracy: Tensor, ceiling: Tensor, agents: int, share: float
) -> Reached:
    there = accuracy >= share * ceiling[:, None]
    arrived = there.any(1)
    tasks = float(arrived.double().mean())
    if tasks < 0.5:
        return Reached(share, tasks, None, None, None)
    first = there.int().argmax(1, keepdim=True)
    rounds, floats, size = (
        finite(counts.double().gather(1, first)[:, 0].where(arrived, torch.inf).median())
        for counts in (runs.rounds, runs.floats.double() / agents, runs.bytes.double() / agents)
    )
    return Reached(share, tasks, rounds, floats, size)
