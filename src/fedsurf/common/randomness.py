"""Explicit randomness: generators derived from a seed and a path of names.

Step 1234 of a run draws from `generator(seed, "train", 1234)`. So the same seed gives the same
bits, nothing touches a global generator, and an interrupted run resumes by knowing its step alone.
"""

import hashlib
import operator

import numpy as np
import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Return a fresh generator, a pure function of the seed and the path.

    Parameters
    ----------
    seed : int
        The run's seed.
    *path : str or int
        The purpose of the randomness, e.g. `"task", 17`. Different paths are independent.

    Examples
    --------
    >>> from fedsurf import generator
    >>> torch.equal(*(torch.rand(3, generator=generator(0, "task", 17)) for _ in range(2)))
    True
    """
    fresh = torch.Generator()
    fresh.manual_seed(path_key(seed, *path) >> 1)
    return fresh


def path_key(seed: int, *path: str | int) -> int:
    """Return a number of 64 bits, a pure function of the seed and the path."""
    key = "/".join([str(_whole(seed, "seed")), *(_key(part) for part in path)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def _key(part: str | int) -> str:
    """Name a part such that different paths never have the same key."""
    if isinstance(part, str):
        return "str:" + part.replace("\\", "\\\\").replace("/", "\\/")
    return f"int:{_whole(part, 'path')}"


def _whole(value: int, argument: str) -> int:
    """Return a number of Python, NumPy or torch as Python's, or raise if it is not whole."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{argument}: got {value!r}, but it must be a whole number") from error


def numpy_generator(source: torch.Generator) -> np.random.Generator:
    """Return a NumPy generator seeded by the next number of a torch one.

    For the distributions that torch draws only from its global state, such as Dirichlet.
    """
    return np.random.default_rng(next_seed(source))


def copied(source: torch.Generator) -> torch.Generator:
    """Return a generator that draws what `source` will draw, and takes nothing from it."""
    copy = torch.Generator()
    copy.set_state(source.get_state())
    return copy


def next_seed(source: torch.Generator) -> int:
    """Return the next number of `source` as a seed for a library that takes none of torch's."""
    return int(torch.randint(2**31 - 1, (), generator=source, device="cpu"))
