"""`fedsurf evaluate`: trained optimizers on meta-test tasks, compared with DGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.cli.console import CommandLineError, err, note, out, print_json
from fedsurf.common.writing import write_json

if TYPE_CHECKING:
    from fedsurf.evaluation.evaluate import Evaluation


def evaluate(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")],
    tasks: int = 30,
    rounds: tuple[int, ...] = (20, 200),
    figure: Path | None = None,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Try meta-trained optimizers on meta-test tasks, with tuned DGD and centralised training.

    Args:
        runs: One or several folders that `fedsurf train` made.
        tasks: Number of meta-test tasks.
        rounds: Numbers of rounds for DGD; its step is tuned for each.
        figure: Draw a figure into this file (.png, .svg or .pdf).
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.evaluation import plots

    for name, given in (("runs", runs), ("rounds", rounds)):
        if not given:
            raise CommandLineError(f"{name}: got none, but there must be at least one")
    if figure is not None:
        plots.check_figure(figure)
    found = run_evaluations(runs, tasks, rounds, device)
    show_evaluations(found, figure=figure, as_json=json)


def run_evaluations(
    runs: Sequence[Path], tasks: int, rounds: Sequence[int], device: str = "cpu"
) -> dict[Path, Evaluation]:
    """Evaluate runs with a progress bar, and write the numbers of each into its folder."""
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import evaluate as evaluation
    from fedsurf.evaluation.experiment import Experiment

    found = {}
    for run in runs:
        experiment = Experiment.load(run, device=device)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        found[run] = evaluation.evaluate(
            experiment, tasks=tasks, rounds=rounds, progress=opener(err)
        )
        try:
            write_json(run / "evaluation.json", found[run].to_dict())
        except OSError as error:  # e.g. a folder of another user
            note(f"evaluation.json was not written: {error}")
    return found


def show_evaluations(
    found: Mapping[Path, Evaluation], *, figure: Path | None, as_json: bool
) -> None:
    """Print the tables or the JSON of evaluations, and draw the figure."""
    from fedsurf.cli.tables import layers_table, methods_table
    from fedsurf.evaluation import plots
    from fedsurf.evaluation.compare import run_label

    if as_json:
        print_json([{"run": str(run), **one.to_dict()} for run, one in found.items()])
    else:
        for run, one in found.items():
            out.print(f"\n{run}", style="bold")
            out.print(layers_table(one))
            out.print(methods_table(one))
    if figure is not None:
        if len(found) == 1:
            drawn = plots.evaluation_figure(*found.values())
        else:
            drawn = plots.layers_figure([(run_label(run, [*found]), found[run]) for run in found])
        plots.save(drawn, figure)
        note(f"figure: {figure}")
