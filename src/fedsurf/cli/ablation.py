"""`fedsurf ablation`: the same optimizer with and without the descending constraints."""

from dataclasses import replace
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
    from fedsurf.cli.console import err
    from fedsurf.cli.evaluate import show_evaluation
    from fedsurf.cli.train import run_training

    check_folder(folder)
    runs = {"with-constraints": True, "without-constraints": False}
    for name, constrained in runs.items():
        err.print(f"Meta-training {name.replace('-', ' ')}", highlight=False)
        descent = replace(config.surf.descent, constrained=constrained)
        changed = replace(config, surf=replace(config.surf, descent=descent))
        run = folder / name
        run_training(changed, run, resume=run.exists() and any(run.iterdir()))
    places = [folder / name for name in runs]
    show_evaluation(places, tasks=tasks, rounds=(20,), figure=folder / "figure.png", as_json=json)
