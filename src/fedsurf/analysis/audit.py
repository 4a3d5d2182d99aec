"""Audits, which tell whether an optimizer learned to learn, or learned a classifier.

An optimizer that learns takes all that it knows of a task from the agents' training examples. So it
falls to chance where these carry no information, and does not depend on the names of the classes. An
optimizer that has learned the classifier of its meta-training classes does well without data, and fails
where labels are renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedsurf.algorithms.centralised import TUNING_TOLERANCE, Centralised
from fedsurf.analysis.interventions import (
    Intervention,
    blank_features,
    chance,
    rename_labels,
    rotate_features,
    shuffle_labels,
)
from fedsurf.analysis.subject import Subject
from fedsurf.analysis.verdict import Verdict, judge
from fedsurf.common.checks import check_kind
from fedsurf.common.configuration import to_dict
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.writing import write_json, write_rows
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.run import run_all
from fedsurf.evaluation.study import Study
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, Network, NetworkConfig
from fedsurf.network.config import GraphKind
from fedsurf.tasks.sources import check_source
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable

STALE_SHARE = 0.1
"""Share of the agents that are stale in that intervention."""
TUNING_TASKS = 3
"""Validation tasks on which the penalty of centralised training is tuned."""

Expected = Literal["", "chance", "same", "near"]


@dataclass(frozen=True)
class Row:
    """An intervention and its effect; tensors have a value for each task."""

    name: str
    """The name in files."""
    title: str
    """The name in tables."""
    expected: Expected = "near"
    """A learner falls to chance, stays the same, or stays near centralised training."""
    accuracy: Tensor | None = None
    """Pooled accuracy; None where the intervention was not possible."""
    chance: Tensor | None = None
    """Accuracy without features."""
    centralised: Tensor | None = None
    """Accuracy of centralised training."""
    change: Tensor | None = None
    """Accuracy minus the untouched accuracy; None where tasks are others."""
    note: str = ""
    """A remark, such as why it was not possible."""

    def to_dict(self) -> dict[str, Any]:
        """Return means over tasks and their standard errors, for JSON and CSV."""
        content: dict[str, Any] = {
            name: getattr(self, name) for name in ("name", "title", "expected")
        }
        for name in ("accuracy", "change", "chance", "centralised"):
            values = getattr(self, name)
            content[name] = None if values is None else float(values.mean())
            content[f"{name}_error"] = None if values is None else finite(standard_error(values))
        return {**content, "note": self.note}


_DATA_INTERVENTIONS: tuple[tuple[Row, Intervention], ...] = (
    (Row("blanked", "features blanked", "chance"), blank_features),
    (Row("shuffled", "labels shuffled", "chance"), shuffle_labels),
    (Row("renamed", "labels renamed", "same"), rename_labels),
    (Row("rotated", "features rotated", "same"), rotate_features),
)
_GRAPHS: tuple[GraphKind, ...] = ("regular", "erdos-renyi", "ring", "torus", "complete")


@dataclass(frozen=True)
class Audit:
    """The result of an audit; `audit` has an example."""

    subject: str
    """The name of the optimizer."""
    study: StudyConfig
    """The study on which it was audited."""
    rows: list[Row]
    """The untouched optimizer first, then one row for each intervention."""
    verdict: Verdict
    """The judgement of what it has learned."""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return self.verdict.sentence(self.subject)

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        return {row.name: row for row in self.rows}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON."""
        return {
            "subject": self.subject,
            "tasks": self.study.tasks,
            "verdict": self.verdict.kind,
            "sentence": self.sentence,
            "skill": self.verdict.skill,
            "kept": dict(self.verdict.kept),
            "rows": [row.to_dict() for row in self.rows],
            "study": to_dict(self.study),
        }

    def write(self, folder: Path) -> None:
        """Write audit.json and audit.csv."""
        write_json(folder / "audit.json", self.to_dict())
        write_rows(folder / "audit.csv", [row.to_dict() for row in self.rows])


