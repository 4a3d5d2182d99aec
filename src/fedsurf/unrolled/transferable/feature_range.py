"""Features whose squares their type of number cannot hold: too large, or too small, to learn from."""

import torch
from torch import Tensor

from fedsurf.tasks.examples import Examples


class FeatureRangeError(ValueError):
    """Features are out of range.

    Parameters
    ----------
    wrong : str
        What is wrong, and what to do.
    argument : str
        What the features came in: it is another one where an estimator asks than where a layer does.
    """

    def __init__(self, wrong: str, argument: str = "task") -> None:
        super().__init__(wrong, argument)
        self.wrong, self.argument = wrong, argument

    def __str__(self) -> str:
        return f"{self.argument}: {self.wrong}"


def check_range(examples: Examples, moments: Tensor, lengths: Tensor) -> None:
    """Raise unless features can be learned from.

    Parameters
    ----------
    examples : Examples
        All agents' examples.
    moments : Tensor
        Sums of their squares and products, as agents tell them. Where some are no numbers, standardising
        is no way out: it squares the features, too, and failed at every size that was tried.
    lengths : Tensor
        The squared lengths of each agent's examples, `[agents]`.
    """
    kind = str(examples.dtype).removeprefix("torch.")
    # A finite sum has finite terms only, and is found in a fraction of the time.
    if not moments.sum().isfinite() and not moments.isfinite().all():
        largest = float(examples.pooled().x.abs().max())
        raise FeatureRangeError(
            f"got features as large as {largest:.2g}, whose squares are no numbers in "
            f"{kind}: give them in another unit"
        )
    smallest = torch.finfo(examples.dtype).tiny
    if float(lengths.max()) < smallest:  # nobody has examples with a length
        x = examples.pooled().x[0]
        widest = float((x.amax(0) - x.amin(0)).max())
        if widest > 0 and widest**2 < smallest:
            raise FeatureRangeError(
                f"got features that differ by no more than {widest:.2g}, whose squares vanish in "
                f"{kind}: give them in another unit"
            )
