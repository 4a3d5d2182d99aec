"""How sure heads should be: a learned factor of their logits, from what agents heard of the problem.

Accuracy does not care how sure a head is, and meta-training cares little, as regularisation that helps a
head to be right makes it unsure. So the size of the logits is set where heads are used: all weights of an
agent are multiplied by one factor, which changes none of its predictions, only how likely it says they are.

In every round agents tell two numbers: how the loss of the head that they heard, on their own examples,
would change with the factor. With many more examples than weights that says nearly all. With fewer it asks
for too much, since these examples were fitted before, and a perceptron, shared by all agents, corrects it
from all that an agent heard.

C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger, "On calibration of modern neural networks", ICML 2017, have
such a factor, from examples that were held out.
"""

import math

import torch
from torch import Tensor, nn

from fedsurf.unrolled.transferable.controller import SCHEDULE, drawn_linear, two_layers
from fedsurf.unrolled.transferable.summaries import SIGNALS, Heard, loss_of_guessing

SURENESS = 2
"""Numbers that agents tell of how sure heads are."""
MEASURED = SURENESS + 1
"""The first of what the perceptron sees: what became of these numbers, and of the number of weights."""
INPUTS = MEASURED + SCHEDULE + SIGNALS + 4
"""What it sees; `known_of` puts it together."""
LARGEST = 2.0
"""The logarithm of the factor, at most, and its negative at least."""
PLENTY = 0.05
"""With so many weights for each example, half of the perceptron's correction counts."""


class Confidence(nn.Module):
    """The perceptron. Until it has learned something, what agents told decides.

    Parameters
    ----------
    width : int
        Its hidden units.
    generator : torch.Generator
        Draws the initial parameters.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = drawn_linear(INPUTS, width, 0.5, generator)
        self.second = drawn_linear(width, 1, 0.0, generator)

    def forward(self, known: Tensor) -> Tensor:
        """Return the logarithms of the factors, `[agents, 1]`; `known` is `[agents, INPUTS]`."""
        told, weights = known[:, :1], known[:, 1:2]
        doubtful = torch.sigmoid(weights - math.log(PLENTY))
        corrected = told + doubtful * two_layers(self.first, self.second, known)
        return LARGEST * torch.tanh(corrected / LARGEST)


def own_sureness(logits: Tensor, probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return how each agent's loss would change with the logarithm of a factor, `[agents, SURENESS]`.

    The first derivative of the sum over its examples, and the sum of the variances of their logits, which is
    the rest of the second derivative. Everything else is `[agents, classes, examples]`; probabilities and
    labels are zero for padding.
    """
    slope = ((probabilities - labels) * logits).sum((1, 2))
    mean = (probabilities * logits).sum(1)
    spread = (probabilities * logits.square()).sum((1, 2)) - mean.square().sum(1)
    return torch.stack([slope, spread], 1)


def weights_for_each(heard: Heard) -> Tensor:
    """Return how many weights of a head matter for each example of the federation, `[agents]`."""
    return heard.varying * max(1, heard.classes.shape[1] - 1) / heard.total


def known_of(
    when: Tensor,
    heard: Heard,
    sureness: Tensor,
    agents: Tensor,
    *,
    server: bool,
) -> Tensor:
    """Put together what the perceptron sees, `[agents, INPUTS]`.

    By how much what agents told asks the logarithm of the factor to change; how many weights there are for
    each example; how sure heads are; the schedule; the signals; how uneven classes are; who is heard.

    Parameters
    ----------
    when : Tensor
        The schedule of the last round, `[SCHEDULE]`.
    heard : Heard
        What was heard of the problem.
    sureness : Tensor
        What was heard of how sure heads are, `[agents, SURENESS]`.
    agents : Tensor
        The share of the agents that each, or the server, hears in a round, `[agents, 1]`.
    server : bool
        Whether there is a server.
    """
    share, classes = heard.classes, heard.classes.shape[1]
    relative = (classes * share).log()
    mean = sureness / heard.examples[:, None].clamp(min=0.1)
    slope, spread = mean[:, :1], mean[:, 1:].clamp(min=0) + 1e-3
    known = [
        (-slope / spread).clamp(-LARGEST, LARGEST),
        weights_for_each(heard).log()[:, None],
        spread.log() / 3,
        when.expand(len(share), -1),
        heard.signals,
        (share * relative).sum(1, keepdim=True) / loss_of_guessing(classes),
        relative.mean(1, keepdim=True).clamp(min=-6) / 2,
        agents.log() / 3,
        torch.full_like(agents, float(server)),
    ]
    return torch.cat(known, 1)
