"""Auditing an optimizer: did it learn to learn, or did it learn a classifier.

An optimizer that learns takes all that it knows of a task from the agents' training examples. So it
falls to chance where these say nothing, and does not care what the classes are called. One that has
learned the classifier of its meta-training classes does well without data, and fails where the labels
are renamed. The audit runs an optimizer on the same tasks, untouched and under `interventions`, and
judges it by a rule (`verdict`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from fedsurf.algorithms import Algorithm
from fedsurf.algorithms.centralised import TUNING_TOLERANCE, Centralised
from fedsurf.analysis.audited import Audit, Expected, Row
from fedsurf.analysis.interventions import (
    Intervention,
    blank_features,
    chance,
    rename_labels,
    rotate_features,
    shuffle_labels,
)
from fedsurf.analysis.verdict import judge
from fedsurf.common.checks import check_kind
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.run import run_all
from fedsurf.evaluation.study import Study
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, NetworkConfig
from fedsurf.network.config import GraphKind
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable

STALE = 0.1
"""Share of the agents that are stale."""
TUNING_TASKS = 3
"""Validation tasks that choose the penalty of centralised training."""

NOT_CONFIGURED = (
    "not here: the study has a network or tasks of its own, not those of its configuration"
)
"""Why a study is not run with another network or other agents: it is known how to change a configuration."""

_TASKS = ("test_tasks", "tuning_tasks", "distributions")
"""What a study draws its tasks with."""


@dataclass(frozen=True)
class Subject:
    """The optimizer that is audited.

    Attributes
    ----------
    name : str
        What the verdict calls it.
    make : callable
        Returns the algorithm that trains a certain softmax head, or raises a ValueError that says
        why it cannot.
    steps : int
        How many steps it takes.
    seen : tuple of str
        The data sources of its meta-training.
    """

    name: str
    make: Callable[[SoftmaxHead], Algorithm]
    steps: int
    seen: tuple[str, ...] = ()

    @staticmethod
    def of_run(experiment: Experiment) -> "Subject":
        """Return the optimizer of a run."""
        optimizer, model = experiment.optimizer, experiment.model
        made_for = (model.features, model.classes)

        def make(head: SoftmaxHead) -> Algorithm:
            if (head.features, head.classes) != made_for:
                raise ValueError(
                    f"data: got {head.features} features and {head.classes} classes, but this "
                    f"optimizer was made for {made_for[0]} and {made_for[1]}"
                )
            return optimizer

        return Subject(optimizer.name, make, optimizer.steps, (experiment.config.data.source,))

    @staticmethod
    def of_pretrained(optimizer: Transferable, rounds: int = 20) -> "Subject":
        """Return a pretrained optimizer. Of real data, its meta-training had Fashion-MNIST."""
        algorithm = optimizer.on(SoftmaxHead(1, 2), rounds)
        return Subject(
            algorithm.name,
            lambda model: optimizer.on(model, rounds),
            algorithm.steps,
            ("fashion-mnist",),
        )

    def saw(self, source: str) -> bool:
        """Whether its meta-training had data of this source, or of another size of it."""
        return _whole(source) in {_whole(seen) for seen in self.seen}


def _whole(source: str) -> str:
    """Return the source of which another one is a part."""
    return source.removesuffix("-mini").removesuffix("-5k")


_ON_THE_DATA: tuple[tuple[str, str, Expected, Intervention], ...] = (
    ("blanked", "features blanked", "chance", blank_features),
    ("shuffled", "labels shuffled", "chance", shuffle_labels),
    ("renamed", "labels renamed", "same", rename_labels),
    ("rotated", "features rotated", "same", rotate_features),
)
_GRAPHS: tuple[GraphKind, ...] = ("regular", "erdos-renyi", "ring", "torus", "complete")


def audit(
    subject: Subject,
    study: Study,
    *,
    other: Study | None = None,
    agents: Sequence[int] | None = None,
    progress: OpenBar = silent,
) -> Audit:
    """Run an optimizer on a study's meta-test tasks, untouched and under interventions.

    Parameters
    ----------
    subject : Subject
        The optimizer.
    study : Study
        The data, the tasks and the network. The first of its seeds is used, and at least 2 tasks.
    other : Study or None
        Other data: its classes are new to an optimizer whose meta-training did not have them.
    agents : sequence of int or None
        Other numbers of agents; half and twice as many as the study's where None.
    progress : callable
        Opens a progress bar with a title and a total.
    """
    check_kind(subject, Subject, "subject", "a Subject")
    check_kind(study, Study, "study", "a Study")
    check_kind(other, Study | None, "other", "a Study, or None")
    if study.config.tasks < 2:
        raise ValueError(
            f"tasks: got {study.config.tasks}, but a verdict needs at least 2, for its errors"
        )
    if other is not None:
        _ = other.features  # if they cannot be read, that should be known before the work begins
    bench = _Bench(subject, study, progress)
    data = [bench.on_the_data(*intervention) for intervention in _ON_THE_DATA]
    blanked, shuffled, renamed, _ = (_known(row.accuracy) for row in data)
    verdict = judge(bench.accuracy, bench.chance, blanked, shuffled, renamed)
    count = study.config.task.agents
    numbers = (_even(count // 2), 2 * count) if agents is None else agents
    rows = [
        bench.untouched,
        *data,
        bench.on_other_data(other),
        *(bench.over(*change) for change in _other_networks(study.config)),
        *(bench.with_agents(number) for number in numbers),
    ]
    return Audit(subject.name, study.config, rows, verdict)


class _Bench:
    """Runs a subject on a study's tasks, untouched and touched, beside centralised training."""

    def __init__(self, subject: Subject, study: Study, progress: OpenBar) -> None:
        self.subject, self.study, self.progress = subject, study, progress
        self.seed = study.config.seeds[0]
        self.tasks = study.test_tasks(self.seed)
        self.network = study.network(self.seed)
        self.chance = _chances(self.tasks)
        self.accuracy = self._run("untouched", self.tasks, self.network)
        self.method = _centralised(study)
        self.centralised = self._ceiling(self.method, self.tasks)
        self.untouched = Row(
            "untouched", "untouched", "", self.accuracy, self.chance, self.centralised
        )

    def on_the_data(
        self, name: str, title: str, expected: Expected, intervene: Intervention
    ) -> Row:
        """Intervene on every task.

        Renaming and rotating leave centralised training where it was, so it is not run again: its
        loss, its penalty and its start at 0 know neither names nor axes.
        """
        tasks = [
            intervene(task, seeded(self.seed, "audit", name, number))
            for number, task in enumerate(self.tasks)
        ]
        accuracy = self._run(title, tasks, self.network)
        moved = expected == "chance"
        centralised = self._ceiling(self.method, tasks) if moved else self.centralised
        change = accuracy - self.accuracy
        return Row(name, title, expected, accuracy, _chances(tasks), centralised, change)

    def over(self, name: str, title: str, config: NetworkConfig) -> Row:
        """Run on the same tasks over another network."""
        row = Row(name, title, "near")
        if self.study.has_own("network"):
            return replace(row, note=NOT_CONFIGURED)
        try:
            network = self.study.network(self.seed, config)
        except ValueError as error:
            return replace(row, note=f"not possible ({error})")
        accuracy = self._run(title, self.tasks, network)
        return replace(
            row,
            accuracy=accuracy,
            chance=self.chance,
            centralised=self.centralised,
            change=accuracy - self.accuracy,
        )

    def with_agents(self, number: int) -> Row:
        """Run with another number of agents, each with as many examples as before."""
        row = Row(f"agents-{number}", f"agents: {number}")
        if self.study.has_own("network", *_TASKS):
            return replace(row, expected="near", note=NOT_CONFIGURED)
        return self._elsewhere(row, _with_agents(self.study, number))

    def on_other_data(self, other: Study | None) -> Row:
        """Run on classes that were not in meta-training, or say why not."""
        source = self.study.config.data.source
        row = Row("unseen", "unseen classes", "near")
        if other is not None:
            name = other.config.data.source
            seen = "which its meta-training had, too" if self.subject.saw(name) else ""
            row = replace(row, title=f"on {name}", note=seen)
            if other.model.classes > self.study.model.classes and other.has_own(*_TASKS):
                return replace(row, note=NOT_CONFIGURED)
            return self._elsewhere(row, _with_classes(other, self.study.model.classes))
        if not self.subject.saw(source):
            note = f"all of {source}, which its meta-training did not have"
            return replace(
                row,
                accuracy=self.accuracy,
                chance=self.chance,
                centralised=self.centralised,
                note=note,
            )
        return replace(
            row, note=f"not here: its meta-training had all classes of {source}; name other data"
        )

    def _elsewhere(self, row: Row, study: Study) -> Row:
        """Run on the tasks of another study, over its network."""
        row = replace(row, expected="near")
        try:
            self.subject.make(study.model)  # which raises where it cannot
            network = study.network(self.seed)
            study, repeated = _that_can_draw(study, self.seed)
        except ValueError as error:
            return replace(row, note=f"not possible ({error})")
        tasks = study.test_tasks(self.seed)
        notes = [row.note] if row.note else []
        if repeated:
            notes.append("examples drawn with replacement, as there are too few")
        return replace(
            row,
            accuracy=self._run(row.title, tasks, network),
            chance=_chances(tasks),
            centralised=self._ceiling(_centralised(study), tasks),
            note="; ".join(notes),
        )

    def _run(self, title: str, tasks: Sequence[Task], network: Network) -> Tensor:
        """Return the subject's pooled accuracy after its last step on every task."""
        steps = self.subject.steps
        algorithm = self.subject.make(SoftmaxHead(tasks[0].features, tasks[0].classes))
        with self.progress(title, len(tasks)) as advance:
            runs = run_all(
                algorithm, tasks, network, steps, seed=self.seed, record=(0, steps), on_task=advance
            )
        return runs.pooled_accuracy[:, -1].double().nan_to_num(0.0)  # diverged: right about nothing

    def _ceiling(self, method: Centralised, tasks: Sequence[Task]) -> Tensor:
        accuracies = []
        with self.progress("centralised training", len(tasks)) as advance:
            for task in tasks:
                accuracies.append(method.accuracy(task))
                advance()
        return torch.tensor(accuracies, dtype=torch.float64)


