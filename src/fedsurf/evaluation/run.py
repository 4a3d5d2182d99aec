"""Running algorithms on tasks, and what their runs recorded: trajectories and their statistics."""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Algorithm, State
from fedsurf.algorithms.checks import check_algorithm
from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.statistics import finite, standard_error
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Task

_DTYPES = {"rounds": torch.int64, "floats": torch.int64}


@dataclass(frozen=True)
class Trajectory:
    """What was seen after each recorded step of one run: every field is `[records]`.

    Rounds and floats are int64, all else is float64, whatever the run was computed in.

    Attributes
    ----------
    rounds : Tensor
        Communication rounds so far.
    floats : Tensor
        Floats that crossed any link so far.
    loss : Tensor
        Mean loss on the agents' own test examples, averaged over the agents.
    accuracy : Tensor
        Accuracy on the agents' own test examples, averaged over the agents (the paper's).
    pooled_accuracy : Tensor
        Accuracy on the test examples of the whole federation, averaged over the agents.
    gradient_norm : Tensor
        ‖∇f(W)‖ of the stacked gradient over all training examples.
    disagreement : Tensor
        Root mean square distance of the agents' weights from their average.
    """

    rounds: Tensor
    floats: Tensor
    loss: Tensor
    accuracy: Tensor
    pooled_accuracy: Tensor
    gradient_norm: Tensor
    disagreement: Tensor


@dataclass(frozen=True)
class Trajectories:
    """Runs of one algorithm on several tasks: every field of `Trajectory`, `[tasks, records]`.

    Attributes
    ----------
    name : str
        What tables and figures call it.
    rounds, floats, loss, accuracy, pooled_accuracy, gradient_norm, disagreement : Tensor
        As in `Trajectory`, with a row for each task.
    """

    name: str
    rounds: Tensor
    floats: Tensor
    loss: Tensor
    accuracy: Tensor
    pooled_accuracy: Tensor
    gradient_norm: Tensor
    disagreement: Tensor

    @staticmethod
    def stack(name: str, runs: Sequence[Trajectory]) -> "Trajectories":
        """Stack the runs of one algorithm."""
        return Trajectories(
            name,
            **{
                field.name: torch.stack([getattr(run, field.name) for run in runs])
                for field in fields(Trajectory)
            },
        )

    @property
    def taken(self) -> Tensor:
        """The rounds taken at each record, `[records]`."""
        return self.rounds.amax(0)  # a run that diverged since the last one tells when it did

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

        Of rounds it is the number that was taken, by the tasks that did not diverge. The error is None
        where there is one task only. `steps` are the steps that were recorded, where it was not every one.
        """
        rows = []
        for step in range(self.loss.shape[1]):
            row: dict[str, float | None] = {"step": step if steps is None else steps[step]}
            row["rounds"] = int(self.taken[step])
            for field in fields(Trajectory)[1:]:
                values = getattr(self, field.name)[:, step].double()
                if field.name in ("accuracy", "pooled_accuracy"):
                    values = values.nan_to_num(0.0)  # a diverged run is right about nothing
                row[field.name] = finite(values.mean())
                if field.name != "floats":
                    row[f"{field.name}_error"] = finite(standard_error(values))
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
) -> Trajectory:
    """Run an algorithm on a task and record what its steps achieved.

    All algorithms that are given the same `seed` and `path` draw the same W_0; the network and the
    mini-batches draw from generators of their own. What is recorded is the start and every step, or
    those that `record` contains: on a light model, looking takes longer than training.

    A run whose weights are no numbers any more has diverged, and so has one whose recorded loss is none.
    It stops there, what would have been recorded from there on is NaN, and the rounds and floats are
    those that it would have taken.

    Parameters
    ----------
    algorithm : Algorithm
        The method, with its model.
    task : Task
        The federated problem.
    network : Network
        Over which the agents talk; its counts begin anew.
    steps : int
        How many steps are taken, at least 0; a step may take several rounds.
    seed : int
        Everything random follows from it and from `path`.
    path : sequence of str or int
        What the run is for, e.g. the number of its task.
    weighting : {"uniform", "examples"}
        How much each agent counts in averages over agents: alike, or by its number of examples.
    record : container of int or None
        The steps that are recorded; all where None.
    """
    check_algorithm(algorithm)
    check_kind(task, Task, "task", "a Task")
    check_kind(network, Network, "network", "a Network")
    check_whole(steps, "steps")
    if steps < 0:
        raise ValueError(f"steps: got {steps}, but it must be at least 0")
    start, batches, talk = (seeded(seed, what, *path) for what in ("start", "steps", "network"))
    network.reset(talk)
    state = _state(algorithm.init(task, network, start), "init")
    records: list[tuple[float, ...]] = []
    taken, diverged = 0, False
    for step in range(steps + 1):
        # One step is taken by a run without a loss at its start, too: what the others would have cost.
        if step and not (diverged and taken):
            state = _state(algorithm.step(state, task, network, batches), "step")
            taken = step
            diverged = diverged or not bool(state.weights.isfinite().all())
        if record is not None and step not in record:
            continue
        if not diverged:
            seen = _record(algorithm.model, state, task, network, weighting)
            diverged = math.isnan(seen[2])
            if not diverged:
                records.append(seen)
                continue
        # The first such record tells when it stopped, the others when they would have been.
        first = not records or not math.isnan(records[-1][2])
        counts = (network.rounds, network.floats)
        rounds, floats = counts if first else (count * step // taken for count in counts)
        records.append((rounds, floats, *[math.nan] * 5))
    if not records:
        raise ValueError(
            f"record: got none of the steps 0 to {steps}, but there must be at least one"
        )
    columns = zip(*records, strict=True)
    return Trajectory(
        **{
            field.name: torch.tensor(column, dtype=_DTYPES.get(field.name, torch.float64))
            for field, column in zip(fields(Trajectory), columns, strict=True)
        }
    )


def _state(found: object, method: str) -> State:
    """Return what a method of an algorithm returned, if that is a state with weights."""
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
    on_task: Callable[[], None] | None = None,
) -> Trajectories:
    """Run an algorithm on every task.

    Parameters
    ----------
    algorithm, network, steps, seed, weighting, record
        As in `run`; the path of a task's randomness is its number.
    tasks : iterable of Task
        The federated problems, at least one.
    on_task : callable or None
        Called after each, for a progress bar.
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
            )
        )
        if on_task is not None:
            on_task()
    if not runs:
        raise ValueError("tasks: got none, but there must be at least one")
    return Trajectories.stack(algorithm.name, runs)


def recorded_steps(rounds: int) -> list[int]:
    """Return the steps of a run to look at: the first 20, then every fifth, then every tenth."""
    steps = [*range(min(rounds, 20) + 1), *range(25, min(rounds, 100) + 1, 5)]
    return sorted({*steps, *range(110, rounds + 1, 10), rounds})


def _record(
    model: Model, state: State, task: Task, network: Network, weighting: AgentWeighting
) -> tuple[float, ...]:
    weights = network.agent_rows(state.weights)
    share = task.agent_weights(weighting)
    gradient = share[:, None] * model.gradient(weights, task.train)
    # A server's model is one row, seen by all agents: one look at the pooled examples is enough.
    different = weights[:1] if weights.stride(0) == 0 else weights
    pooled = model.pooled_accuracy(different, task.test).expand(len(weights))
    return (
        network.rounds,
        network.floats,
        float(share @ model.loss(weights, task.test)),
        float(share @ model.accuracy(weights, task.test)),
        float(share @ pooled),
        float(gradient.norm()),
        float((weights - weights.mean(0)).square().sum(1).mean().sqrt()),
    )
