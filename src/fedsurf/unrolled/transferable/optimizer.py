"""The parameters of a transferable optimizer, whatever the data, the network and the number of rounds.

What they do is in `transferable_algorithm`.
"""

from dataclasses import dataclass, field

import torch
from torch import nn

from fedsurf.common.checks import check_count
from fedsurf.models import Model, SoftmaxHead
from fedsurf.unrolled.transferable.confidence import Confidence
from fedsurf.unrolled.transferable.controller import Controller
from fedsurf.unrolled.transferable.depth import CONSTRAINTS
from fedsurf.unrolled.transferable.transferable_algorithm import Scaling, TransferableAlgorithm


@dataclass(frozen=True)
class TransferableConfig:
    """The shape of a transferable optimizer."""

    width: int = 24
    """Hidden units of the perceptron that sets the knobs of a round."""
    class_width: int = 12
    """Hidden units of the perceptron that sees the classes."""
    confidence_width: int = field(default=0, metadata={"added_later": True})
    """Hidden units of the perceptron that says how sure heads should be; 0 for none."""

    def check(self) -> None:
        """Raise for shapes that cannot be."""
        check_count(self.width, "width")
        check_count(self.class_width, "class_width")
        check_count(self.confidence_width, "confidence_width", 0)


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
        return CONSTRAINTS

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
