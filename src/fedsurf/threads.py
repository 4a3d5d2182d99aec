"""How many threads do the numerical work: one where products are small.

Several would wait for each other longer than they work, and they wait awake: beside other work on a
machine, two of them can take many times as long as one. With one, bits do not depend on the number of
cores either. The variable OMP_NUM_THREADS overrides all that.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

SMALL = 50_000_000
"""Parameters of an optimizer below which one thread is fastest."""


def limit_threads(parameters: int) -> None:
    """Use one thread from now on, if an optimizer of so many parameters is small."""
    if not _set_by_user() and parameters < SMALL:
        torch.set_num_threads(1)
        threadpool_limits(1)  # those of NumPy and scikit-learn, too


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while, counted as scikit-learn counts jobs: -1 is all cores.

    None is one, or what joblib was told.
    """
    if n_jobs is None and _set_by_user():
        yield
        return
    from joblib import effective_n_jobs  # which commands that only limit threads need not wait for

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(effective_n_jobs(n_jobs))
        yield
    finally:
        torch.set_num_threads(before)


def _set_by_user() -> bool:
    return "OMP_NUM_THREADS" in os.environ
