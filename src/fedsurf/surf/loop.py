"""Meta-training from start to end in a run folder: validations, the best optimizer, resuming.

    config.json              the resolved configuration
    data.json                fingerprint of the data, so that changed data is noticed
    log.jsonl                a line for each validation
    best.safetensors         θ of the best optimizer so far, with its configuration and the rule that chose it
    state-00001500/          everything that step 1501 depends on

A state folder appears under its name only when it is complete, and the one before it is removed
only after that: a run that is killed at any moment resumes from the newest one, to the same bits.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedsurf.common.configuration import differences, from_dict, to_dict
from fedsurf.common.files import FileError, read_json, read_metadata, read_tensors_into, reading
from fedsurf.common.writing import (
    TEMPORARY_PATTERN,
    json_text,
    new_folder,
    plain,
    remove_leftovers,
    replacing,
    write_json,
    write_tensors,
)
from fedsurf.surf.config import SelectBy, SurfConfig
from fedsurf.surf.constraints import UnrolledOptimizer
from fedsurf.surf.training import MetaTraining, StepRecord, ValidationRecord

Config = TypeVar("Config")

RULES: dict[SelectBy, str] = {
    "loss": "lowest validation loss",
    "accuracy": "highest pooled validation accuracy",
    "last": "last validation",
}
"""The rules by which the best validation is chosen."""
FEASIBLE_RULE = "among those whose constraints hold within two standard errors"
INFEASIBLE_RULE = "smallest violation: no validation had all constraints hold within error yet"


class Observer(Protocol):
    """A listener to meta-training, such as a progress bar or a log."""

    def on_start(self, done: int, total: int) -> None:
        """Meta-training begins, with `done` of `total` steps already taken."""

    def on_step(self, record: StepRecord) -> None:
        """A step was taken."""

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:
        """A validation was made; `best_by` is the rule if it is the best so far, otherwise None."""


class RunFolder:
    """The files of one run, in a folder that need not exist yet; `meta_train` has an example."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best = path / "best.safetensors"
        self.data = path / "data.json"

    def is_new(self) -> bool:
        """Whether the folder is empty, or holds only files of a run that ended before its first state."""
        if not self.path.is_dir():
            return True
        early = {self.path / "config.json", self.data, self.path / "tensorboard"}
        return set(self.path.iterdir()) <= {*early, *self.path.glob(TEMPORARY_PATTERN)}

    def begin(self, config: Any, *, resume: bool) -> None:
        """Begin a run, or check that the run in the folder has the same configuration."""
        if self.is_new():
            write_json(self.path / "config.json", to_dict(config))
        elif not resume:
            raise FileExistsError(
                f"{self.path}: the folder is not empty; resume the run, or choose another folder"
            )
        else:
            found = differences(to_dict(self.read_config(type(config))), to_dict(config))
            if found:
                raise ValueError(
                    f"{self.path}: holds a run with another configuration, which differs in "
                    f"{', '.join(found)}"
                )
        # A killed run may leave a file that it was writing, and a state that it was removing.
        remove_leftovers(self.path)
        for state in self._states()[:-1]:
            shutil.rmtree(state)

    def read_content(self) -> dict[str, Any]:
        """Read the resolved configuration as plain JSON."""
        if not self.path.is_dir():
            raise FileError(f"{self.path}: there is no such run folder")
        content = read_json(self.path / "config.json")
        if not isinstance(content, dict):
            raise FileError(f"{self.path / 'config.json'}: damaged, it must be a table of fields")
        return content

    def read_config(self, kind: type[Config]) -> Config:
        """Read the resolved configuration; raise if it is of another kind."""
        try:
            return from_dict(kind, self.read_content())
        except ValueError as error:
            raise FileError(f"{self.path}: {error}") from error

    def check_best(self, config: Any) -> None:
        """Raise unless the best optimizer was trained with this configuration; the data may have moved."""
        with reading(self.best, "the best optimizer of a run"):
            found = differences(read_metadata(self.best)["config"], to_dict(config))
        found = [name for name in found if not name.startswith("data.folder ")]
        if found:
            raise FileError(
                f"{self.path}: best.safetensors was trained with another configuration than "
                f"config.json; they differ in {', '.join(found)}"
            )

    def read_best(self, optimizer: UnrolledOptimizer) -> dict[str, Any]:
        """Copy the best θ into `optimizer`; return its metadata: configuration, rule, validation."""
        return read_tensors_into(self.best, dict(optimizer.named_parameters()))

    def write_state(self, training: MetaTraining, records: list[ValidationRecord]) -> None:
        """Store everything that the next step depends on, then remove older states."""
        final = self.path / f"state-{training.step_count:08d}"
        older = self._states()
        validations = [asdict(record) for record in records]
        with new_folder(final) as folder:
            for group, tensors in training.state().items():
                write_tensors(folder / f"{group}.safetensors", tensors, {})
            progress = {**_settings(training), "validations": validations}
            write_json(folder / "progress.json", progress)
        for state in older:
            shutil.rmtree(state)

    def read_state(self, training: MetaTraining) -> list[ValidationRecord]:
        """Restore the newest state, if any, made with the same settings; return the validations so far."""
        states = self._states()
        if not states:
            return []
        newest = states[-1]
        progress = read_json(newest / "progress.json")
        with reading(newest / "progress.json", "the progress of a run"):
            records = [_validation(record) for record in progress.pop("validations")]
            found = differences(progress, _settings(training))
        if found:
            raise ValueError(
                f"{self.path}: holds a run with other settings, which differ in {', '.join(found)}; "
                "choose another folder"
            )
        for group, tensors in training.state().items():
            read_tensors_into(newest / f"{group}.safetensors", tensors)
        training.step_count = int(newest.name.removeprefix("state-"))
        return records

    def write_log(self, records: list[ValidationRecord], rules: dict[int, str]) -> None:
        """Write each validation, and the rule by which it became the best, if it did."""
        with replacing(self.path / "log.jsonl") as temporary, temporary.open("w") as file:
            for record in records:
                judged = {"feasible": record.feasible, "best_by": rules.get(record.step)}
                file.write(json_text({**asdict(record), **judged}) + "\n")

    def _states(self) -> list[Path]:
        return sorted(p for p in self.path.glob("state-????????") if p.is_dir())


