"""Progress on the terminal, on standard error: bars for long work, a line for each validation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedsurf.common.progress import OpenBar
from fedsurf.common.text import percent
from fedsurf.surf.training import StepRecord, ValidationRecord


class _Bar(Progress):
    """A bar with a title and a count, shown on terminals only."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )


class TerminalProgress(_Bar):
    """A bar that observes meta-training: loss, accuracy, worst slack, largest multiplier, time left."""

    def __init__(self, console: Console) -> None:
        numbers, left = TextColumn("{task.fields[numbers]}"), TextColumn("left")
        super().__init__(console, numbers, left, TimeRemainingColumn())
        self._bar = self.add_task("meta-training", total=None, numbers="")
        self._accuracy: float | None = None
        self._rule: str | None = None

    @contextmanager
    def next_part(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Reset the bar to another part of the work; yields the function that advances it."""
        self.reset(self._bar, total=total, description=title, numbers="")
        yield lambda: self.advance(self._bar)

    def on_start(self, done: int, total: int) -> None:
        """Set the bar to where meta-training begins."""
        if done:
            self.console.print(f"resuming after step {done} of {total}")
        self.reset(self._bar, total=total, completed=done, description="meta-training", numbers="")
        self._accuracy = self._rule = None

    def on_step(self, record: StepRecord) -> None:
        """Advance the bar."""
        accuracy = "" if self._accuracy is None else f" accuracy {percent(self._accuracy)} %"
        self.update(
            self._bar,
            completed=record.step,
            numbers=(
                f"loss {record.loss:.3f}{accuracy} worst slack {record.worst_slack:+.3f} "
                f"largest λ {record.largest_multiplier:.2f}"
            ),
        )

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:
        """Print a line."""
        self._accuracy = record.accuracy
        worst = max(range(len(record.slack)), key=record.slack.__getitem__)
        holding = sum(record.holding)
        best = ""
        if best_by is not None:
            best = "; best so far" if best_by == self._rule else f"; best so far by {best_by}"
            self._rule = best_by
        self.console.print(
            f"step {record.step}: validation loss {record.loss:.3f}, "
            f"accuracy {percent(record.accuracy)} % own, {percent(record.pooled_accuracy)} % pooled; "
            f"{holding} of {len(record.slack)} constraints hold, worst slack "
            f"{record.slack[worst]:+.4f} (layer {worst + 1}){best}",
            highlight=False,
            soft_wrap=True,
        )


def opener(console: Console) -> OpenBar:
    """Return a function that opens a progress bar with a title and a total."""

    @contextmanager
    def open_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
        with _Bar(console, TimeElapsedColumn()) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)

    return open_bar
