"""`fedsurf ablation`: the same optimizer with and without the descending constraints."""

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli.choices import Preset
from fedsurf.common.writing import check_folder


def ablation(
    config: Annotated[Preset, tyro.conf.arg(name="")],
    folder: Path,
    tasks: int = 30,
    json: bool = False,
) -> None:
    """Meta-train the same optimizer with and without the descending constraints, and compare both.

    Runs in the folder that are finished are used again, interrupted runs are resumed.

    Args:
        config: The preset to start from.
        folder: Gets the two runs, each with its numbers, and the figure.
        tasks: The number of meta-test tasks.
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.cli.console import err, note
    from fedsurf.cli.evaluate import show_evaluations
    from fedsurf.cli.progress import TerminalProgress
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation.ablation import ablation as run_ablation
    from fedsurf.evaluation.experiment import Experiment

    check_folder(folder)
    experiment = Experiment(config)
    limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
    with TerminalProgress(err) as bar:
        found = run_ablation(
            config,
            folder,
            tasks=tasks,
            features=experiment.features,
            observers=[bar],
            on_note=note,
            progress=bar.next_part,
        )
    show_evaluations(found, figure=folder / "figure.png", as_json=json)
