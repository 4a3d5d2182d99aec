"""Progress on a terminal: titles are shown as they are."""

import io

import pytest
from rich.console import Console

from fedsurf.cli.progress import TerminalProgress, opener


@pytest.mark.parametrize("title", ["{a}", "a[/b]", "[red]runs[/red]", "{task.total}"])
def test_titles_are_neither_formats_nor_markup(title):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with opener(console)(title, 2) as advance:
        advance()
    with TerminalProgress(console) as progress, progress.next_part(title, 2) as advance:
        advance()
    assert console.file.getvalue().count(title) >= 2