def audit(
    subject: Subject | Experiment | Transferable | Path | str,
    study: Study | None = None,
    *,
    other: Study | str | None = None,
    agents: Sequence[int] | None = None,
    progress: OpenBar = silent,
) -> Audit:
    """Run an optimizer on a study's meta-test tasks, untouched and under interventions.

    `subject` is the optimizer, or what `Subject.of` takes. `study` has the data, the tasks (at least 2) and
    the network, by default the subject's own; only the first of its seeds is used. `other` is other data, or
    its source, with classes that were not in meta-training. `agents` are other numbers of agents, by default
    half and twice as many as the study's. `progress` opens a bar with a title and a total.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> from fedsurf.algorithms import DGD
    >>> from fedsurf.analysis.subject import Subject
    >>> config = fedsurf.STUDIES["digits"].config
    >>> config = replace(config, task=replace(config.task, agents=8), tasks=2)
    >>> dgd = Subject("DGD", lambda model: DGD(model, step_size=1.0), steps=20)
    >>> fedsurf.audit(dgd, fedsurf.Study(config), agents=[]).verdict.kind
    'learned to learn'
    """
    subject = subject if isinstance(subject, Subject) else Subject.of(subject)
    study = Study(subject.study) if study is None else study
    check_kind(study, Study, "study", "a Study")
    config = study.config
    if config.tasks < 2:
        raise ValueError(f"tasks: got {config.tasks}, but it must be at least 2, for a verdict")
    if isinstance(other, str):
        check_source(other, "other")
        other = Study(replace(config, data=replace(config.data, source=other, folder=None)))
    if other is not None:
        _ = other.features  # unreadable data is an error before the work begins
    runs = _Runs(subject, study, progress)
    data = [runs.on_data(*intervention) for intervention in _DATA_INTERVENTIONS]
    accuracies = [row.accuracy for row in data if row.accuracy is not None]
    verdict = judge(runs.accuracy, runs.chance, *accuracies[:3])
    rows = [runs.untouched, *data, runs.on_other_data(other)]
    if not study.is_custom:  # a custom environment may not follow changes of the configuration
        count = config.task.agents
        half = count // 2 + count // 2 % 2  # even, as a graph of odd degree needs it
        numbers = (half, 2 * count) if agents is None else agents
        rows += [runs.over_network(*change) for change in _other_networks(config)]
        rows += [runs.with_agents(number) for number in numbers]
    return Audit(subject.name, config, rows, verdict)


class _Runs:
    """Runs a subject on a study's tasks, untouched and under interventions."""

    def __init__(self, subject: Subject, study: Study, progress: OpenBar) -> None:
        self.subject, self.study, self.progress = subject, study, progress
        self.seed = study.config.seeds[0]
        self.tasks, self.network = study.test_tasks(self.seed), study.network(self.seed)
        self.chance = _chances(self.tasks)
        self.accuracy = self._run("untouched", self.tasks, self.network)
        self.method = _tuned_centralised(study)
        self.centralised = self._ceiling(self.method, self.tasks)
        self.untouched = Row(
            "untouched", "untouched", "", self.accuracy, self.chance, self.centralised
        )

    def on_data(self, row: Row, intervene: Intervention) -> Row:
        """Intervene on every task.

        Centralised training is not run again for renamed labels and rotated features, which do not
        change its accuracy: its loss, penalty and start at 0 depend on neither names nor axes.
        """
        tasks = [
            intervene(task, seeded(self.seed, "audit", row.name, number))
            for number, task in enumerate(self.tasks)
        ]
        row = self._on_same_examples(row, tasks, self.network)
        same = row.expected == "same"
        ceiling = self.centralised if same else self._ceiling(self.method, tasks)
        return replace(row, chance=_chances(tasks), centralised=ceiling)

    def over_network(self, row: Row, config: NetworkConfig) -> Row:
        """Run on the same tasks over another network."""
        try:
            network = self.study.network(self.seed, config)
        except ValueError as error:
            return replace(row, note=f"not possible ({error})")
        return self._on_same_examples(row, self.tasks, network)

    def with_agents(self, number: int) -> Row:
        """Run with another number of agents, each with as many examples as before."""
        config = self.study.config
        network = config.network
        if network.reporting is not None:
            network = replace(network, reporting=min(network.reporting, number))
        config = replace(config, task=replace(config.task, agents=number), network=network)
        study = Study(config, features=self.study.features)
        return self._elsewhere(Row(f"agents-{number}", f"agents: {number}"), study)

    def on_other_data(self, other: Study | None) -> Row:
        """Run on classes that were not in meta-training, if there are any."""
        source, classes = self.study.config.data.source, self.study.model.classes
        if other is not None:
            name = other.config.data.source
            note = "which its meta-training had, too" if _saw(self.subject, name) else ""
            if other.model.classes > classes and not other.is_custom:
                task = replace(other.config.task, classes_per_task=classes)
                other = Study(replace(other.config, task=task), features=other.features)
            return self._elsewhere(Row("unseen", f"on {name}", note=note), other)
        if _saw(self.subject, source):
            note = f"not here: its meta-training had all classes of {source}; name other data"
            return Row("unseen", "unseen classes", note=note)
        note = f"all of {source}, which its meta-training did not have"
        row = Row("unseen", "unseen classes", accuracy=self.accuracy, note=note)
        return replace(row, chance=self.chance, centralised=self.centralised)

    def _elsewhere(self, row: Row, study: Study) -> Row:
        """Run on the tasks of another study, over its network."""
        try:
            self.subject.make(study.model)  # raises if it cannot
            network = study.network(self.seed)
            study, note = _drawable(study, self.seed, row.note)
        except ValueError as error:
            return replace(row, note=f"not possible ({error})")
        tasks = study.test_tasks(self.seed)
        return replace(
            row,
            accuracy=self._run(row.title, tasks, network),
            chance=_chances(tasks),
            centralised=self._ceiling(_tuned_centralised(study), tasks),
            note=note,
        )

    def _on_same_examples(self, row: Row, tasks: Sequence[Task], network: Network) -> Row:
        """Run, and compare with the untouched run."""
        accuracy = self._run(row.title, tasks, network)
        row = replace(row, accuracy=accuracy, change=accuracy - self.accuracy)
        return replace(row, chance=self.chance, centralised=self.centralised)

    def _run(self, title: str, tasks: Sequence[Task], network: Network) -> Tensor:
        """Return the subject's pooled accuracy after its last step on every task."""
        steps = self.subject.steps
        algorithm = self.subject.make(SoftmaxHead(tasks[0].features, tasks[0].classes))
        with self.progress(title, len(tasks)) as advance:
            runs = run_all(
                algorithm,
                tasks,
                network,
                steps,
                seed=self.seed,
                record=(0, steps),
                device=self.study.environment.device,
                on_task=advance,
            )
        return runs.pooled_accuracy[:, -1].double().nan_to_num(0.0)  # 0 where it diverged

    def _ceiling(self, method: Centralised, tasks: Sequence[Task]) -> Tensor:
        accuracies = []
        with self.progress("centralised training", len(tasks)) as advance:
            for task in tasks:
                accuracies.append(method.accuracy(task))
                advance()
        return torch.tensor(accuracies, dtype=torch.float64)


