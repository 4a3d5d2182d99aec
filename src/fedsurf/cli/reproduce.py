"""`fedsurf reproduce`: make the paper's figures again, and judge its claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from fedsurf.cli.console import err, note, out, print_json, say
from fedsurf.common.configuration import to_dict
from fedsurf.common.writing import check_folder
from fedsurf.paper.sizes import SIZES, SizeName

if TYPE_CHECKING:
    from fedsurf.surf.loop import Observer

Wanted = Literal[
    "all",
    "speed-regular",
    "speed-random",
    "speed-star",
    "heterogeneity",
    "ablation",
    "asynchrony",
    "theory",
    "report",
]


def reproduce(
    figure: tyro.conf.Positional[Wanted],
    preset: SizeName = "desktop",
    folder: Path = Path("reproduction"),
    features: Path | None = None,
    mnist_features: Path | None = None,
    resume: bool = False,
    jobs: int = 1,
    json: bool = False,
) -> None:
    """Make a figure of the paper again, or all of them, and judge its claims.

    Meta-trains U-DGD, tunes and runs the classical methods, audits every optimizer, and writes the figure,
    its data and its claims into a folder of the figure's name, and a report of all figures in the folder.
    Figures share optimizers and results. smoke takes seconds; desktop takes most of an hour on two cores;
    paper has the paper's dimensions, and prints first how long it will take.

    Args:
        figure: The figure; all for all of them; report to write the report of a folder again.
        preset: The size: smoke, desktop or paper.
        folder: Folder for all files; it must be new, unless resuming.
        features: Ready-made features of CIFAR-10 (.npz) instead of its images and a backbone.
        mnist_features: Ready-made features of MNIST (.npz).
        resume: Continue in a folder, with the same results as without the interruption; also to add a
            figure. Finished work is not repeated.
        jobs: Number of processes.
        json: Print the claims as JSON instead of a table.
    """
    from fedsurf.cli.progress import opener
    from fedsurf.cli.tables import claims_table
    from fedsurf.paper.artefacts import ArtifactStore
    from fedsurf.paper.claims import count_text
    from fedsurf.paper.figures import figures_named
    from fedsurf.paper.report import write_report
    from fedsurf.paper.reproduce import reproduce as make

    check_folder(folder)
    if figure == "report":
        claims = write_report(folder)
    else:
        size = SIZES[preset].with_features(features, mnist_features)
        claims = make(
            figures_named(figure),
            ArtifactStore(folder, size, opener(err), _observers),
            resume=resume,
            jobs=jobs,
            on_message=note,
        )
    if json:
        print_json(to_dict(claims))
        return
    out.print(claims_table(claims))
    out.print(count_text([claim for found in claims.values() for claim in found]))
    say(f"report: {folder / 'report.html'}")


@contextmanager
def _observers() -> Iterator[Sequence[Observer]]:
    from fedsurf.cli.progress import TerminalProgress

    with TerminalProgress(err) as bar:
        yield [bar]
