"""`fedsurf compare`: methods and trained optimizers on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.cli.choices import AnyStudy
from fedsurf.common.checks import counted
from fedsurf.common.writing import check_folder
from fedsurf.evaluation.config import PRETRAINED_ROUNDS, SHOWN_ROUNDS

if TYPE_CHECKING:
    from rich.table import Table

    from fedsurf.evaluation.comparison import Comparison, Score


def compare(
    config: Annotated[AnyStudy, tyro.conf.arg(name="")],
    folder: Path,
    methods: tuple[str, ...] = ("all",),
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = PRETRAINED_ROUNDS,
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = SHOWN_ROUNDS,
    json: bool = False,
) -> None:
    """Compare methods and trained optimizers: same tasks, same start, same graph, same metric.

    Results are cached in the folder: adding a method computes only that method. Writes results.json,
    results.csv, trajectories.csv, figure.png and figure.svg into the folder.

    Args:
        config: The study to start from.
        folder: Folder for the results.
        methods: Names of classical methods; all stands for all that run on the network.
        runs: Folders of optimizers that `fedsurf train` made.
        pretrained: Names of pretrained optimizers (softmax-head), or their .safetensors files.
        depths: Numbers of rounds for each pretrained optimizer.
        batch_sizes: Sizes of mini-batches with which each pretrained optimizer is run in addition to
            all examples of every agent.
        tuned: Settings of the methods, a file of `fedsurf tune`; by default those that come with
            fedsurf.
        at: Numbers of rounds after which accuracy is shown, in addition to the end. If a step takes
            several rounds, it is the accuracy after the last whole step.
        json: Print the results as JSON instead of a table.
    """
    from fedsurf.cli.console import print_json

    found = run_comparison(
        config,
        folder,
        methods=methods,
        runs=runs,
        pretrained=pretrained,
        depths=depths,
        batch_sizes=batch_sizes,
        tuned=tuned,
        at=at,
    )
    if json:
        print_json(found.to_dict())
    else:
        show_comparison(found, folder)


def run_comparison(config: AnyStudy, folder: Path, **options: object) -> Comparison:
    """Compare with progress bars, and write the results into a folder."""
    from fedsurf.cli.console import err
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import comparison

    check_folder(folder)
    limit_threads(0)
    found = comparison.compare(
        config,
        cache=folder / "cache",
        on_note=lambda note: err.print(note, highlight=False, soft_wrap=True),
        progress=opener(err),
        **options,  # type: ignore[arg-type]
    )
    found.write(folder)
    return found


def show_comparison(found: Comparison, folder: Path) -> None:
    """Print a comparison's tables, its notes, and the place of its figure."""
    from fedsurf.cli.console import out

    out.print(scores_table(found))
    out.print(reached_table(found.scores))
    for note in found.notes:
        out.print(note, highlight=False)
    out.print(f"figure: {folder / 'figure.png'}", highlight=False, soft_wrap=True)


def scores_table(found: Comparison) -> Table:
    """Return a table of the accuracy of all entrants by number of rounds."""
    from rich import box
    from rich.table import Table

    from fedsurf.common.statistics import finite, standard_error

    rounds = sorted({count for score in found.scores for count in score.accuracy})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"Pooled accuracy (%) by number of rounds; {counted(len(found.ceiling), 'task')}",
        caption=(
            "± standard error over tasks and seeds; gap: points below centralised training on the "
            "same tasks, at the end"
        ),
    )
    table.add_column("method")
    for heading in (*map(str, rounds), "end", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    for score in found.scores:
        shown = [score.accuracy.get(count) for count in rounds]
        cells = ["" if pair is None else f"{100 * pair[0]:.1f}" for pair in shown]
        end = _with_error(score.end[1], score.end[2], 1)
        table.add_row(_named(score), *cells, end, _with_error(*score.gap, 2))
    mean, error = found.ceiling.mean().item(), finite(standard_error(found.ceiling))
    table.add_row("centralised (ceiling)", *[""] * len(rounds), _with_error(mean, error, 1), "")
    return table


def reached_table(scores: Sequence[Score]) -> Table:
    """Return a table of the rounds and floats until shares of the centralised accuracy."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title="Rounds and floats (thousands per agent) until a share of the centralised accuracy",
        caption="medians over tasks; -: not reached on most tasks; total: floats of all rounds",
    )
    table.add_column("method")
    for reached in scores[0].reached:
        table.add_column(f"→{100 * reached.share:.0f}%", justify="right", no_wrap=True)
        table.add_column("floats", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for score in scores:
        cells = []
        for one in score.reached:
            cells += ["-" if one.rounds is None else f"{one.rounds:.0f}"]
            cells += ["-" if one.floats is None else f"{one.floats / 1000:,.1f}"]
        table.add_row(_named(score), *cells, f"{score.floats / 1000:,.0f}")
    return table


def _with_error(value: float, error: float | None, digits: int) -> str:
    shown = f"{100 * value:.{digits}f}"
    return shown if error is None else f"{shown} ±{100 * error:.{digits}f}"


def _named(score: Score) -> str:
    return f"{score.label} (diverged at {min(score.diverged)})" if score.diverged else score.label
