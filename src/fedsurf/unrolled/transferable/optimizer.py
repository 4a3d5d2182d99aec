"""The parameters of a transferable optimizer, whatever the data, the network and the number of rounds.

What they do is in `transferable_algorithm`.
"""

import torch
from torch import nn

from fedsurf.models import Model, SoftmaxHead
from fedsurf.unrolled.config import CONSTRAINT_COUNT, Scaling, TransferableConfig
from fedsurf.unrolled.transferable.confidence import Confidence
from fedsurf.unrolled.transferable.controller import Controller
from fedsurf.unrolled.transferable.transferable_algorithm import TransferableAlgorithm


class Transferable(nn.Module):
    """The learned parameters: a controller for graphs, one for servers, perhaps a confidence.

    Parameters
    ----------
    config : TransferableConfig
        Its shape.
    generator : torch.Generator
        Draws the initial parameters.
    """

    def __init__(self, config: TransferableConfig, generator: torch.Generator) -> None:
        super().__init__()
        config.check()
        self.config = config
        self.graph = Controller(config.width, config.class_width, generator)
        self.server = Controller(config.width, config.class_width, generator)
        self.confidence: Confidence | None = None
        if config.confidence_width:
            self.confidence = Confidence(config.confidence_width, generator)

    @property
    def constraints(self) -> int:
        """The number of descending constraints: tenths of the depth, whatever the depth."""
        return CONSTRAINT_COUNT

    def on(
        self,
        model: Model,
        rounds: int | None = None,
        scaling: Scaling = "whole",
        batch_size: int | None = None,
        *,
        ease_rare: bool = False,
        weigh_agents: bool = False,
    ) -> TransferableAlgorithm:
        """Return the algorithm that trains `model` in so many rounds, 20 by default.

        `scaling`, `batch_size`, `ease_rare` and `weigh_agents` are as in `TransferableAlgorithm`.
        """
        if not isinstance(model, SoftmaxHead):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this optimizer trains a SoftmaxHead"
            )
        rounds = 20 if rounds is None else rounds
        return TransferableAlgorithm(
            self, model, rounds, scaling, batch_size, ease_rare, weigh_agents
        )
