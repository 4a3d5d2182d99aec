"""`fedsurf evaluate`: trained optimizers on meta-test tasks, beside DGD."""

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli import tables
from fedsurf.cli.console import CommandLineError, err, out, print_json
from fedsurf.cli.progress import opener
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import write_json
from fedsurf.evaluation import evaluate as comparison
from fedsurf.evaluation import plots
from fedsurf.evaluation.experiment import Experiment


def evaluate(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")],
    tasks: int = 30,
    rounds: tuple[int, ...] = (20, 200),
    figure: Path | None = None,
    json: bool = False,
) -> None:
    """Try meta-trained optimizers on meta-test tasks, beside tuned DGD and centralised training.

    Args:
        runs: One or several folders that `fedsurf train` made.
        tasks: The number of meta-test tasks.
        rounds: The numbers of rounds that DGD is given; its step is tuned for each.
        figure: Draw a figure into this file (.png, .svg or .pdf).
        json: Print the numbers as JSON instead of tables.
    """
    if not runs:
        raise CommandLineError("runs: got none, but there must be at least one run to evaluate")
    if not rounds:
        raise CommandLineError("rounds: got none, but DGD must be given at least one number")
    show_evaluation(list(runs), tasks=tasks, rounds=rounds, figure=figure, as_json=json)


def show_evaluation(
    runs: list[Path], *, tasks: int, rounds: tuple[int, ...], figure: Path | None, as_json: bool
) -> None:
    """Evaluate runs; print their tables or JSON, draw the figure."""
    if figure is not None:
        plots.check_figure(figure)
    results = []
    for run in runs:
        experiment = Experiment.load(run)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        result = comparison.evaluate(experiment, tasks=tasks, rounds=rounds, progress=opener(err))
        try:
            write_json(run / "evaluation.json", result.to_dict())
        except OSError as error:  # a folder of someone else's: the result is shown all the same
            err.print(f"evaluation.json was not written: {error}", highlight=False, soft_wrap=True)
        results.append((run, experiment.config, result))
    if not as_json:
        for run, config, result in results:
            descent = config.surf.descent
            out.print(f"\n{run}", highlight=False, style="bold")
            out.print(
                tables.layers_table(
                    result, constrained=descent.constrained, epsilon=descent.epsilon
                )
            )
            out.print(tables.methods_table(result))
    if figure is not None:
        if len(results) == 1:
            _, config, result = results[0]
            drawn = plots.comparison_figure(result, config.surf.descent.epsilon)
        else:
            drawn = plots.layers_figure(
                [(run_label(run, runs), result) for run, _, result in results]
            )
        plots.save(drawn, figure)
        err.print(f"figure: {figure}", highlight=False, soft_wrap=True)
    if as_json:
        print_json([{"run": str(run), **result.to_dict()} for run, _, result in results])


def run_label(run: Path, runs: list[Path]) -> str:
    """Name a run in a figure: by its folder's name, or by the whole path where that is ambiguous."""
    return run.name if [one.name for one in runs].count(run.name) == 1 else str(run)