def _settings(training: MetaTraining) -> Any:
    """Return the configuration and seed of meta-training as plain JSON values."""
    return plain({"surf": to_dict(training.config), "seed": training.seed})


def _validation(stored: dict[str, Any]) -> ValidationRecord:
    """Rebuild a validation; JSON stores the infinite error of a single task as null."""
    record = ValidationRecord(**stored)
    errors = [math.inf if error is None else error for error in record.slack_error]
    return replace(record, slack_error=errors)


def choose(
    records: list[ValidationRecord], *, constrained: bool, by: SelectBy = "loss"
) -> tuple[ValidationRecord, str]:
    """Return the best validation so far, and the rule that chose it."""

    def cost(record: ValidationRecord) -> float:
        return {"loss": record.loss, "accuracy": -record.pooled_accuracy, "last": -record.step}[by]

    if not constrained:
        return min(records, key=cost), RULES[by]
    feasible = [record for record in records if record.feasible]
    if feasible:
        return min(feasible, key=cost), f"{RULES[by]} {FEASIBLE_RULE}"
    return min(records, key=lambda record: max(record.slack)), INFEASIBLE_RULE


def best_rules(records: list[ValidationRecord], surf: SurfConfig) -> dict[int, str]:
    """Return the rule that chose each validation which was the best so far, by its step."""
    rules = {}
    for count, record in enumerate(records, 1):
        constrained = surf.descent.constrained
        best, rule = choose(records[:count], constrained=constrained, by=surf.select_by)
        if best is record:
            rules[record.step] = rule
    return rules


def meta_train(
    training: MetaTraining, folder: RunFolder, config: Any, observers: Sequence[Observer] = ()
) -> dict[str, Any]:
    """Run meta-training into a folder, from the newest state there; leave the best θ in its optimizer.

    Returns the metadata of the best optimizer: the resolved `config`, the rule that chose it, and its
    validation. A finished run is only read.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import fedsurf
    >>> from fedsurf.surf import FixedProblems
    >>> experiment = fedsurf.Experiment(fedsurf.preset("smoke"))
    >>> problems = FixedProblems(experiment.tasks, experiment.network, count=5, seed=0)
    >>> surf = SurfConfig(steps=2, validation_tasks=2)
    >>> training = MetaTraining(experiment.optimizer, problems, surf)
    >>> with TemporaryDirectory() as folder:
    ...     meta_train(training, RunFolder(Path(folder)), {})["validation"]["step"]
    2
    """
    surf, stored = training.config, to_dict(config)
    records = folder.read_state(training)
    for observer in observers:
        observer.on_start(training.step_count, surf.steps)
    while training.step_count < surf.steps:
        step = training.step()
        for observer in observers:
            observer.on_step(step)
        if step.step % surf.validate_every and step.step != surf.steps:
            continue
        with training.averaged():
            record = training.validate()
            records.append(record)
            rules = best_rules(records, surf)
            rule = rules.get(record.step)
            if rule is not None:
                about = {"config": stored, "rule": rule, "validation": asdict(record)}
                write_tensors(folder.best, dict(training.optimizer.named_parameters()), about)
        folder.write_log(records, rules)
        folder.write_state(training, records)
        for observer in observers:
            observer.on_validation(record, rule)
    return folder.read_best(training.optimizer)
