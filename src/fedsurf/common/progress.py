"""Progress reporting: long work opens a bar by a title and a total, and advances it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

OpenBar = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Opens a progress bar with a title and a total; the context manager's value advances it by one."""


@contextmanager
def silent(_title: str, _total: int) -> Iterator[Callable[[], None]]:
    """Show no progress."""
    yield lambda: None
