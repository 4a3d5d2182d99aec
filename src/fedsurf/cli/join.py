"""`fedsurf join`: train a classifier with the other sites of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli.console import err, new_table, note, out, print_json, say
from fedsurf.common.text import percent
from fedsurf.common.writing import lock_folder


def join(
    federation: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FEDERATION")],
    site: Annotated[str, tyro.conf.arg(name="as")],
    data: Path,
    folder: Path,
    test_share: float = 0.2,
    json: bool = False,
) -> None:
    """Train a classifier with the other sites of a federation, on the rows of this one.

    Every site starts the same command with its own name and its own table. The sites wait for their
    neighbours, compare the names of features and classes, and train; no row leaves a site. Writes what
    `fedsurf fit` writes, and messages.json: which messages were late or refused, and bytes by neighbour.

    Args:
        federation: The federation's file (see `fedsurf federation new`), the same at all sites.
        site: Name of this site.
        data: The site's table, a .csv or .parquet file.
        folder: Folder of the results: new, or of an earlier fit.
        test_share: Share of each class of this site's rows that is held out for testing.
        json: Print the numbers as JSON instead of a table.
    """
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.deploy.joining import join_table
    from fedsurf.estimator.fit import check_model_folder

    limit_threads(0)
    check_model_folder(folder)
    with lock_folder(folder):
        result = join_table(federation, site, data, test_share=test_share, progress=opener(err))
        result.write(folder)
    numbers = result.fit.numbers
    if json:
        print_json({"folder": str(folder), **result.to_dict()})
        return
    table = new_table(
        f"{site}: accuracy on its own held-out rows",
        ("classifier", "accuracy %"),
        text=("classifier",),
    )
    rows = {
        "of the whole federation": numbers["test_accuracy"],
        "the site's own head": numbers["agents_test_accuracy"],
        "trained alone, on the site's rows": numbers["alone"],
    }
    for name, accuracy in rows.items():
        table.add_row(name, "-" if accuracy is None else percent(accuracy))
    out.print(table)
    for name in dict.fromkeys(name for _, name, _ in result.missing):
        found = [(number, why) for number, other, why in result.missing if other == name]
        (first, why), last = found[0], found[-1][0]
        note(f"{name}: {len(found)} messages missing, rounds {first} to {last} (first: {why})")
    for name, reasons in result.refused.items():
        note(f"messages under the name {name} were refused: {reasons}")
    say(f"{numbers['rounds']} rounds; the classifier is in {folder}")
