"""Meta-training from beginning to end: validations, the best optimizer, states to resume from."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from fedsurf.common.configuration import differences, from_dict, to_dict
from fedsurf.common.files import CheckpointError
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.records import StepRecord, ValidationRecord
from fedsurf.surf.selection import choose
from fedsurf.surf.training import MetaTraining

Config = TypeVar("Config")


class Observer(Protocol):
    """Is told what happens during meta-training: progress bars and logs."""

    def on_start(self, done: int, total: int) -> None:
        """Meta-training begins, `done` of `total` steps being behind it."""
        ...

    def on_step(self, record: StepRecord) -> None:
        """A step was taken."""
        ...

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:
        """A validation was made; `best_by` is the rule by which it is the best so far, if it is."""
        ...


def read_run_config(folder: RunFolder, kind: type[Config]) -> Config:
    """Read the configuration of a run, or raise if it is another kind's or another version's."""
    content = folder.read_config()
    try:
        return from_dict(kind, content)
    except ValueError as error:
        raise CheckpointError(f"{folder.path}: {error}") from error


def check_trained_with(folder: RunFolder, config: dict[str, Any]) -> None:
    """Raise unless the best optimizer of a run was trained with the configuration beside it."""
    stored = folder.best_metadata().get("config")
    found = differences(stored, config) if isinstance(stored, dict) else ["all of it"]
    found = [one for one in found if not one.startswith("data.folder ")]  # data may move
    if found:
        raise CheckpointError(
            f"{folder.path}: config.json is not what best.safetensors was trained with; they differ in "
            f"{', '.join(found)}"
        )


def open_run(folder: RunFolder, config: Any, *, resume: bool) -> None:
    """Begin a run in a folder, or find that it holds one of the same configuration to go on with."""
    if folder.is_new():
        folder.write_config(to_dict(config))
    elif not resume:
        raise FileExistsError(
            f"{folder.path}: there is something in this folder already; "
            "resume the run, or choose another folder"
        )
    else:
        there = read_run_config(folder, type(config))
        if there != config:
            raise ValueError(
                f"{folder.path}: holds a run with another configuration, which differs in "
                f"{', '.join(differences(to_dict(there), to_dict(config)))}"
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
        Where the log, the best optimizer and the states go. A finished run is only read.
    stored : dict
        The resolved configuration, which is written beside θ.
    observers : sequence of Observer
        Are told what happens.

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
