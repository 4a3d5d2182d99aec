"""What people see of a network while it is open: a live table on a terminal, a line for each event in a log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.live import Live

from fedsurf.cli.console import err, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from fedsurf.network.engines.rounds import Neighbour
    from fedsurf.network.engines.zenoh import ZenohNetwork

PAUSE = 0.25
"""Seconds between two looks at a network."""
LOG = logging.getLogger("fedsurf")


def watching(name: str) -> Callable[[ZenohNetwork, int], AbstractContextManager[None]]:
    """Return what shows a network under the name of its site."""

    def watch(network: ZenohNetwork, rounds: int) -> AbstractContextManager[None]:
        return _watched(network, name, rounds)

    return watch


@contextmanager
def _watched(network: ZenohNetwork, name: str, rounds: int) -> Iterator[None]:
    if network.insecure:
        LOG.warning("insecure: anybody on the network can read and forge messages")
    over, seen = threading.Event(), dict.fromkeys((n.name for n in network.neighbours), "")
    LOG.info("%s: waiting for %s", name, ", ".join(seen))
    live = Live(console=err, auto_refresh=False, transient=True) if err.is_terminal else None

    def look() -> None:
        if network.rounds < rounds:  # afterwards neighbours leave
            _log_changes(network, seen)
        if live is not None:
            live.update(table_of(network, name, rounds), refresh=True)

    def keep_looking() -> None:
        while not over.wait(PAUSE):
            look()

    thread = threading.Thread(target=keep_looking, daemon=True)
    if live is not None:
        live.start()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if live is not None:
            live.stop()
    LOG.info("%s: %d of %d rounds are over", name, network.rounds, rounds)


def _log_changes(network: ZenohNetwork, seen: dict[str, str]) -> None:
    """Log which neighbours have come, gone or come back since the last look."""
    for neighbour in network.neighbours:
        state = state_of(neighbour)
        if state != seen[neighbour.name] and (seen[neighbour.name] or state != "waited for"):
            level = logging.INFO if state == "here" else logging.WARNING
            LOG.log(level, "%s: %s, round %d", neighbour.name, state, network.rounds)
            seen[neighbour.name] = state


def state_of(neighbour: Neighbour) -> str:
    """Return what to call the state of a neighbour."""
    if neighbour.differs:
        return "has another federation file"
    if neighbour.alive:
        return "here"
    return "gone" if neighbour.received else "waited for"


def table_of(network: ZenohNetwork, name: str, rounds: int) -> Table:
    """Return a table of the neighbours: who is there, in which round, how late, and bytes."""
    columns = ("neighbour", "is", "round", "last wait s", "bytes sent", "bytes received")
    title = f"{name}: round {network.rounds} of {rounds}"
    table = new_table(title, columns, text=("neighbour", "is"))
    for one in network.neighbours:
        numbers = str(one.round), f"{one.wait:.2f}", f"{one.sent:,}", f"{one.received:,}"
        table.add_row(one.name, state_of(one), *numbers)
    return table
