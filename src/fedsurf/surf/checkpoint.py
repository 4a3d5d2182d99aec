"""A run's folder: its configuration, its log, the best optimizer, and the state to resume from.

    config.json              the resolved configuration
    data.json                fingerprint of the data, so that changed data is noticed
    log.jsonl                a line for each validation
    best.safetensors         θ of the best optimizer so far, with its configuration and the rule that chose it
    state-00001500/          everything that step 1501 depends on, as safetensors

A state folder appears under its name only when it is complete, and the one before it is removed
only after that: a run that is killed at any moment resumes from the newest one.
"""

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import differences, to_dict
from fedsurf.common.files import FileError, read_json, read_metadata, read_tensors_into
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
from fedsurf.surf.problems import UnrolledOptimizer
from fedsurf.surf.training import MetaTraining, ValidationRecord

FORMAT_VERSION = 1
"""Version of the files' layout."""
SETTINGS_FILE = "settings.json"
"""File of a state with the configuration and seed of its meta-training."""


class RunFolder:
    """Reads and writes one run's files.

    Parameters
    ----------
    path : Path
        The folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def best(self) -> Path:
        """File of the best optimizer."""
        return self.path / "best.safetensors"

    def is_new(self) -> bool:
        """Whether the folder is empty, or holds only files of a run that ended before its first state."""
        if not self.path.is_dir():
            return True
        early = {self.path / name for name in ("config.json", "data.json", "tensorboard")}
        return set(self.path.iterdir()) <= {*early, *self.path.glob(TEMPORARY_PATTERN)}

    def remove_leftovers(self) -> None:
        """Remove what a killed run was writing or removing, which can be as large as a state."""
        remove_leftovers(self.path)
        for state in self._states()[:-1]:
            shutil.rmtree(state)

    def write_config(self, config: dict[str, Any]) -> None:
        """Store the resolved configuration."""
        write_json(self.path / "config.json", {"format": FORMAT_VERSION, **config})

    def read_config(self) -> dict[str, Any]:
        """Read the resolved configuration."""
        if not self.path.is_dir():
            raise FileError(f"{self.path}: there is no such run folder")
        content = read_json(self.path / "config.json")
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT_VERSION:
            raise FileError(
                f"{self.path / 'config.json'}: not the configuration of a run, or one of another version"
            )
        return content

    def write_data(self, data: dict[str, Any]) -> None:
        """Store the fingerprint of the data."""
        write_json(self.path / "data.json", data)

    def read_data(self) -> Any:
        """Read the fingerprint of the data; None if the run has none."""
        file = self.path / "data.json"
        return read_json(file) if file.exists() else None

    def write_best(
        self, optimizer: UnrolledOptimizer, record: ValidationRecord, rule: str, config: Any
    ) -> None:
        """Store θ as the best so far, with the rule that chose it."""
        write_tensors(
            self.best,
            dict(optimizer.named_parameters()),
            {"config": config, "rule": rule, "validation": asdict(record)},
        )

    def read_best(self, optimizer: UnrolledOptimizer) -> dict[str, Any]:
        """Copy the best θ into `optimizer` and return its metadata."""
        return read_tensors_into(self.best, dict(optimizer.named_parameters()))

    def best_metadata(self) -> dict[str, Any]:
        """Return configuration, rule and validation record of the best optimizer."""
        return read_metadata(self.best)

    def write_state(self, training: MetaTraining, records: list[ValidationRecord]) -> None:
        """Store everything that the next step depends on, then remove older states."""
        final = self.path / f"state-{training.step_count:08d}"
        older = self._states()
        if final in older:
            return
        with new_folder(final) as folder:
            for group, tensors in training.state().items():
                write_tensors(folder / f"{group}.safetensors", tensors, {})
            write_json(folder / "progress.json", [asdict(record) for record in records])
            write_json(folder / SETTINGS_FILE, _settings(training))
        for state in older:
            shutil.rmtree(state)

    def read_state(self, training: MetaTraining) -> list[ValidationRecord]:
        """Restore the newest state, if there is one; return the validations so far.

        Raises if the state was made with another configuration or seed.
        """
        states = self._states()
        if not states:
            return []
        newest = states[-1]
        _check_settings(newest, training)
        progress = read_json(newest / "progress.json")
        if not isinstance(progress, list):
            raise FileError(f"{newest / 'progress.json'}: damaged, it is not a list")
        for group, tensors in training.state().items():
            read_tensors_into(newest / f"{group}.safetensors", tensors)
        try:
            records = [_validation(record) for record in progress]
        except TypeError as error:
            raise FileError(
                f"{newest / 'progress.json'}: damaged, it holds no validations ({error})"
            ) from error
        training.step_count = int(newest.name.removeprefix("state-"))
        return records

    def write_log(self, records: list[ValidationRecord], rules: dict[int, str]) -> None:
        """Rewrite the log: each validation, and the rule by which it became the best, if it did."""
        lines = [
            json_text(
                {
                    **asdict(record),
                    "feasible": record.feasible,
                    "best_by": rules.get(record.step),
                }
            )
            for record in records
        ]
        with replacing(self.path / "log.jsonl") as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _states(self) -> list[Path]:
        return sorted(p for p in self.path.glob("state-????????") if p.is_dir())


def _settings(training: MetaTraining) -> Any:
    """Return the configuration and seed of meta-training as plain JSON values."""
    return plain({"surf": to_dict(training.config), "seed": training.seed})


def _check_settings(state: Path, training: MetaTraining) -> None:
    """Raise unless a state was made with the same configuration and seed."""
    different = differences(read_json(state / SETTINGS_FILE), _settings(training))
    if different:
        raise ValueError(
            f"{state.parent}: holds a run with other settings, which differ in {', '.join(different)}; "
            "choose another folder"
        )


def _validation(stored: dict[str, Any]) -> ValidationRecord:
    """Rebuild a validation record; JSON stores the infinite error of a single task as null."""
    record = ValidationRecord(**stored)
    errors = [math.inf if error is None else error for error in record.slack_error]
    return replace(record, slack_error=errors)
