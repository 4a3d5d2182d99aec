"""The time of a meta-training step, as an observer of meta-training measures it."""

from pathlib import Path
from time import perf_counter

from fedsurf.common.writing import write_json
from fedsurf.surf.training import StepRecord, ValidationRecord


class PaceOfSteps:
    """Writes the mean seconds of a step into a file at every validation; validations do not count.

    Parameters
    ----------
    file : Path
        The file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._steps, self._seconds, self._total = 0, 0.0, 0
        self._clock = perf_counter()

    def on_start(self, done: int, total: int) -> None:  # noqa: ARG002 - an observer's
        """Start the clock."""
        self._total = total
        self._clock = perf_counter()

    def on_step(self, record: StepRecord) -> None:  # noqa: ARG002 - an observer's
        """Count a step."""
        now = perf_counter()
        self._steps += 1
        self._seconds += now - self._clock
        self._clock = now

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:  # noqa: ARG002
        """Write the mean so far."""
        content = {
            "step": record.step,
            "steps": self._total,
            "timed": self._steps,
            "seconds_per_step": self._seconds / max(1, self._steps),
        }
        write_json(self._file, content)
        self._clock = perf_counter()
