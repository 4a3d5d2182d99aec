"""Random streams of agents: pure functions of a seed, an agent's id and a path of names.

An agent draws the same numbers whichever agents live in its process, and however large these are. The
numbers are hashes of a counter, vectorised over agents: the finaliser of SplitMix64 (G. L. Steele,
D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). They are computed
on the CPU and then moved, so that every device sees the same ones.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsurf.common.randomness import path_key

SHARED = -2
"""The id of the stream that all agents share."""

_Words = NDArray[np.uint64]
_STEP, _FIRST, _SECOND = (
    np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class Streams:
    """Independent random streams, a row for each agent.

    Parameters
    ----------
    seed : int
        The run's seed.
    ids : Tensor or sequence of int
        The global ids of the agents whose rows live here, such as `network.ids`.
    *path : str or int
        The purpose of the randomness, e.g. `"task", 17`. Different paths are independent.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import Streams
    >>> both, last = Streams(0, [3, 4]).at("step", 1), Streams(0, [4]).at("step", 1)
    >>> torch.equal(both.uniform(5)[1:], last.uniform(5))
    True
    """

    def __init__(self, seed: int, ids: Tensor | Sequence[int], *path: str | int) -> None:
        self.ids = torch.as_tensor(ids, dtype=torch.int64, device="cpu")
        self._seed, self._path = seed, path

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    @overload
    def __getitem__(self, rows: slice) -> "Streams": ...
    @overload
    def __getitem__(self, rows: Tensor) -> "Streams": ...
    def __getitem__(self, rows: slice | Tensor) -> "Streams":
        """Return the streams of some rows."""
        return Streams(self._seed, self.ids[rows], *self._path)

    def at(self, *path: str | int) -> "Streams":
        """Return the agents' streams for a purpose or a step: the path continued."""
        return Streams(self._seed, self.ids, *self._path, *path)

    def shared(self) -> "Streams":
        """Return the stream that all agents share, a single row."""
        return Streams(self._seed, [SHARED], *self._path)

    def bits(self, size: int) -> Tensor:
        """Draw whole numbers from 0 to 2^63 − 1, int64 `[rows, size]`."""
        with np.errstate(over="ignore"):
            starts = _hashed(self.ids.numpy().view(np.uint64) * _STEP + self._key)
            counters = np.arange(1, size + 1, dtype=np.uint64) * _STEP
            words = _hashed(starts[:, None] + counters)
        return torch.from_numpy((words >> np.uint64(1)).view(np.int64))

    def uniform(self, size: int) -> Tensor:
        """Draw numbers above 0 and below 1, float64 `[rows, size]`."""
        return ((self.bits(size) >> 11).double() + 0.5) * 2.0**-52

    def normal(self, size: int) -> Tensor:
        """Draw standard normal numbers, float64 `[rows, size]`."""
        normal: Tensor = torch.special.ndtri(self.uniform(size))
        return normal

    def choose(self, size: int, among: int | Tensor) -> Tensor:
        """Draw `size` different places of every row, int64 `[rows, size]`, in random order.

        `among` is the number of places, or a mask of those to choose from, bool `[rows, places]` on the
        CPU; a row with fewer of them gets other places last.
        """
        places = among if isinstance(among, int) else among.shape[1]
        keys = self.bits(places)
        if isinstance(among, Tensor):
            keys = keys.masked_fill(~among, torch.iinfo(torch.int64).max)
        return keys.topk(size, 1, largest=False).indices

    @property
    def _key(self) -> np.uint64:
        return np.uint64(path_key(self._seed, *self._path))


def _hashed(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    hashed: _Words = words ^ (words >> np.uint64(31))
    return hashed
