"""`fedsurf train`: meta-train an unrolled optimizer into a folder."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from fedsurf.cli.choices import Preset
from fedsurf.cli.console import err, print_json, say
from fedsurf.common.text import percent
from fedsurf.common.writing import check_folder


def train(
    config: Annotated[Preset, tyro.conf.arg(name="")],
    folder: Path,
    resume: bool = False,
    tensorboard: bool = False,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Meta-train an unrolled optimizer by SURF.

    Choose a preset by name; every field of it can be overridden. The run's folder holds the resolved
    configuration, a log, the best optimizer so far and the state to resume from.

    Args:
        config: The preset to start from.
        folder: The run's folder; it must be new, unless resuming.
        resume: Continue an interrupted run in this folder, to the same bits as without the
            interruption. The configuration must be the same.
        tensorboard: Write TensorBoard curves into the folder, too.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the result as JSON.
    """
    best = run_training(config, folder, resume=resume, tensorboard=tensorboard, device=device)
    validation = best["validation"]
    if json:
        print_json({"folder": str(folder), "rule": best["rule"], "validation": validation})
        return
    say(
        f"The best optimizer is that of step {validation['step']}, by {best['rule']}: "
        f"validation accuracy {percent(validation['accuracy'])} % own, "
        f"{percent(validation['pooled_accuracy'])} % pooled. "
        f"It is in {folder / 'best.safetensors'}."
    )
    say(f"Next: fedsurf evaluate {quote(str(folder))}")


def run_training(
    config: Preset,
    folder: Path,
    *,
    resume: bool,
    tensorboard: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Meta-train into a folder with a progress bar; return the metadata of the best optimizer."""
    from fedsurf.cli.progress import TerminalProgress
    from fedsurf.cli.tracking import TensorBoard
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation.experiment import Experiment

    if not resume:  # a finished run is only read
        check_folder(folder)
    with TerminalProgress(err) as bar:
        curves = [TensorBoard(folder / "tensorboard")] if tensorboard else []
        experiment = Experiment(config, device=device)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        return experiment.train(folder, resume=resume, observers=[bar, *curves])