def _centralised(study: Study) -> Centralised:
    """Return centralised training with a tuned penalty, to the accuracy that tuning has."""
    tuned = Centralised.tuned(study.tuning_tasks(TUNING_TASKS))
    return replace(tuned, tolerance=TUNING_TOLERANCE)


def _chances(tasks: Sequence[Task]) -> Tensor:
    return torch.tensor([chance(task) for task in tasks], dtype=torch.float64)


def _other_networks(study: StudyConfig) -> list[tuple[str, str, NetworkConfig]]:
    """Return the networks to try: other graphs of the same kind, and stale agents."""
    agents, network = study.task.agents, study.network
    changes = []
    if network.graph.kind == "star":
        if network.reporting is not None and network.reporting < agents:
            everybody = replace(network, reporting=None)
            changes.append(("reporting", "all agents report", everybody))
    else:
        # Sparser random graphs of so many agents are often not connected.
        probability = min(1.0, max(0.1, 2 * log(agents) / agents))
        for kind in _GRAPHS:
            if kind != network.graph.kind:
                graph = GraphConfig(kind=kind, probability=probability)
                changes.append((kind, f"{kind} graph", replace(network, graph=graph)))
    stale = max(1, round(STALE * agents))
    faulty = replace(network, faults=replace(network.faults, stale=stale))
    changes.append(("stale", f"stale agents: {stale}", faulty))
    return changes


