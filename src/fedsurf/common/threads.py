"""How many threads do the numerical work: one where products are small.

Several would wait for each other longer than they work, and they wait awake: beside other work on a
machine, two of them can take many times as long as one. With one, bits do not depend on the number of
cores either.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from threadpoolctl import threadpool_limits

SMALL = 50_000_000
"""Parameters of an optimizer below which one thread is fastest."""

_lock = Lock()
_before: list[int] = []
"""The number of threads before the first of those that are in `threads` now, once for each of them."""


def limit_threads(parameters: int) -> None:
    """Use one thread from now on, if an optimizer of so many parameters is small.

    The variable OMP_NUM_THREADS overrides it.
    """
    if "OMP_NUM_THREADS" not in os.environ and parameters < SMALL:
        torch.set_num_threads(1)
        threadpool_limits(1)  # those of NumPy and scikit-learn, too


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while, counted as scikit-learn counts jobs: -1 is all cores.

    None is one, or what joblib was told. The number is that of the process: where several do this at once,
    the newest decides, and the last to leave restores what was before the first.
    """
    from joblib import effective_n_jobs  # which commands that only limit threads need not wait for

    count = effective_n_jobs(n_jobs)
    with _lock:
        _before.append(_before[0] if _before else torch.get_num_threads())
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                torch.set_num_threads(before)
