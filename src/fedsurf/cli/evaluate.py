"""`fedsurf evaluate`: trained optimizers on meta-test tasks, compared with DGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.common.checks import counted
from fedsurf.common.writing import write_json

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from fedsurf.evaluation.evaluate import Evaluation
    from fedsurf.evaluation.run import Trajectories

MAX_PLAIN_LOSS = 1e6
"""Largest loss that is shown with all digits; larger ones are on their way to divergence."""


def evaluate(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")],
    tasks: int = 30,
    rounds: tuple[int, ...] = (20, 200),
    figure: Path | None = None,
    json: bool = False,
) -> None:
    """Try meta-trained optimizers on meta-test tasks, with tuned DGD and centralised training.

    Args:
        runs: One or several folders that `fedsurf train` made.
        tasks: Number of meta-test tasks.
        rounds: Numbers of rounds for DGD; its step is tuned for each.
        figure: Draw a figure into this file (.png, .svg or .pdf).
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.cli.console import CommandLineError
    from fedsurf.evaluation import plots

    for name, given in (("runs", runs), ("rounds", rounds)):
        if not given:
            raise CommandLineError(f"{name}: got none, but there must be at least one")
    if figure is not None:
        plots.check_figure(figure)
    show_evaluations(run_evaluations(runs, tasks, rounds), figure=figure, as_json=json)


def run_evaluations(
    runs: Sequence[Path], tasks: int, rounds: Sequence[int]
) -> dict[Path, Evaluation]:
    """Evaluate runs with a progress bar, and write the numbers of each into its folder."""
    from fedsurf.cli.console import err
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import evaluate as evaluation
    from fedsurf.evaluation.experiment import Experiment

    found = {}
    for run in runs:
        experiment = Experiment.load(run)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        found[run] = evaluation.evaluate(
            experiment, tasks=tasks, rounds=rounds, progress=opener(err)
        )
        try:
            write_json(run / "evaluation.json", found[run].to_dict())
        except OSError as error:  # e.g. a folder of another user
            err.print(f"evaluation.json was not written: {error}", highlight=False, soft_wrap=True)
    return found


def show_evaluations(
    found: Mapping[Path, Evaluation], *, figure: Path | None, as_json: bool
) -> None:
    """Print the tables or the JSON of evaluations, and draw the figure."""
    from fedsurf.cli.console import err, out, print_json
    from fedsurf.evaluation import plots
    from fedsurf.evaluation.comparison import run_label

    if as_json:
        print_json([{"run": str(run), **one.to_dict()} for run, one in found.items()])
    else:
        for run, one in found.items():
            out.print(f"\n{run}", highlight=False, style="bold")
            out.print(layers_table(one))
            out.print(methods_table(one))
    if figure is not None:
        if len(found) == 1:
            drawn = plots.evaluation_figure(*found.values())
        else:
            drawn = plots.layers_figure([(run_label(run, [*found]), found[run]) for run in found])
        plots.save(drawn, figure)
        err.print(f"figure: {figure}", highlight=False, soft_wrap=True)


def methods_table(found: Evaluation) -> Table:
    """Return a table of the accuracy of each method at its end."""
    from rich import box
    from rich.table import Table

    tasks = len(found.centralised)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Accuracy on {counted(tasks, 'meta-test task')} (mean ± standard error over tasks)",
        caption="own: on each agent's own test examples; pooled: on those of the whole federation",
    )
    table.add_column("method")
    for heading in ("rounds", "floats per link", "own %", "pooled %"):
        table.add_column(heading, justify="right")
    names = [found.unrolled.name, *(f"DGD, step {size:g} (tuned)" for size in found.step_sizes)]
    for name, runs in zip(names, [found.unrolled, *found.classical], strict=True):
        table.add_row(
            _named(name, runs),
            str(int(runs.taken[-1])),
            f"{float(runs.floats[:, -1].double().mean()) / max(1, found.links):,.0f}",
            _percent(runs.accuracy[:, -1]),
            _percent(runs.pooled_accuracy[:, -1]),
        )
    table.add_row("centralised (ceiling)", "-", "-", "-", _percent(found.centralised))
    return table


def layers_table(found: Evaluation) -> Table:
    """Return a table of the unrolled optimizer's layers and descending constraints."""
    from rich import box
    from rich.table import Table

    runs, descent, constraints = found.unrolled, found.descent, found.constraints
    held, several = int(descent.holds.sum()), len(descent.slack) > 1
    holding = (
        f"{held} of {len(descent.holds)} descending constraints hold on meta-test within two "
        "standard errors"
        if several
        else "one task has no standard error, so no constraint is judged"
    )
    imposed = "imposed" if constraints.constrained else "not imposed"
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=(f"{runs.name}, layer by layer (constraints {imposed}, ε = {constraints.epsilon:g})"),
        caption=f"{holding}; a slack above 0 is a violation",
    )
    headings = ("layer", "rounds", "loss", "own %", "pooled %", "‖∇f‖", "slack", "± s.e.", "holds")
    for heading in headings:
        table.add_column(heading, justify="right")
    for layer, rounds in enumerate(runs.taken.tolist()):
        slack = error = holds = ""
        if layer:
            slack, error, holds = _number(descent.mean[layer - 1], "+.4f"), "-", "-"
        if layer and several and descent.mean[layer - 1].isfinite():
            error = f"{descent.error[layer - 1]:.4f}"
            holds = "yes" if descent.holds[layer - 1] else "NO"
        table.add_row(
            str(layer),
            str(rounds),
            _number(runs.loss[:, layer].mean(), ".3f"),
            f"{100 * runs.accuracy[:, layer].nan_to_num(0.0).mean():.1f}",
            f"{100 * runs.pooled_accuracy[:, layer].nan_to_num(0.0).mean():.1f}",
            _number(descent.norms[:, layer].mean(), ".4f"),
            slack,
            error,
            holds,
        )
    return table


def _named(name: str, runs: Trajectories) -> str:
    diverged = [at for at in runs.diverged if at is not None]
    return f"{name} (diverged at {min(diverged)})" if diverged else name


def _percent(accuracy: Tensor) -> str:
    """Return the mean accuracy and its standard error; that of a run that diverged is 0."""
    from fedsurf.common.statistics import standard_error

    values = 100 * accuracy.nan_to_num(0.0)
    error = f" ± {float(standard_error(values)):.1f}" if len(values) > 1 else ""
    return f"{float(values.mean()):.1f}{error}"


def _number(value: Tensor, style: str) -> str:
    """Return a number, "-" if it is not finite, and its first digits if it is very large."""
    if not value.isfinite():
        return "-"
    return f"{value:{style}}" if value.abs() < MAX_PLAIN_LOSS else f"{value:.1e}"
