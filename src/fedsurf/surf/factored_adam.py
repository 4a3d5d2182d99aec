"""Adam for matrices that all agents share, without forming their whole gradients.

The gradient of such a matrix over n agents is the product Gᵀ X of two thin factors. Adam works
element by element, so a few rows of the product are formed at a time and used while they are in the
cache. The result equals that of plain Adam.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from fedsurf.common.devices import CPU
from fedsurf.unrolled.perceptron import SharedMatrix

NUMBERS_AT_ONCE = 1024 * 1024
"""Elements of a gradient that are formed at a time: 4 MiB in single precision."""
ROW_MULTIPLE = 16
"""Rows are formed in multiples of this, a cache line of single precision."""


class FactoredAdam(torch.optim.Adam):
    """Torch's fused Adam, which takes the gradient of a `SharedMatrix` as factors."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, fused=True)
        # The parent's step then finds no gradient for the parameters updated here.
        self.register_step_pre_hook(self._step_by_factors)

    @contextmanager
    def taking_factors(self) -> Iterator[None]:
        """Make backward passes leave factors instead of gradients, for a `step` within the block."""
        shared = [value for value, _ in self._shared()]
        for value in shared:
            value.factors = []
        try:
            yield
        finally:
            for value in shared:
                value.factors = None

    def allocate(self) -> None:
        """Create the moments of every parameter before its first step, as Adam does in it."""
        for group in self.param_groups:
            for value in group["params"]:
                self._moments(value)

    def _shared(self) -> Iterator[tuple[SharedMatrix, dict[str, Any]]]:
        for group in self.param_groups:
            for value in group["params"]:
                if isinstance(value, SharedMatrix):
                    yield value, group

    def _moments(self, value: Tensor) -> dict[str, Tensor]:
        if not self.state[value]:
            self.state[value] = {
                "step": torch.zeros((), dtype=torch.float32, device=CPU),
                "exp_avg": torch.zeros_like(value),
                "exp_avg_sq": torch.zeros_like(value),
            }
        moments: dict[str, Tensor] = self.state[value]
        return moments

    @torch.no_grad()
    def _step_by_factors(self, *_: Any) -> None:
        for value, group in self._shared():
            if value.factors:
                self._step_by_rows(value, group)

    def _step_by_rows(self, value: SharedMatrix, group: dict[str, Any]) -> None:
        slopes, inputs = (torch.cat(side) for side in zip(*value.factors or (), strict=True))
        moments = self._moments(value)
        rows, columns = value.shape
        block = max(1, NUMBERS_AT_ONCE // (columns * ROW_MULTIPLE)) * ROW_MULTIPLE
        buffer = value.new_empty(min(block, rows), columns)
        beta1, beta2 = group["betas"]
        for start in range(0, rows, block):
            part = slice(start, min(start + block, rows))
            gradient = torch.mm(slopes[:, part].T, inputs, out=buffer[: part.stop - start])
            adam(
                [value[part]],
                [gradient],
                [moments["exp_avg"][part]],
                [moments["exp_avg_sq"][part]],
                [],
                [moments["step"].clone()],  # each call increments it, but this is one step
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
            )
        moments["step"] += 1
        value.factors = []