def _with_agents(study: Study, agents: int) -> Study:
    config = study.config
    network = config.network
    if network.reporting is not None:
        network = replace(network, reporting=min(network.reporting, agents))
    task = replace(config.task, agents=agents)
    return Study(replace(config, task=task, network=network), features=study.features)


def _with_classes(study: Study, classes: int) -> Study:
    """Return a study whose tasks are about no more classes than that."""
    if study.model.classes <= classes:
        return study
    task = replace(study.config.task, classes_per_task=classes)
    return Study(replace(study.config, task=task), features=study.features)


def _that_can_draw(study: Study, seed: int) -> tuple[Study, bool]:
    """Return the study, or if there are too few examples the same with replacement, and whether so."""
    try:
        study.test_tasks(seed)
        study.tuning_tasks(TUNING_TASKS)
    except ValueError:
        if study.has_own(*_TASKS):
            raise
        task = replace(study.config.task, replacement=True)
        repeated = Study(replace(study.config, task=task), features=study.features)
        repeated.test_tasks(seed)
        repeated.tuning_tasks(TUNING_TASKS)
        return repeated, True
    return study, False


def _even(number: int) -> int:
    """Round up to an even number: a graph of odd degree has an even number of agents."""
    return number + number % 2


def _known(values: Tensor | None) -> Tensor:
    if values is None:
        raise AssertionError("this row always has an accuracy")
    return values
