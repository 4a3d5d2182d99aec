"""`fedsurf certify`: the bounds of the paper's theorems for a run, as tables, a figure and files."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedsurf.common.writing import check_folder


def certify(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    tasks: int = 30,
    training_tasks: int | None = None,
    confidence: float = 0.95,
    gradient_examples: Literal["mini-batch", "all"] | None = None,
    out: Path | None = None,
    device: str = "cpu",
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
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.analysis.certificate import certify as measure
    from fedsurf.cli import console
    from fedsurf.cli.progress import opener
    from fedsurf.cli.tables import bounds_table, certificate_table
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation.experiment import Experiment

    experiment = Experiment.load(run, device=device)
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
        console.out.print(certificate_table(found))
        console.out.print(bounds_table(found))
        console.out.print(found.sentence, style="bold")
    console.note(f"files: {folder / 'certificate'}.json, .csv, .png, .svg")
