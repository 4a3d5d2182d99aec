"""`fedsurf certify`: measure the theorems' quantities of a run, show the tables, the figure and the files."""

import math
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.table import Table

from fedsurf import pretrained
from fedsurf.analysis.certificate import Certificate, GradientExamples, Reading
from fedsurf.analysis.certificate import certify as run_certify
from fedsurf.analysis.certificate_layers import Layer
from fedsurf.analysis.plots_certificate import certificate_figure
from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import opener
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_folder, write_json, write_rows
from fedsurf.evaluation import plots
from fedsurf.evaluation.experiment import Experiment

_SAYS = {
    "": "something",
    "start": "nothing: above the start",
    "largest": "nothing: above all norms seen",
    "infinite": "nothing: infinite",
}


def certify(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    tasks: int = 30,
    training_tasks: int | None = None,
    confidence: float = 0.95,
    gradient_examples: GradientExamples | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Set the bounds of the paper's theorems beside what an optimizer does on meta-test tasks.

    Measures, layer by layer, the gradient norm, the slack of the descending constraint, how often it
    fails (δ), its sample error (ζ) and the largest gradient norm (M). Writes certificate.json,
    certificate.csv and a figure, and says plainly where a bound is vacuous.

    Args:
        run: A folder that `fedsurf train` made.
        tasks: The number of meta-test tasks, at least 2.
        training_tasks: The number of meta-training tasks for the sample error; as many by default.
        confidence: The level of confidence intervals and limits.
        gradient_examples: The examples on which gradients are taken: mini-batch or all; by default
            those of the run's constraints.
        out: The folder for the files; the run's own by default.
        json: Print the numbers as JSON instead of tables.
    """
    experiment = find(run)
    folder = run if out is None else out
    check_folder(folder, "run" if out is None else "out")
    found = run_certify(
        experiment,
        tasks=tasks,
        training_tasks=training_tasks,
        confidence=confidence,
        gradient_examples=gradient_examples,
        progress=opener(err),
    )
    write_files(found, folder)
    if json:
        print_json(found.to_dict())
    else:
        show(found)
    err.print(f"files: {folder / 'certificate'}.json, .csv, .png, .svg", highlight=False)


def find(run: Path) -> Experiment:
    """Load the run, or say why there can be no certificate of it."""
    if str(run) in pretrained.NAMES or run.suffix == ".safetensors":
        raise ValueError(
            f"run: got {run}, a pretrained optimizer, but it must be the folder of a run of `fedsurf "
            "train`: a pretrained optimizer meets other data than that of its meta-training, so there "
            "is no sample error between the two that the theorems could use"
        )
    experiment = Experiment.load(run)
    limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
    return experiment


def show(found: Certificate) -> None:
    """Print the tables, the assumptions and the sentence."""
    out.print(layers_table(found))
    out.print(readings_table(found))
    out.print(assumptions_table(found))
    out.print(found.sentence, highlight=False, style="bold")


def layers_table(found: Certificate) -> Table:
    """Show what was measured at every layer, and the bounds there."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=(
            f"{found.subject} on {found.tasks} meta-test tasks, layer by layer "
            f"(ε = {found.per_run.constants.epsilon:g})"
        ),
        caption=(
            f"‖∇f‖: {found.gradient}, mean ± standard deviation over tasks. Slack with its "
            f"{100 * found.confidence:g} % interval: above 0 is a violation, and > 0 the share of tasks "
            "with one. δ: the share above ζ. ζ: distance from the mean slack on "
            f"{found.training_tasks} meta-training tasks. M: the largest norm. Bound: of the second "
            "theorem; in the mean: the same with δ = 0"
        ),
    )
    for heading in ("layer", "‖∇f‖", "slack", "> 0", "δ", "ζ", "M", "bound", "in the mean"):
        # Of these, cells have several parts, which may stand below each other.
        wraps = heading in ("‖∇f‖", "slack", "in the mean")
        table.add_column(heading, justify="right", no_wrap=not wraps)
    for layer in found.layers:
        table.add_row(
            str(layer.layer),
            f"{layer.norm:.3g} ± {layer.norm_spread:.2g}",
            *_constraint(layer),
            f"{layer.largest_norm:.3g}",
            _number(found.per_run.rate_bound[layer.layer]),
            _number(found.in_mean.rate_bound[layer.layer]),
        )
    return table


def readings_table(found: Certificate) -> Table:
    """Show the constants and the bounds that follow from them."""
    last = len(found.layers) - 1
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"The bounds of E‖∇f(W_{last})‖, which is {found.layers[-1].norm:.3g}",
        caption=(
            "per run: as the proof has it, constants estimated; cautious: their upper confidence limits; "
            "in the mean: δ = 0, and ζ what every layer's mean slack is below with confidence. Radius: "
            "of the near-optimal region, the first theorem's bound; tighter: the second theorem's before "
            "its proof simplifies it"
        ),
    )
    table.add_column("reading", no_wrap=True)
    for heading in ("δ", "ζ", "M", "radius", "bound", "tighter", "holds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the bound says")
    names = ("per run", "cautious", "in the mean")
    for name, reading in zip(names, found.readings, strict=True):
        table.add_row(name, *_cells(reading))
    return table


def assumptions_table(found: Certificate) -> Table:
    """Show what is known of the theorems' assumptions."""
    table = Table(box=box.SIMPLE_HEAD, title="What the theorems assume", padding=(0, 0, 0, 1))
    for heading in ("that", "here", "because"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "here")
    for check in found.checks:
        table.add_row(check.name, check.status, check.note)
    return table


def write_files(found: Certificate, folder: Path) -> None:
    """Write certificate.json, certificate.csv, certificate.png and certificate.svg."""
    write_json(folder / "certificate.json", found.to_dict())
    write_rows(folder / "certificate.csv", found.rows())
    figure = certificate_figure(found)
    for ending in ("png", "svg"):
        plots.save(figure, folder / f"certificate.{ending}")


def _constraint(layer: Layer) -> tuple[str, str, str, str]:
    one = layer.constraint
    if one is None:
        return "", "", "", ""
    return (
        f"{one.slack:+.3f} [{one.slack_low:+.3f}, {one.slack_high:+.3f}]",
        f"{100 * one.violated:.0f} %",
        f"{100 * one.failed:.0f} %",
        f"{one.sample_error:.3f}",
    )


def _cells(reading: Reading) -> tuple[str, ...]:
    constants = reading.constants
    return (
        f"{constants.failure:.3g}",
        f"{constants.sample_error:.3g}",
        f"{constants.largest_norm:.3g}" if constants.failure else "-",
        _number(reading.radius),
        _number(reading.rate_bound[-1]),
        _number(reading.recursive_bound[-1]),
        "yes" if reading.holds else "NO",
        _SAYS[reading.vacuous],
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "∞"
