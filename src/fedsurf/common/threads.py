"""The number of threads for numerical work: one where products are small.

Threads busy-wait for each other, so that on small products, next to other work on the machine, two
of them can take many times as long as one. With one thread, results do not depend on the number of
cores either.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

MAX_SMALL_PARAMETERS = 50_000_000
"""Parameters of an optimizer below which one thread is fastest."""

_lock = Lock()
_original_counts: list[int] = []
"""The number of threads before the outermost `threads` block, once for each open block."""


def limit_threads(parameters: int) -> None:
    """Use one thread from now on if an optimizer of this many parameters is small.

    The environment variable OMP_NUM_THREADS overrides it.
    """
    if "OMP_NUM_THREADS" in os.environ or parameters >= MAX_SMALL_PARAMETERS:
        return
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy and scikit-learn


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Let torch use this many threads for a while, counted as scikit-learn counts jobs.

    -1 is all cores; None is one, or the number that joblib is configured with. The number is global to
    the process: where blocks overlap in several threads, the newest decides, and the last to leave
    restores the original number.
    """
    import torch
    from joblib import effective_n_jobs

    count = effective_n_jobs(n_jobs)
    with _lock:
        _original_counts.append(
            _original_counts[0] if _original_counts else torch.get_num_threads()
        )
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _lock:
            original = _original_counts.pop()
            if not _original_counts:
                torch.set_num_threads(original)
