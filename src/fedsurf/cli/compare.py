"""`fedsurf compare`: methods and trained optimizers on the same tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.cli.choices import AnyStudy
from fedsurf.cli.console import err, note, out, print_json, say
from fedsurf.common.writing import check_folder
from fedsurf.evaluation.config import PRETRAINED_ROUNDS, SHOWN_ROUNDS

if TYPE_CHECKING:
    from fedsurf.evaluation.compare import Comparison


def compare(
    config: Annotated[AnyStudy, tyro.conf.arg(name="")],
    folder: Path,
    methods: tuple[str, ...] = ("all",),
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = PRETRAINED_ROUNDS,
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = SHOWN_ROUNDS,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Compare methods and trained optimizers: same tasks, same start, same graph, same metric.

    Results are cached in the folder: adding a method computes only that method. Writes results.json,
    results.csv, trajectories.csv, figure.png and figure.svg into the folder.

    Args:
        config: The study to start from.
        folder: Folder for the results.
        methods: Names of classical methods; all stands for all that run on the network.
        runs: Folders of optimizers that `fedsurf train` made.
        pretrained: Names of pretrained optimizers (softmax-head), or their .safetensors files.
        depths: Numbers of rounds for each pretrained optimizer.
        batch_sizes: Sizes of mini-batches with which each pretrained optimizer is run in addition to
            all examples of every agent.
        tuned: Settings of the methods, a file of `fedsurf tune`; by default those that come with
            fedsurf.
        at: Numbers of rounds after which accuracy is shown, in addition to the end. If a step takes
            several rounds, it is the accuracy after the last whole step.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the results as JSON instead of a table.
    """
    found = run_comparison(
        config,
        folder,
        methods=methods,
        runs=runs,
        pretrained=pretrained,
        depths=depths,
        batch_sizes=batch_sizes,
        tuned=tuned,
        at=at,
        device=device,
    )
    if json:
        print_json(found.to_dict())
    else:
        show_comparison(found, folder)


def run_comparison(config: AnyStudy, folder: Path, **options: object) -> Comparison:
    """Compare with progress bars, and write the results into a folder."""
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import compare as comparison

    check_folder(folder)
    limit_threads(0)
    found = comparison.compare(
        config,
        cache=folder / "cache",
        on_note=note,
        progress=opener(err),
        **options,  # type: ignore[arg-type]
    )
    found.write(folder)
    return found


def show_comparison(found: Comparison, folder: Path) -> None:
    """Print a comparison's tables, its notes, and the place of its figure."""
    from fedsurf.cli.tables import reached_table, scores_table

    out.print(scores_table(found))
    out.print(reached_table(found.scores))
    for line in found.notes:
        out.print(line)
    say(f"figure: {folder / 'figure.png'}")
