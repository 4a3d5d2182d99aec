"""Nearest class mean, from averaged class sums and counts.

T. Mensink, J. Verbeek, F. Perronnin and G. Csurka, "Distance-based image classification:
generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013. An example belongs to the
class c whose mean μ_c is nearest. What all classes share of −½‖x − μ_c‖² drops out, and what is left
is a linear classifier:

    score_c(x) = μ_c·x − ½‖μ_c‖².

It is written as (μ_c − μ)·(x − ½(μ_c + μ)) with μ the mean of the classes' means: less by what is the
same for all classes, so that features far from zero do not drown what tells the classes apart.

Sums and counts of classes are all that it needs: averaged over the agents (`gossip`), their ratios
are the means of the pooled examples.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.algorithms.checks import own_state
from fedsurf.algorithms.gossip import AveragingState, averaging_step, begin_averaging
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

UNSEEN_MARGIN = 30.0
"""How far a class without examples scores below the mean of the others, whatever the example."""


@dataclass(frozen=True)
class ClassMeans:
    """Average the class sums and counts, choose the nearest mean: one round a step.

    A message holds (features + 1) · classes floats, as many as the weights. No hyperparameter needs
    tuning.

    Attributes
    ----------
    model : SoftmaxHead
        What the agents train: its weights are a linear classifier.
    accelerated : bool
        Chebyshev-accelerated gossip, or plain; see `gossip`.
    start : Start
        Where W_0 is drawn, which is replaced in the first round.
    """

    model: SoftmaxHead
    accelerated: bool = True
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_head(self.model, self.name)

    @property
    def name(self) -> str:
        """The method's name."""
        return "class means"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> AveragingState:
        """Draw W_0, sum up the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        statistics = class_sums(task.train, task.classes)
        return begin_averaging(weights, statistics, network, accelerated=self.accelerated)

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - all that matters of it is in the state
        network: Network,
        generator: torch.Generator,  # noqa: ARG002
    ) -> AveragingState:
        """Average for one round, take the means."""
        return averaging_step(own_state(state, AveragingState), network, self._solve)

    def _solve(self, estimates: Tensor, _weights: Tensor) -> Tensor:
        sums, counts = split_class_sums(estimates, self.model.classes)
        seen = seen_classes(counts)
        means = class_means(sums, counts, seen)
        middle = means.sum(1, keepdim=True) / seen.sum(1).clamp(min=1)[:, None, None]
        weights = means - middle
        bias = -(weights * (means + middle)).sum(2, keepdim=True) / 2
        return head_weights(torch.cat([weights, bias], 2), seen)


def check_head(model: Model, method: str) -> None:
    """Raise unless the model is a softmax head."""
    if not isinstance(model, SoftmaxHead):
        raise ValueError(  # noqa: TRY004 - the value of an argument, like every other wrong model
            f"model: got a {type(model).__name__}, but {method} is a closed form for a linear "
            "classifier: it must be a SoftmaxHead"
        )


def check_head_fits(model: SoftmaxHead, task: Task) -> None:
    """Raise unless the head has the task's features and classes."""
    if (model.features, model.classes) != (task.features, task.classes):
        raise ValueError(
            f"task: got {task.features} features and {task.classes} classes, but the model has "
            f"{model.features} features and {model.classes} classes"
        )


def check_offset(task: Task, method: str) -> None:
    """Raise where features lie so far from zero that their covariance drowns in rounding.

    It is a difference of second moments, and these are rounded to a share of the squared mean.
    """
    x = task.train.pooled().x[0].double()
    variance, offset = x.var(0, correction=0), x.mean(0).square()
    lost = (variance > 0) & (torch.finfo(task.train.x.dtype).eps * offset > variance / 2)
    if lost.any():
        place = int(lost.nonzero()[0])
        raise ValueError(
            f"task: got the feature {place} with the mean {float(x[:, place].mean()):.4g} and the "
            f"deviation {float(variance[place].sqrt()):.2g} in {task.train.x.dtype}, but {method} sees "
            "no deviations so small beside the mean: centre the features, or give them in float64"
        )


def class_sums(examples: Examples, classes: int) -> Tensor:
    """Return each agent's sums of features by class, then its counts, `[agents, classes · (p + 1)]`."""
    labels = functional.one_hot(examples.y, classes).to(examples.x.dtype)
    if examples.mask is not None:
        labels = labels * examples.mask[:, :, None]
    sums = torch.bmm(labels.transpose(1, 2), examples.x)
    return torch.cat([sums.flatten(1), labels.sum(1)], 1)


def split_class_sums(statistics: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Undo `class_sums`: sums `[agents, classes, features]` and counts `[agents, classes]`."""
    sums, counts = statistics[:, :-classes], statistics[:, -classes:]
    return sums.reshape(len(statistics), classes, -1), counts


def seen_classes(counts: Tensor) -> Tensor:
    """Tell which classes have examples in counts `[agents, classes]`, beyond rounding.

    Counts are below zero here and there in the first rounds of accelerated gossip: such a class is
    not known yet.
    """
    rounding = 8 * torch.finfo(counts.dtype).eps
    return counts > rounding * counts.sum(1, keepdim=True).clamp(min=0)


def class_means(sums: Tensor, counts: Tensor, seen: Tensor) -> Tensor:
    """Return the mean of each class, 0 for those without examples, `[agents, classes, features]`."""
    divided = sums / torch.where(seen, counts, 1)[:, :, None]
    return torch.where(seen[:, :, None], divided, 0)


def head_weights(rows: Tensor, seen: Tensor) -> Tensor:
    """Return a softmax head's flat weights from `rows[agents, classes, features + 1]`, bias last.

    A class that was not seen scores `UNSEEN_MARGIN` less than the mean of those that were: it never
    wins, whatever the example, and all numbers stay finite.
    """
    known = torch.where(seen[:, :, None], rows, 0)
    mean = known.sum(1, keepdim=True) / seen.sum(1).clamp(min=1)[:, None, None]
    mean[:, :, -1] -= UNSEEN_MARGIN
    filled = torch.where(seen[:, :, None], rows, mean)
    return filled.transpose(1, 2).flatten(1)
