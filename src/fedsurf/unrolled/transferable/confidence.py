"""The confidence of heads: a learned factor of their logits.

Accuracy does not depend on the size of the logits, and meta-training hardly does, as regularisation that
helps accuracy makes heads under-confident. So the size is set where heads are used: all weights of an agent
are multiplied by one factor, which changes its probabilities but none of its predictions.

In every round agents send two numbers: how the loss of the received head on their own examples would change
with the factor. With many more examples than weights these nearly determine it. With fewer they overestimate
it, since the examples were fitted before, and a perceptron, shared by all agents, corrects it.

C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger, "On calibration of modern neural networks", ICML 2017, find
such a factor on examples that were held out.
"""

import math

import torch
from torch import Tensor, nn

from fedsurf.unrolled.transferable.controller import SCHEDULE_SIZE, drawn_linear, two_layers
from fedsurf.unrolled.transferable.summaries import (
    DESCRIPTION_SIZE,
    FederationEstimate,
    loss_of_guessing,
)

CONFIDENCE_SUMS = 2
"""Numbers that agents send about the confidence of heads."""
MEASURED_INPUTS = CONFIDENCE_SUMS + 1
"""The first inputs of the perceptron: from these numbers and from the number of weights."""
INPUTS_SIZE = MEASURED_INPUTS + SCHEDULE_SIZE + DESCRIPTION_SIZE + 4
"""All inputs of the perceptron (`confidence_inputs`)."""
MAX_LOG_FACTOR = 2.0
"""The largest logarithm of the factor; its negative is the smallest."""
HALF_CORRECTION = 0.05
"""The number of weights for each example at which half of the perceptron's correction counts."""


class Confidence(nn.Module):
    """A perceptron of `width` hidden units. Untrained, it leaves the decision to the agents' numbers."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = drawn_linear(INPUTS_SIZE, width, 0.5, generator)
        self.second = drawn_linear(width, 1, 0.0, generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map `inputs[agents, INPUTS_SIZE]` to the logarithms of the factors, `[agents, 1]`."""
        measured, weights = inputs[:, :1], inputs[:, 1:2]
        doubt = torch.sigmoid(weights - math.log(HALF_CORRECTION))
        corrected = measured + doubt * two_layers(self.first, self.second, inputs)
        return MAX_LOG_FACTOR * torch.tanh(corrected / MAX_LOG_FACTOR)


def own_confidence_sums(logits: Tensor, probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return how each agent's loss would change with the logarithm of a factor, `[agents, CONFIDENCE_SUMS]`.

    The first derivative of the sum over its examples, and the sum of the variances of their logits, which
    is the rest of the second derivative. Arguments are `[agents, classes, examples]`; probabilities and
    labels are zero for padding.
    """
    slope = ((probabilities - labels) * logits).sum((1, 2))
    mean = (probabilities * logits).sum(1)
    spread = (probabilities * logits.square()).sum((1, 2)) - mean.square().sum(1)
    return torch.stack([slope, spread], 1)


def confidence_inputs(
    when: Tensor, estimate: FederationEstimate, sums: Tensor, agents: Tensor, *, server: bool
) -> Tensor:
    """Return the inputs of the perceptron, `[agents, INPUTS_SIZE]`.

    The change of the logarithm of the factor that `sums` ask for; the number of weights for each example;
    the confidence of heads; the schedule; the description of the problem; how uneven classes are; the
    share of the agents; whether there is a server.

    `when` is the schedule of the last round, `sums` the average of `own_confidence_sums`, and
    `agents[agents, 1]` the share of the agents whose messages each, or the server, receives in a round.
    """
    share, classes = estimate.classes, estimate.classes.shape[1]
    relative = (classes * share).log()
    mean = sums / estimate.examples[:, None].clamp(min=0.1)
    slope, spread = mean[:, :1], mean[:, 1:].clamp(min=0) + 1e-3
    weights_per_example = estimate.varying * max(1, classes - 1) / estimate.total
    inputs = [
        (-slope / spread).clamp(-MAX_LOG_FACTOR, MAX_LOG_FACTOR),
        weights_per_example.log()[:, None],
        spread.log() / 3,
        when.expand(len(share), -1),
        estimate.description,
        (share * relative).sum(1, keepdim=True) / loss_of_guessing(classes),
        relative.mean(1, keepdim=True).clamp(min=-6) / 2,
        agents.log() / 3,
        torch.full_like(agents, float(server)),
    ]
    return torch.cat(inputs, 1)
