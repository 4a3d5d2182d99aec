"""`fedsurf certify`: the bounds of the paper's theorems for a run, as tables, a figure and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedsurf.common.writing import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from fedsurf.analysis.certificate import Certificate


def certify(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    tasks: int = 30,
    training_tasks: int | None = None,
    confidence: float = 0.95,
    gradient_examples: Literal["mini-batch", "all"] | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Compare the bounds of the paper's theorems with what an optimizer does on meta-test tasks.

    Measures, layer by layer, the gradient norm, the slack of the descending constraint, how often it
    fails (δ), its sample error (ζ) and the largest gradient norm (M). Writes certificate.json,
    certificate.csv and a figure, and tells where a bound is vacuous.

    Args:
        run: A folder that `fedsurf train` made. Pretrained optimizers have no certificate, because the
            theorems are about tasks of one distribution.
        tasks: The number of meta-test tasks, at least 2.
        training_tasks: The number of meta-training tasks for the sample error; as many by default.
        confidence: The level of confidence intervals and limits.
        gradient_examples: The examples on which gradients are taken: mini-batch or all; by default
            those of the run's constraints.
        out: The folder for the files; the run's own by default.
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.analysis.certificate import certify as measure
    from fedsurf.cli import console
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation.experiment import Experiment

    experiment = Experiment.load(run)
    folder = run if out is None else out
    check_folder(folder, "run" if out is None else "out")
    limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
    found = measure(
        experiment,
        tasks=tasks,
        training_tasks=training_tasks,
        confidence=confidence,
        gradient_examples=gradient_examples,
        progress=opener(console.err),
    )
    found.write(folder)
    if json:
        console.print_json(found.to_dict())
    else:
        console.out.print(layers_table(found))
        console.out.print(bounds_table(found))
        console.out.print(found.sentence, highlight=False, style="bold")
    console.err.print(f"files: {folder / 'certificate'}.json, .csv, .png, .svg", highlight=False)


def layers_table(found: Certificate) -> Table:
    """Return a table of what was measured at every layer, and the bounds there."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"{found.subject} on {found.tasks} meta-test tasks (ε = {found.per_run.epsilon:g})",
        caption=(
            f"‖∇f‖: {found.gradient}, mean ± standard deviation over tasks. Slack with its "
            f"{100 * found.confidence:g} % interval: above 0 is a violation, and > 0 the share of tasks "
            "with one. δ: the share above ζ. ζ: distance from the mean slack on "
            f"{found.training_tasks} meta-training tasks. M: the largest norm. Bound: of the second "
            "theorem; in the mean: the same with δ = 0"
        ),
    )
    for heading in ("layer", "‖∇f‖", "slack", "> 0", "δ", "ζ", "M", "bound", "in the mean"):
        wraps = heading in ("‖∇f‖", "slack", "in the mean")  # their cells can be broken
        table.add_column(heading, justify="right", no_wrap=not wraps)
    for layer, row in enumerate(found.layers.itertuples()):
        constraint = (
            f"{row.slack:+.3f} [{row.slack_low:+.3f}, {row.slack_high:+.3f}]",
            f"{100 * row.violated:.0f} %",
            f"{100 * row.failed:.0f} %",
            f"{row.sample_error:.3f}",
        )
        table.add_row(
            str(layer),
            f"{row.norm:.3g} ± {row.norm_spread:.2g}",
            *(constraint if layer else [""] * 4),
            f"{row.largest_norm:.3g}",
            f"{found.per_run.values[layer]:.3g}",
            f"{found.in_mean.values[layer]:.3g}",
        )
    return table


def bounds_table(found: Certificate) -> Table:
    """Return a table of the constants and the bounds that follow from them."""
    from rich import box
    from rich.table import Table

    last = len(found.layers) - 1
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"The bounds of E‖∇f(W_{last})‖, which is {found.per_run.norms[-1]:.3g}",
        caption=(
            "per run: as in the proof; in the mean: δ = 0, and ζ is the upper confidence limit of the "
            "largest mean slack. Radius: the first theorem's bound; bound: the second theorem's"
        ),
    )
    for heading in ("", "δ", "ζ", "M", "radius", "bound", "holds", "vacuous"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    reasons = {"": "no", "start": "above the start", "largest": "above M", "infinite": "infinite"}
    for name, bound in (("per run", found.per_run), ("in the mean", found.in_mean)):
        constants = [bound.failure, bound.sample_error, bound.largest_norm]
        numbers = [f"{value:.3g}" for value in (*constants, bound.radius, bound.values[-1])]
        table.add_row(name, *numbers, "yes" if bound.holds else "NO", reasons[bound.vacuous])
    return table
