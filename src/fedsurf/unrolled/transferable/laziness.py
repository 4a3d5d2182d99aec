"""Mixing lazily, where agents would swing between the two sides of a graph.

Where most links lead from one side of a graph to the other, as in a bipartite one, what agents hold swings: the
smallest eigenvalue of S is close to −1, and learned memory, which saw no such graph in meta-training, makes
every swing larger than the one before. There agents keep a share s of what they sent, (1 − s) S + s I, so that
no eigenvalue is below `CALM`. That takes no message, but one number of the graph that all know.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsurf.network import Network

SWINGING = -0.56
"""Where no eigenvalue of S is below this nobody is lazy; so it was in all of meta-training."""
CALM = -0.45
"""What the smallest one becomes elsewhere, about as on a random 3-regular graph."""


def lazily(network: Network, sent: Sequence[Tensor], mixed: Sequence[Tensor]) -> list[Tensor]:
    """Return what agents make of `mixed`, which is S · `sent`, part by part: on most graphs that itself."""
    share = laziness(network)
    if not share:
        return list(mixed)
    return [torch.lerp(new, own, share) for own, new in zip(sent, mixed, strict=True)]


def laziness(network: Network) -> float:
    """Return s, the share that agents keep of what they sent; 0 on most graphs."""
    lowest = network.lowest_eigenvalue
    return 0.0 if lowest >= SWINGING else (CALM - lowest) / (1 - lowest)
