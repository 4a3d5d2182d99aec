"""What agents tell of their examples' first and second moments, and what they make of what they hear.

A message is the sum of an agent's examples and its sketch of their second moment (`curvature`). Averaged
over the network, and divided by the number of examples that was averaged alongside (`signals`), it is the
centre from which agents look at their examples, and the curvature of their Newton-like steps. Nothing
learned is in it.
"""

import torch
from torch import Tensor

from fedsurf.unrolled.curvature import Curvature, pack, unpack
from fedsurf.unrolled.local_view import LocalView
from fedsurf.unrolled.signals import SUMS, data_sums, heard_scale


@torch.no_grad()
def contribution(
    view: LocalView, known: Tensor, sketch: Tensor, *, centred: bool
) -> tuple[Tensor, Tensor]:
    """Return what agents tell of their data: sums, `[agents, classes + SUMS]`, and moments.

    Parameters
    ----------
    view : LocalView
        The data.
    known : Tensor
        Ω, the sketch's directions, `[features, k]`.
    sketch : Tensor
        The sketch from `view.base`, `[agents, k, features]`.
    centred : bool
        Whether the agents' centres are their own means.
    """
    moments = torch.cat([view.own_sum, pack(view.sketch(known, sketch))], 1)
    return data_sums(view, centred=centred), moments


def in_new_units(
    sums: Tensor, moments: Tensor, averages: tuple[Tensor, Tensor], features: int
) -> tuple[Tensor, Tensor]:
    """Return a server's averages after a round, before which the agents' units changed.

    What depends on units is what was told in this round, `sums` and `moments`; the rest is of all rounds.
    """
    counts, raw = averages[0][: 1 - SUMS], averages[1][:features]
    for_each = averages[0][-SUMS] / sums[-SUMS].clamp(min=1e-6)
    return torch.cat([counts, sums[1 - SUMS :]]), torch.cat([raw, for_each * moments[features:]])


def centre(moments: Tensor, sums: Tensor, features: int) -> Tensor:
    """Return the mean of the examples that were heard of, raw, `[agents, features]`."""
    return moments[:, :features] / _examples(sums)[:, None]


@torch.no_grad()
def curvature(moments: Tensor, sums: Tensor, known: Tensor) -> Curvature:
    """Return the second moment that was heard of."""
    sketch = unpack(moments[:, len(known) :], *known.shape)
    return Curvature.of(sketch / _examples(sums)[:, None, None], known, heard_scale(sums))


def _examples(sums: Tensor) -> Tensor:
    """The number of examples that was heard of, `[agents]`."""
    return sums[:, -SUMS].clamp(min=1e-6)
