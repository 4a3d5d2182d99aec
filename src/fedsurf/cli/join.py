"""`fedsurf join` and `fedsurf serve`: train a classifier with the other sites of a federation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.cli.console import new_table, note, out, print_json, say
from fedsurf.common.text import percent
from fedsurf.common.writing import lock_folder

if TYPE_CHECKING:
    from rich.table import Table

    from fedsurf.deploy.sites import JoinResult

File = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FEDERATION")]


def join(
    federation: File,
    sites: Annotated[tuple[str, ...], tyro.conf.arg(name="as")],
    data: tuple[Path, ...],
    folder: Path,
    test_share: float = 0.2,
    resume: bool = False,
    insecure: bool = False,
    listen: str | None = None,
    json: bool = False,
) -> None:
    """Train a classifier with the other sites of a federation, on the rows of this one.

    Every site starts the same command with its own name and its own table. The sites wait for their
    neighbours, compare the names of features and classes, and train; no row leaves a site. Writes what
    `fedsurf fit` writes; own-SITE.safetensors, the site's own head; sites.json, how good they are on the
    site's held-out rows; and messages.json: which messages were late, missing or refused, and bytes by
    neighbour.

    Args:
        federation: The federation's file (see `fedsurf federation new`), the same at all sites.
        sites: Name of this site; of several, if they have one address.
        data: The site's table, a .csv or .parquet file; a table for each site.
        folder: Folder of the results: new, or of an earlier fit. It holds the run after each round.
        test_share: Share of each class of a site's rows that is held out for testing.
        resume: Go on with the run in the folder, if it holds one, in the round of the others.
        insecure: Go without certificates, also beyond this machine: anybody can read and forge messages.
        listen: The host:port on which to listen, if not this site's address (a router, a container).
        json: Print the numbers as JSON instead of a table.
    """
    from fedsurf.cli.watching import watching
    from fedsurf.common.threads import limit_threads
    from fedsurf.deploy.sites import join_tables

    limit_threads(0)
    with _run_folder(folder, resume=resume) as state_file:
        result = join_tables(
            federation,
            sites,
            data,
            test_share=test_share,
            state_file=state_file,
            insecure=insecure,
            listen=listen,
            watch=watching(" and ".join(sites)),
        )
        result.write(folder)
    _report(result, folder, json=json)


def serve(
    federation: File,
    folder: Path,
    resume: bool = False,
    insecure: bool = False,
    listen: str | None = None,
    json: bool = False,
) -> None:
    """Be the server of a federation, which holds no rows, while its sites join.

    Writes the classifier, as `fedsurf fit` does, and messages.json: which messages were late, missing or
    refused, and bytes by site.

    Args:
        federation: The federation's file (see `fedsurf federation new`), the same at all sites.
        folder: Folder of the results: new, or of an earlier fit. It holds the run after each round.
        resume: Go on with the run in the folder, if it holds one.
        insecure: Go without certificates, also beyond this machine: anybody can read and forge messages.
        listen: The host:port on which to listen, if not this site's address (a router, a container).
        json: Print the numbers as JSON.
    """
    from fedsurf.cli.watching import watching
    from fedsurf.common.threads import limit_threads
    from fedsurf.deploy.sites import serve_federation

    limit_threads(0)
    with _run_folder(folder, resume=resume) as state_file:
        result = serve_federation(
            federation,
            state_file=state_file,
            insecure=insecure,
            listen=listen,
            watch=watching("server"),
        )
        result.write(folder)
    _report(result, folder, json=json)


@contextmanager
def _run_folder(folder: Path, *, resume: bool) -> Iterator[Path]:
    """Lock the folder of a run, and give the file that holds it after each round."""
    from fedsurf.deploy.sites import STATE_FILE
    from fedsurf.estimator.fit import check_model_folder

    state_file = folder / STATE_FILE
    if state_file.exists() and not resume:
        raise ValueError(
            f"folder: got {str(folder)!r}, which holds a run that was stopped: --resume goes on with it, or "
            "choose another folder"
        )
    check_model_folder(folder, STATE_FILE)
    with lock_folder(folder):
        yield state_file


def _report(result: JoinResult, folder: Path, *, json: bool) -> None:
    if json:
        print_json({"folder": str(folder), **result.to_dict()})
        return
    if result.sites:
        out.print(_table(result))
    missing = result.messages["missing"]
    for name in dict.fromkeys(lost["from"] for lost in missing):
        found = [lost for lost in missing if lost["from"] == name]
        reasons = ", ".join(dict.fromkeys(lost["why"] for lost in found))
        rounds = f"{found[0]['round']} to {found[-1]['round']}"
        note(f"{name}: {len(found)} messages missing in rounds {rounds} ({reasons})")
    for skipped in result.messages["skipped"]:
        note(f"rounds {skipped['from']} to {skipped['to']} were skipped: the others were ahead")
    for name, reasons in result.messages["refused"].items():
        note(f"messages under the name {name} were refused: {reasons}")
    say(f"{result.fit.numbers['rounds']} rounds; the classifier is in {folder}")


def _table(result: JoinResult) -> Table:
    columns = ("site", "rows", "held out", "alone %", "own head %", "federation %")
    table = new_table("accuracy on the site's own held-out rows", columns, text=("site",))
    for site in result.sites:
        accuracies = (percent(value) for value in (site.alone, site.own_head, site.together))
        table.add_row(site.name, str(site.rows), str(site.test_rows), *accuracies)
    return table
