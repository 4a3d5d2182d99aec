"""Meta-train U-DGD by SURF, compare it with DGD and centralised training, and draw a figure.

Uses the smallest preset, which takes seconds; `fedsurf.preset("demo")` gives useful results.

    python train_and_evaluate.py [FOLDER]
"""

import sys
from pathlib import Path

from rich.console import Console

import fedsurf
from fedsurf.cli.tables import layers_table, methods_table
from fedsurf.evaluation import plots


def main(folder: Path) -> None:
    """Train into the folder, or resume a run in it; then evaluate."""
    config = fedsurf.preset("smoke")
    experiment = fedsurf.Experiment(config)
    best = experiment.train(folder, resume=folder.exists())
    print(f"The best optimizer is that of step {best['validation']['step']}, by {best['rule']}.")

    result = fedsurf.evaluate(experiment, tasks=4, rounds=[6, 30])
    console = Console()
    console.print(layers_table(result))
    console.print(methods_table(result))

    figure = folder / "figure.png"
    plots.save(plots.evaluation_figure(result), figure)
    print(f"The figure is {figure}.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-run"))