def _tuned_centralised(study: Study) -> Centralised:
    """Return centralised training with a tuned penalty, to the accuracy that tuning has."""
    tuned = Centralised.tuned(study.tuning_tasks(TUNING_TASKS))
    return replace(tuned, tolerance=TUNING_TOLERANCE)


def _chances(tasks: Sequence[Task]) -> Tensor:
    return torch.tensor([chance(task) for task in tasks], dtype=torch.float64)


def _other_networks(study: StudyConfig) -> list[tuple[Row, NetworkConfig]]:
    """Return the networks to try: other graphs of the same kind, and stale agents."""
    agents, network = study.task.agents, study.network
    changes = []
    if network.graph.kind == "star":
        if network.reporting is not None and network.reporting < agents:
            every = replace(network, reporting=None)
            changes.append((Row("reporting", "all agents report"), every))
    else:
        # Sparser random graphs of this many agents are often not connected.
        probability = min(1.0, max(0.1, 2 * log(agents) / agents))
        for kind in _GRAPHS:
            if kind != network.graph.kind:
                graph = GraphConfig(kind=kind, probability=probability)
                changes.append((Row(kind, f"{kind} graph"), replace(network, graph=graph)))
    stale = max(1, round(STALE_SHARE * agents))
    faulty = replace(network, faults=replace(network.faults, stale=stale))
    return [*changes, (Row("stale", f"stale agents: {stale}"), faulty)]


def _drawable(study: Study, seed: int, note: str) -> tuple[Study, str]:
    """Return a study whose tasks can be drawn, with replacement if examples are too few, and a note."""
    try:
        study.test_tasks(seed)
        study.tuning_tasks(TUNING_TASKS)
    except ValueError:
        if study.is_custom or study.config.task.replacement:
            raise
        task = replace(study.config.task, replacement=True)
        repeated = Study(replace(study.config, task=task), features=study.features)
        repeating = "examples drawn with replacement, as there are too few"
        return _drawable(repeated, seed, f"{note}; {repeating}" if note else repeating)
    return study, note


def _saw(subject: Subject, source: str) -> bool:
    """Return whether meta-training had data of this source, or of another size of it."""
    names = (source, *subject.seen)
    whole, *seen = (name.removesuffix("-mini").removesuffix("-5k") for name in names)
    return whole in seen
