"""`fedsurf reproduce`: make the paper's figures again, and say claim by claim what holds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import tyro
from rich import box
from rich.table import Table

from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import TerminalProgress, opener
from fedsurf.common.writing import check_folder
from fedsurf.paper.claims import Claim
from fedsurf.paper.folder import ReproductionFolder
from fedsurf.paper.making import plans_named
from fedsurf.paper.making import reproduce as make
from fedsurf.paper.report import write_report
from fedsurf.paper.sizes import SizeName, size_named
from fedsurf.paper.wording import count_text, number_text
from fedsurf.paper.workshop import Workshop
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
    its data and its claims into a folder of the figure's name, and a report of all figures that are there.
    Figures share optimizers and results. smoke takes seconds; desktop the better part of an hour on two
    cores; paper has the paper's dimensions, and says first how long it will take.

    Args:
        figure: Which one; all for all of them; report to write the report of a folder anew.
        preset: How large: smoke, desktop or paper.
        folder: Where everything goes; it must be new, unless resuming.
        features: Ready-made features of CIFAR-10 (.npz) in the place of its images and a backbone.
        mnist_features: The same of MNIST.
        resume: Go on with what is in the folder, to the same bits as without the interruption; also to
            add a figure. Finished stages are not repeated.
        jobs: How many processes work at the same time.
        json: Print the claims as JSON instead of a table.
    """
    check_folder(folder)
    if figure == "report":
        claims = write_report(ReproductionFolder(folder)).claims
    else:
        size = size_named(preset).with_features(features, mnist_features)
        workshop = Workshop(folder, size, opener(err), _watching)
        claims = make(
            plans_named(figure),
            size,
            folder,
            resume=resume,
            jobs=jobs,
            say=lambda line: err.print(line, highlight=False, markup=False, soft_wrap=True),
            workshop=workshop,
        )
    if json:
        print_json({name: [one.to_dict() for one in found] for name, found in claims.items()})
        return
    out.print(claims_table(claims))
    out.print(count_text([claim for found in claims.values() for claim in found]), highlight=False)
    out.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


@contextmanager
def _watching() -> Iterator[Sequence[Observer]]:
    with TerminalProgress(err) as bar:
        yield [bar]


def claims_table(claims: dict[str, list[Claim]]) -> Table:
    """Show the claims and what became of them."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="The paper's claims",
        caption=(
            "± standard error over meta-test tasks; holds: against tuned rivals; untuned: against the "
            "paper's settings. The report says what each number is."
        ),
    )
    table.add_column("claim", no_wrap=True)
    for heading in ("here", "against"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("holds", "untuned"):
        table.add_column(heading, no_wrap=True)
    answers = {True: "yes", False: "NO", None: ""}
    for found in claims.values():
        for claim in found:
            table.add_row(
                claim.id,
                number_text(claim.left, claim.unit),
                number_text(claim.right, claim.unit),
                answers[claim.holds],
                answers[claim.holds_untuned],
            )
    return table
