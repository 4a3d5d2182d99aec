"""List the data sources, or get one."""

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli.console import new_table, out, print_json, say

data = tyro.extras.SubcommandApp()


@data.command(name="list")
def _data_list(json: bool = False) -> None:
    """List the data sources, and show which are ready.

    Args:
        json: Print JSON instead of a table; it has the folders, too.
    """
    from fedsurf.tasks.sources import SOURCES

    if json:
        fields = ("name", "about", "examples", "licence", "status")
        print_json(
            [
                {name: getattr(source, name) for name in fields}
                | {"folder": str(source.find(source.folder)) if source.status == "ready" else None}
                for source in SOURCES.values()
            ]
        )
        return
    about = "description and licence"
    columns = ("name", about, "examples", "status")
    caption = "Get missing data with: fedsurf data get NAME"
    table = new_table(
        "Data sources", columns, text=columns, wrap=(about, "status"), caption=caption
    )
    for source in SOURCES.values():
        described = f"{source.about}; {source.licence}"
        table.add_row(source.name, described, source.examples, source.status)
    out.print(table)


@data.command(name="get")
def _data_get(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    folder: Path | None = None,
    json: bool = False,
) -> None:
    """Download a data source and verify its checksums.

    Args:
        name: Its name in `fedsurf data list`.
        folder: The destination; by default the user's cache, or $FEDSURF_HOME.
        json: Print the folder as JSON.
    """
    from fedsurf.tasks import sources

    place = sources.get(name, folder)
    if json:
        print_json({"name": name, "folder": str(place)})
    else:
        say(f"{name} is in {place}")
