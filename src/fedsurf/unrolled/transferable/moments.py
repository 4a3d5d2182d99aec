"""What agents tell of their examples' first and second moments, and what they make of what they hear.

A message is the sum of an agent's examples and its sketch of their second moment (`curvature`). Averaged
over the network, and divided by the number of examples that was averaged alongside (`signals`), it is the
centre from which agents look at their examples, and the curvature of their Newton-like steps. It also says
which features vary at all: those that do not are no reason to regularise less. Nothing learned is in it.
"""

import torch
from torch import Tensor

from fedsurf.unrolled.transferable.curvature import Curvature, pack, unpack
from fedsurf.unrolled.transferable.local_view import LocalView
from fedsurf.unrolled.transferable.summaries import SUMS, data_sums, heard_scale

ROUNDING = 32
"""A feature is constant if its examples are no farther from its mean than so many roundings of that."""


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
def varying(moments: Tensor, sums: Tensor, known: Tensor, unit: Tensor | None) -> Tensor:
    """Return how many features vary, as far as was heard, `[agents]`: all of them where none seems to.

    Of a constant feature the sketch is zero, but for rounding. `unit` is that of each feature, raw,
    `[agents, features]`; None where it is 1.
    """
    features = len(known)
    sketch = unpack(moments[:, features:], *known.shape)
    rounding = ROUNDING * torch.finfo(sketch.dtype).eps * centre(moments, sums, features).abs()
    rounding = rounding if unit is None else rounding / unit
    # As large as the products of so small a number with all examples can be.
    largest = rounding * (_examples(sums) * sums[:, 1 - SUMS].clamp(min=0)).sqrt()[:, None]
    found = (sketch.abs().amax(1) > largest).sum(1)
    return torch.where(found > 0, found, features).to(sketch.dtype)


@torch.no_grad()
def curvature(moments: Tensor, sums: Tensor, known: Tensor, varying: Tensor) -> Curvature:
    """Return the second moment that was heard of, of so many features that vary."""
    sketch = unpack(moments[:, len(known) :], *known.shape)
    sketch = sketch / _examples(sums)[:, None, None]
    return Curvature.of(sketch, known, heard_scale(sums), varying)


def _examples(sums: Tensor) -> Tensor:
    """The number of examples that was heard of, `[agents]`."""
    return sums[:, -SUMS].clamp(min=1e-6)
