"""What long work tells of its progress to whoever watches, a terminal or nobody."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

OpenBar = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Opens a progress bar with a title and a total; a context manager whose value advances it by one."""


@contextmanager
def silent(_title: str, _total: int) -> Iterator[Callable[[], None]]:
    """Show no progress."""
    yield lambda: None
