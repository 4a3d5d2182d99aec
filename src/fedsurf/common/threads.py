"""The number of threads for numerical work: one where products are small.

Threads busy-wait for each other, so that on small products, next to other work on the machine, two
of them can take many times as long as one. With one thread, results do not depend on the number of
cores either.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

MAX_SMALL_PARAMETERS = 50_000_000
"""Parameters of an optimizer below which one thread is fastest."""


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
    the process.
    """
    import torch
    from joblib import effective_n_jobs

    before = torch.get_num_threads()
    torch.set_num_threads(effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
