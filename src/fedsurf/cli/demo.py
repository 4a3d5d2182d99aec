"""`fedsurf demo`: both halves of the library on embedded data."""

from dataclasses import replace
from pathlib import Path

from fedsurf.cli.compare import run_comparison, show_comparison
from fedsurf.cli.evaluate import run_evaluations, show_evaluations
from fedsurf.cli.train import run_training
from fedsurf.common.writing import check_folder
from fedsurf.evaluation.presets import STUDIES, preset

DEMO_METHODS = ("dgd", "dfedavgm", "gradient-tracking", "exact-diffusion")
"""The classical methods of the demo's first part."""


def demo(folder: Path = Path("demo-run"), tasks: int = 10, json: bool = False) -> None:
    """Show both halves of fedsurf on embedded data: a pretrained optimizer, and meta-training one.

    First the pretrained optimizer trains classifiers of digits, which were not in its meta-training,
    next to tuned classical methods. Then U-DGD is meta-trained on embedded images and trains new
    classifiers, next to DGD. Takes a few minutes on two cores and needs no download. A finished run
    in the folder is used again; remove the folder to train anew.

    Args:
        folder: Folder for the run, the figures and the numbers.
        tasks: Number of meta-test tasks.
        json: Print the numbers as JSON instead of tables.
    """
    from fedsurf.cli.console import err

    check_folder(folder)
    err.print(
        "1. The pretrained optimizer on handwritten digits: 30 agents, 3-regular graph, 20 rounds; "
        "classical methods have 200 rounds."
    )
    study = replace(STUDIES["digits"].config, tasks=tasks)
    place = folder / "pretrained"
    first = run_comparison(study, place, methods=DEMO_METHODS, pretrained=("softmax-head",))
    if not json:
        show_comparison(first, place)
    config = preset("demo")
    err.print(
        "2. Meta-training U-DGD on embedded Fashion-MNIST: 100 agents, 3-regular graph, "
        f"{config.optimizer.layers} layers of {config.optimizer.filter_order} rounds each."
    )
    run = folder / "u-dgd"
    run_training(config, run, resume=run.exists() and any(run.iterdir()))
    found = run_evaluations([run], tasks, (20, 200))
    show_evaluations(found, figure=folder / "figure.png", as_json=json)
