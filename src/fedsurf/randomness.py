"""Explicit randomness: generators derived from a seed and a path of names.

Step 1234 of a run draws from `generator(seed, "train", 1234)`. So the same seed gives the same
bits, nothing touches a global generator, and an interrupted run resumes by knowing its step alone.
"""

import hashlib

import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Return a fresh generator, a pure function of the seed and the path.

    Parameters
    ----------
    seed : int
        The run's seed.
    *path : str or int
        What the randomness is for, e.g. `"task", 17`. Different paths are independent.
    """
    key = "/".join([str(int(seed)), *(f"{type(part).__name__}:{part}" for part in path)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    fresh = torch.Generator()
    fresh.manual_seed(int.from_bytes(digest, "little") >> 1)
    return fresh
