"""Runs of algorithms on tasks, and the trajectories that they record."""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Algorithm, State, on_device
from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.devices import device_named
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.streams import Streams
from fedsurf.evaluation.measures import (
    all_finite,
    disagreement,
    pooled_accuracy,
    sent_so_far,
    shares,
)
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Task

_COUNTS = ("rounds", "floats", "bytes")


@dataclass(frozen=True)
class Trajectory:
    """The measurements after each recorded step of one run; every field is `[records]`.

    Rounds, floats and bytes are int64, all else is float64, whatever the type of the weights.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.algorithms import DGD
    >>> study = fedsurf.Study(fedsurf.STUDIES["digits"].config)
    >>> (task,) = study.environment.test_tasks(seed=0, count=1)
    >>> found = fedsurf.run(DGD(study.model), task, study.network(0), steps=2)
    >>> found.rounds.tolist(), found.accuracy.shape
    ([0, 1, 2], torch.Size([3]))
    """

    rounds: Tensor
    """Communication rounds so far."""
    floats: Tensor
    """Floats that crossed any link so far."""
    bytes: Tensor
    """Bytes of the messages that crossed any link so far, headers included."""
    loss: Tensor
    """Mean loss on the agents' own test examples, averaged over the agents."""
    accuracy: Tensor
    """Accuracy on the agents' own test examples, averaged over the agents (the paper's)."""
    pooled_accuracy: Tensor
    """Accuracy on the test examples of the whole federation, averaged over the agents."""
    gradient_norm: Tensor
    """‖∇f(W)‖ of the stacked gradient over all training examples."""
    disagreement: Tensor
    """Root mean square distance of the agents' weights from their average."""


FIELDS = tuple(field.name for field in fields(Trajectory))
"""Names of what a trajectory records; the first is `rounds`."""


@dataclass(frozen=True)
class Trajectories:
    """Runs of one algorithm on several tasks: every field of `Trajectory`, `[tasks, records]`.

    Attributes
    ----------
    name : str
        The name in tables and figures.
    rounds, floats, bytes, loss, accuracy, pooled_accuracy, gradient_norm, disagreement : Tensor
        As in `Trajectory`, with a row for each task.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> study = fedsurf.Study(replace(fedsurf.STUDIES["digits"].config, tasks=2, rounds=3))
    >>> runs = study.run(fedsurf.Entrant("DGD", "dgd"))
    >>> runs.taken.tolist(), runs.diverged
    ([0, 1, 2, 3], [None, None])
    >>> len(runs.summary())
    4
    """

    name: str
    rounds: Tensor
    floats: Tensor
    bytes: Tensor
    loss: Tensor
    accuracy: Tensor
    pooled_accuracy: Tensor
    gradient_norm: Tensor
    disagreement: Tensor

    @staticmethod
    def stack(name: str, runs: Sequence[Trajectory]) -> "Trajectories":
        """Stack the runs of one algorithm."""
        return Trajectories(
            name, **{n: torch.stack([vars(run)[n] for run in runs]) for n in FIELDS}
        )

    @staticmethod
    def join(name: str, parts: Sequence["Trajectories"]) -> "Trajectories":
        """Join the runs of one algorithm on several lists of tasks."""
        return Trajectories(
            name, **{n: torch.cat([vars(part)[n] for part in parts]) for n in FIELDS}
        )

    @property
    def taken(self) -> Tensor:
        """The rounds taken at each record, `[records]`."""
        return self.rounds.amax(0)  # a run that diverged has the round at which it did so

    @property
    def diverged(self) -> list[int | None]:
        """The round at which each run diverged, None for those that did not."""
        found: list[int | None] = []
        for loss, rounds in zip(self.loss, self.rounds, strict=True):
            bad = loss.isnan().nonzero().flatten()
            found.append(int(rounds[bad[0]]) if len(bad) else None)
        return found

    def summary(self, steps: Sequence[int] | None = None) -> list[dict[str, float | None]]:
        """Return a row for each record: the mean of every field over tasks, and its standard error.

        The error is None for a single task. The accuracy of a run that diverged is 0.

        Parameters
        ----------
        steps : sequence of int or None
            The recorded steps; None if every step was recorded.
        """
        rows = []
        for record, taken in enumerate(self.taken.tolist()):
            row: dict[str, float | None] = {"step": record if steps is None else steps[record]}
            row["rounds"] = taken
            for name in FIELDS[1:]:
                values = getattr(self, name)[:, record].double()
                if name in ("accuracy", "pooled_accuracy"):
                    values = values.nan_to_num(0.0)
                row[name] = finite(values.mean())
                if name not in _COUNTS:
                    row[f"{name}_error"] = finite(standard_error(values))
            rows.append(row)
        return rows


