"""Messages that do not arrive, and what becomes of the weights that they would have had."""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from fedsurf.network.config import LostWeights


def check_lost_weights(weights: LostWeights) -> None:
    """Raise unless it is a rule for the weights of lost messages."""
    if weights not in get_args(LostWeights):
        options = " or ".join(map(repr, get_args(LostWeights)))
        raise ValueError(f"weights: got {weights!r}, but it must be {options}")


@dataclass(frozen=True)
class Losses:
    """The messages of one round that do not arrive: masks over the links, bool `[links]`.

    None stands for none of them.

    Attributes
    ----------
    renormalised : Tensor or None
        Lost; the receiver's remaining weights, its own among them, are scaled to the old sum.
    kept : Tensor or None
        Lost; the receiver puts its own value in their place.
    unsent : Tensor or None
        Those of the lost that were not even sent, and so do not count as floats.
    absent : Tensor or None
        The nodes that are away and keep their values, bool `[nodes]`. None of their links is used.
    """

    renormalised: Tensor | None = None
    kept: Tensor | None = None
    unsent: Tensor | None = None
    absent: Tensor | None = None

    @property
    def lost(self) -> Tensor | None:
        """All that do not arrive."""
        return _either(self.renormalised, self.kept)

    def of_links(self, links: Tensor, weights: LostWeights) -> "Losses":
        """Lose these links, too. One that is lost under both rules is kept by the receiver."""
        if weights == "kept-by-receiver":
            return replace(self, kept=_either(self.kept, links))
        return replace(self, renormalised=_either(self.renormalised, links))

    def of_nodes(self, absent: Tensor, links: Tensor, weights: LostWeights) -> "Losses":
        """Lose all links from and to these nodes, too, before anything was sent over them."""
        unsent = absent[links[0]] | absent[links[1]]
        return replace(
            self.of_links(unsent, weights),
            unsent=_either(self.unsent, unsent),
            absent=_either(self.absent, absent),
        )

    def among(self, links: Tensor) -> "Losses":
        """Return what is lost of some links, bool `[links]`: masks over these alone."""
        if self is NO_LOSSES:
            return self
        masks = {"renormalised": self.renormalised, "kept": self.kept, "unsent": self.unsent}
        found = {name: None if mask is None else mask[links] for name, mask in masks.items()}
        return Losses(**found, absent=self.absent)

    def weigh(self, own: Tensor, links: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of this round.

        Parameters
        ----------
        own : Tensor
            What every node gives to its own value, `[nodes]`.
        links : Tensor
            What the receiver gives to each link's message, `[links]`.
        receivers : Tensor
            Where each link leads, int64 `[links]`.
        """
        if self.kept is not None:
            own = own.index_add(0, receivers, links * self.kept)
            links = links.masked_fill(self.kept, 0)
        if self.renormalised is not None:
            before = own.index_add(0, receivers, links)
            links = links.masked_fill(self.renormalised, 0)
            scale = before / own.index_add(0, receivers, links)
            own, links = scale * own, scale[receivers] * links
        if self.absent is not None:
            own = own.masked_fill(self.absent, 1)
        return own, links


def _either(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return left if right is None else right
    return torch.logical_or(left, right)


NO_LOSSES = Losses()
"""Everything arrives."""
