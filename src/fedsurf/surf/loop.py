"""Meta-training from start to end: validations, the choice of the best optimizer, resuming."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from fedsurf.common.configuration import differences, from_dict, to_dict
from fedsurf.common.files import FileError
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.config import SelectBy
from fedsurf.surf.training import MetaTraining, StepRecord, ValidationRecord

Config = TypeVar("Config")

RULES: dict[SelectBy, str] = {
    "loss": "lowest validation loss",
    "accuracy": "highest pooled validation accuracy",
    "last": "last validation",
}
"""The rule by which the best validation is chosen."""
FEASIBLE_RULE = "among those whose constraints hold within two standard errors"
INFEASIBLE_RULE = "smallest violation: no validation had all constraints hold within error yet"


class Observer(Protocol):
    """A listener to meta-training, such as a progress bar or a log."""

    def on_start(self, done: int, total: int) -> None:
        """Meta-training begins, with `done` of `total` steps already taken."""
        ...

    def on_step(self, record: StepRecord) -> None:
        """A step was taken."""
        ...

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:
        """A validation was made; `best_by` is the rule if it is the best so far, otherwise None."""
        ...


def choose(
    records: list[ValidationRecord], *, constrained: bool, by: SelectBy = "loss"
) -> tuple[ValidationRecord, str]:
    """Return the best validation so far, and the rule that chose it."""

    def cost(record: ValidationRecord) -> float:
        costs = {
            "loss": record.loss,
            "accuracy": -record.pooled_accuracy,
            "last": -float(record.step),
        }
        return costs[by]

    if not constrained:
        return min(records, key=cost), RULES[by]
    feasible = [record for record in records if record.feasible]
    if feasible:
        return min(feasible, key=cost), f"{RULES[by]} {FEASIBLE_RULE}"
    return min(records, key=lambda record: record.violation), INFEASIBLE_RULE


def read_run_config(folder: RunFolder, kind: type[Config]) -> Config:
    """Read the configuration of a run; raise if it is of another kind or version."""
    content = folder.read_config()
    try:
        return from_dict(kind, content)
    except ValueError as error:
        raise FileError(f"{folder.path}: {error}") from error


def check_trained_with(folder: RunFolder, config: dict[str, Any]) -> None:
    """Raise unless the best optimizer of a run was trained with the run's configuration."""
    stored = folder.best_metadata().get("config")
    different = differences(stored, config) if isinstance(stored, dict) else ["all of it"]
    different = [name for name in different if not name.startswith("data.folder ")]  # data may move
    if different:
        raise FileError(
            f"{folder.path}: best.safetensors was trained with another configuration than config.json; "
            f"they differ in {', '.join(different)}"
        )


def open_run(folder: RunFolder, config: Any, *, resume: bool) -> None:
    """Begin a run in a folder, or check that the run in it has the same configuration."""
    if folder.is_new():
        folder.write_config(to_dict(config))
    elif not resume:
        raise FileExistsError(
            f"{folder.path}: the folder is not empty; resume the run, or choose another folder"
        )
    else:
        stored = read_run_config(folder, type(config))
        if stored != config:
            raise ValueError(
                f"{folder.path}: holds a run with another configuration, which differs in "
                f"{', '.join(differences(to_dict(stored), to_dict(config)))}"
            )
    folder.remove_leftovers()


def meta_train(
    training: MetaTraining,
    folder: RunFolder,
    stored: dict[str, Any],
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Run meta-training into a folder, from the newest state there; leave the best θ in its optimizer.

    Parameters
    ----------
    training : MetaTraining
        At its beginning.
    folder : RunFolder
        The folder for the log, the best optimizer and the states. A finished run is only read.
    stored : dict
        The resolved configuration, which is stored with θ.
    observers : sequence of Observer
        Listeners, such as progress bars.

    Returns
    -------
    dict
        The metadata of the best optimizer: configuration, rule, validation.
    """
    surf = training.config
    records = folder.read_state(training)
    rules: dict[int, str] = {}
    best: ValidationRecord | None = None
    for count in range(1, len(records) + 1):
        best, rule = choose(
            records[:count], constrained=surf.descent.constrained, by=surf.select_by
        )
        rules[best.step] = rule
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
            best, rule = choose(records, constrained=surf.descent.constrained, by=surf.select_by)
            if best is record:
                rules[record.step] = rule
                folder.write_best(training.optimizer, record, rule, stored)
        folder.write_log(records, rules)
        folder.write_state(training, records)
        for observer in observers:
            observer.on_validation(record, rules.get(record.step))
    return folder.read_best(training.optimizer)