@torch.no_grad()
def run(
    algorithm: Algorithm,
    task: Task,
    network: Network,
    steps: int,
    *,
    seed: int = 0,
    path: Sequence[str | int] = (),
    weighting: AgentWeighting = "uniform",
    record: Container[int] | None = None,
    device: str | torch.device | None = None,
) -> Trajectory:
    """Run an algorithm on a task and record its trajectory.

    All algorithms with the same `seed` and `path` draw the same W_0 and have the same faults. A run
    diverges when its weights are not finite or a recorded loss is NaN. It stops there: later records are
    NaN, with the rounds, floats and bytes of a whole run.

    Parameters
    ----------
    algorithm : Algorithm
        The method, with its model.
    task : Task
        The federated problem.
    network : Network
        The agents' network; its counts are set to 0.
    steps : int
        Number of steps, at least 0; a step may take several rounds.
    seed : int
        Seed of everything random, together with `path`.
    path : sequence of str or int
        The purpose of the run, e.g. the number of its task.
    weighting : {"uniform", "examples"}
        Weight of an agent in averages over agents: equal, or by its number of examples.
    record : container of int or None
        The recorded steps, among them 0 for the start; None for all. With a light model, a record
        takes longer than a step.
    device : str, torch.device or None
        Where to compute: "auto", "cpu", "cuda", "cuda:1", "mps"; None for where the task is. Draws are
        the same on every device.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.algorithms import DGD
    >>> study = fedsurf.Study(fedsurf.STUDIES["digits"].config)
    >>> (task,) = study.environment.test_tasks(seed=0, count=1)
    >>> found = fedsurf.run(DGD(study.model), task, study.network(0), steps=10, record=(10,))
    >>> found.rounds.tolist()
    [10]
    """
    missing = [name for name in ("name", "model", "init", "step") if not hasattr(algorithm, name)]
    if missing:
        hint = ": use the result of its on(model, rounds)" if hasattr(algorithm, "on") else ""
        raise TypeError(
            f"algorithm: got a {type(algorithm).__name__} without {' and '.join(missing)}{hint}"
        )
    check_kind(task, Task, "task", "a Task")
    check_kind(network, Network, "network", "a Network")
    check_whole(steps, "steps")
    if steps < 0:
        raise ValueError(f"steps: got {steps}, but it must be at least 0")
    if task.agents and hasattr(algorithm, "check"):
        algorithm.check(task)
    if device is not None:
        device = device_named(device)
        algorithm, task = on_device(algorithm, device), task.to(device=device)
    streams = Streams(seed, network.ids, *path)
    network.reset(seeded(seed, "network", *path))
    state = _state(algorithm.init(task, network, streams.at("start")), "init")
    records: list[tuple[float, ...]] = []
    taken, diverged = 0, False
    for step in range(steps + 1):
        # A run that diverged at its start takes one step, to know what a step costs.
        if step and not (diverged and taken):
            draws = streams.at("step", step - 1)
            state = _state(algorithm.step(state, task, network, draws), "step")
            taken = step
            diverged = diverged or _seen_to_diverge(state, network)
        if record is not None and step not in record:
            continue
        if not diverged:
            seen = _record(algorithm.model, state, task, network, weighting)
            diverged = math.isnan(seen[len(_COUNTS)]) or not all_finite(
                state.agent_weights(network), network
            )
            if not diverged:
                records.append(seen)
                continue
        # The first record after divergence has the true counts, later ones extrapolate.
        first = not records or not math.isnan(records[-1][len(_COUNTS)])
        counts = [network.rounds, *sent_so_far(network)]
        if not first:
            counts = [count * step // taken for count in counts]
        records.append((*counts, *[math.nan] * (len(FIELDS) - len(counts))))
    if not records:
        raise ValueError(
            f"record: got none of the steps 0 to {steps}, but there must be at least one"
        )
    columns = zip(*records, strict=True)
    return Trajectory(
        **{
            name: torch.tensor(column, dtype=torch.int64 if name in _COUNTS else torch.float64)
            for name, column in zip(FIELDS, columns, strict=True)
        }
    )


def _state(found: object, method: str) -> State:
    """Return the state that a method of an algorithm returned, or raise if it is something else."""
    if not isinstance(found, State):
        shown = "None" if found is None else f"a {type(found).__name__}"
        raise TypeError(f"algorithm.{method}: got {shown} from it, but it must return a State")
    return found


def run_all(
    algorithm: Algorithm,
    tasks: Iterable[Task],
    network: Network,
    steps: int,
    *,
    seed: int = 0,
    weighting: AgentWeighting = "uniform",
    record: Container[int] | None = None,
    device: str | torch.device | None = None,
    on_task: Callable[[], None] | None = None,
) -> Trajectories:
    """Run an algorithm on every task.

    Parameters
    ----------
    algorithm, network, steps, seed, weighting, record, device
        As in `run`; the path of a run is the number of its task.
    tasks : iterable of Task
        The federated problems, at least one.
    on_task : callable or None
        Called after each task, for a progress bar.
    """
    check_kind(tasks, Iterable, "tasks", "a list of tasks")
    runs = []
    for number, task in enumerate(tasks):
        runs.append(
            run(
                algorithm,
                task,
                network,
                steps,
                seed=seed,
                path=(number,),
                weighting=weighting,
                record=record,
                device=device,
            )
        )
        if on_task is not None:
            on_task()
    if not runs:
        raise ValueError("tasks: got none, but there must be at least one")
    return Trajectories.stack(algorithm.name, runs)


def recorded_steps(rounds: int) -> list[int]:
    """Return the steps that a long run records: the first 20, then every fifth, then every tenth."""
    steps = [*range(min(rounds, 20) + 1), *range(25, min(rounds, 100) + 1, 5)]
    return sorted({*steps, *range(110, rounds + 1, 10), rounds})


def _seen_to_diverge(state: State, network: Network) -> bool:
    """Whether the weights are not finite, where that is known without waiting for anybody."""
    every = len(network.ids) == network.nodes
    known = every and state.weights.device.type == "cpu"
    return known and not bool(state.weights.isfinite().all())


def _record(
    model: Model, state: State, task: Task, network: Network, weighting: AgentWeighting
) -> tuple[float, ...]:
    weights = state.agent_weights(network)
    share = shares(task, network, weighting)
    gradient = share[:, None] * model.gradient(weights, task.train)
    own = [model.loss(weights, task.test), model.accuracy(weights, task.test)]
    sums = [share * own[0], share * own[1], gradient.square().sum(1)]
    loss, accuracy, square = network.total(torch.stack(sums, 1)).tolist()
    pooled = pooled_accuracy(model, weights, task.test, network)
    return (
        network.rounds,
        *sent_so_far(network),
        loss,
        accuracy,
        float(network.collect(share[:, None])[:, 0] @ pooled),
        math.sqrt(square),
        float(disagreement(weights, network)),
    )
