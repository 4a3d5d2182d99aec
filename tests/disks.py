"""A full disk, for tests of writing."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk(size=4096):
    """Let no file grow beyond `size` bytes, so that writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
