"""A start for networks with hidden layers: the same random weights at all agents.

Averages of networks that were drawn apart are close to zero, where all hidden units are alike. Agents
who know a common seed draw the same weights without a message.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start
from fedsurf.models import Model, ModuleModel
from fedsurf.network import Network


@dataclass(frozen=True)
class CommonStart(Start):
    """Matrices have entries N(mean, deviation² / fan-in), the same at all agents.

    Vectors are zero (biases), or one where their name ends in `weight` (scales of a normalisation).
    """

    def draw(
        self,
        network: Network,
        model: Model,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Draw W_0, `[nodes, parameters]`."""
        if not isinstance(model, ModuleModel):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this start is for a ModuleModel"
            )
        pieces = []
        for (name, shape), inputs in zip(model.shapes.items(), fan_ins(model.shapes), strict=True):
            if len(shape) > 1:
                drawn = torch.randn(shape.numel(), generator=generator, dtype=dtype)
                pieces.append(self.mean + self.deviation / math.sqrt(inputs) * drawn)
            else:
                value = 1.0 if name.endswith("weight") else 0.0
                pieces.append(torch.full((shape.numel(),), value, dtype=dtype))
        return torch.cat(pieces).repeat(network.nodes, 1)


def fan_ins(shapes: Mapping[str, torch.Size]) -> list[int]:
    """Return how many numbers each output of a tensor is made of; vectors share it with their matrix."""
    found, inputs = [], 1
    for shape in shapes.values():
        if len(shape) > 1:
            inputs = max(1, shape.numel() // shape[0])
        found.append(inputs)
    return found
