"""An agent's own view of its examples, and Newton-like steps that fit a softmax head to them.

Agents look at their examples from a centre and in units of their own; heads travel in the features'
raw units, so that these are nobody else's affair. A centre close to the federation's matters all the
same: seen from its own mean, an agent that holds one class would learn nothing about the features.

With fewer examples than features, which is the rule, a step is computed through the Gram matrix of
the examples, and costs as many numbers as there are examples instead of features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.curvature import Curvature


@dataclass(frozen=True)
class LocalView:
    """Every agent's examples, as it sees them.

    Attributes
    ----------
    x : Tensor
        The examples from the agent's centre, in its units, `[agents, examples, features]`; padding
        is zero.
    gram : Tensor
        Their products X Xᵀ, `[agents, examples, examples]`; without columns where there are no fewer
        examples than features, and nobody needs it.
    centre, unit : Tensor
        The agent's centre and the unit of each feature, raw, `[agents, features]`.
    labels : Tensor
        One-hot labels, zero for padding, `[agents, examples, classes]`.
    real : Tensor
        1 where an example is real, 0 for padding, `[agents, examples, 1]`.
    count : Tensor
        The number of examples, `[agents, 1, 1]`.
    """

    x: Tensor
    gram: Tensor
    centre: Tensor
    unit: Tensor
    labels: Tensor
    real: Tensor
    count: Tensor

    @staticmethod
    def of(
        examples: Examples,
        classes: int,
        centre: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> "LocalView":
        """Look at examples, from each agent's own mean and in raw units where nothing else is given."""
        x = examples.x
        real = torch.ones_like(examples.y, dtype=x.dtype)
        if examples.mask is not None:
            real = examples.mask.to(x.dtype)
        real = real[:, :, None]
        count = real.sum(1, keepdim=True)
        centre = ((x * real).sum(1) / count[:, 0]) if centre is None else centre
        unit = torch.ones_like(centre) if unit is None else unit
        seen = (x - centre[:, None]) * real / unit[:, None]
        labels = functional.one_hot(examples.y, classes).to(x.dtype) * real
        return LocalView(seen, _gram(seen), centre, unit, labels, real, count)

    @property
    def wide(self) -> bool:
        """Whether there are more features than examples."""
        return self.gram.shape[2] > 0

    @property
    def own_sum(self) -> Tensor:
        """The sum of each agent's examples, raw, `[agents, features]`."""
        return self.x.sum(1) * self.unit + self.count[:, 0] * self.centre

    def about(self, centre: Tensor) -> "LocalView":
        """Return the same examples as seen from other centres, `[agents, features]`."""
        moved = ((self.centre - centre) / self.unit)[:, None]
        seen = torch.addcmul(self.x, moved, self.real)
        return LocalView(seen, _gram(seen), centre, self.unit, self.labels, self.real, self.count)

    def of_agents(self, agents: Tensor) -> "LocalView":
        """Return the view of some agents, numbered by `agents`."""
        return LocalView(**{name: value[agents] for name, value in vars(self).items()})

    def sketch(self, directions: Tensor) -> Tensor:
        """Return Σ x xᵀ Ω of each agent's examples, `[agents, features, k]`."""
        return self.x.mT @ (self.x @ directions)

    def from_raw(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Turn raw heads `[agents, (features + 1) · classes]` into own matrices and biases.

        The matrices are `[agents, classes, features]`, the biases `[agents, classes, 1]`.
        """
        head = weights.reshape(len(weights), self.centre.shape[1] + 1, -1).mT
        matrix = head[:, :, :-1].contiguous()
        bias = head[:, :, -1:] + matrix @ self.centre[:, :, None]
        return matrix * self.unit[:, None], bias

    def to_raw(self, matrix: Tensor, bias: Tensor) -> Tensor:
        """Undo `from_raw`."""
        matrix = matrix / self.unit[:, None]
        bias = bias - matrix @ self.centre[:, :, None]
        return torch.cat([matrix.mT, bias.mT], 1).flatten(1)


@dataclass(frozen=True)
class Step:
    """What one local step is made with; everything broadcasts to `[agents, classes, 1]`.

    Attributes
    ----------
    newton : Tensor
        The length of the preconditioned step.
    gradient : Tensor
        The length of the plain gradient step beside it.
    damping : Tensor
        What the preconditioner adds to the curvature.
    decay : Tensor
        The weight of the regularisation.
    gate : Tensor
        Multiplies the step of each class.
    offset : Tensor
        Is added to the logits of each class while fitting.
    bend : Tensor
        The curvature of the softmax for each class, the mean of p (1 − p) over the federation.
    floor : Tensor
        What is added to it, in units of its start: a confident fit has none of its own.
    reach : Tensor
        How far, about, the logits of the agent's examples may move in a step.
    scale : Tensor
        The mean square of a feature: the unit of damping, decay and gradient.
    """

    newton: Tensor
    gradient: Tensor
    damping: Tensor
    decay: Tensor
    gate: Tensor
    offset: Tensor
    bend: Tensor
    floor: Tensor
    reach: Tensor
    scale: Tensor


class LocalFit:
    """A head in an agent's own coordinates, while it is fitted to the agent's examples.

    It is V = αV_0 + D + E Uᵀ with U the curvature's axes, and D = B X where there are more features
    than examples. Steps change α, D (or B) and E only. Here everything has a row for each class: a
    product of a few long rows with the examples is several times faster than one of a few columns.
    """

    def __init__(
        self, view: LocalView, curvature: Curvature, weights: Tensor, seen: Tensor | None = None
    ) -> None:
        self.view, self.curvature = view, curvature
        self._first, self.bias = view.from_raw(weights)
        self._seen = curvature.seen(view.x) if seen is None else seen
        self._labels, self._real = view.labels.mT, view.real.mT
        self._first_logits = self._first @ view.x.mT
        self._first_known = self._first @ curvature.axes
        self.kept = torch.ones_like(self.bias)
        self.own = torch.zeros_like(self._first_logits if view.wide else self._first)
        self.known = torch.zeros_like(self._first_known)
        self.logits = self._first_logits + self.bias

    def probabilities(self) -> Tensor:
        """The classes' probabilities at the agent's own examples, `[agents, examples, classes]`.

        They are zero for padding.
        """
        return self._probabilities(0.0).mT

    def _probabilities(self, offset: Tensor | float) -> Tensor:
        return (self.logits + offset).softmax(1) * self._real

    def take(self, step: Step) -> None:
        """Take one step against the gradient of the regularised loss on all own examples."""
        view, classes = self.view, self.bias.shape[1]
        residual = (self._probabilities(step.offset) - self._labels) / view.count
        bend = step.bend + step.floor / classes
        decay = step.decay * step.scale / classes
        damping = step.damping * step.scale / classes + decay
        plain = classes * step.gradient / step.scale
        rest = step.newton / (bend * self.curvature.rest[:, None, None] + damping) + plain
        leading = step.newton / (bend * self.curvature.values[:, None] + damping) + plain
        fresh = residual if view.wide else residual @ view.x
        slope = fresh + decay * self.own
        onto = self._seen.mT if view.wide else self.curvature.axes
        along = torch.baddbmm(decay * (self.kept * self._first_known + self.known), slope, onto)
        own = step.gate * rest * slope
        known = step.gate * (decay * rest * self.known + (leading - rest) * along)
        kept = step.gate * decay * rest * self.kept
        length = step.newton / (bend + step.damping / classes) + classes * step.gradient
        bias = step.gate * length * residual.sum(2, keepdim=True)
        products = view.gram if view.wide else view.x.mT
        moved = torch.baddbmm(bias + kept * self._first_logits, own, products)
        moved = torch.baddbmm(moved, known, self._seen) * self._real
        mean_square = moved.square().sum((1, 2), keepdim=True) / (view.count * classes)
        short = (1 + mean_square / step.reach.square()).rsqrt()
        self.own = self.own - short * own
        self.known = self.known - short * known
        self.kept = self.kept - short * kept
        self.bias = self.bias - short * bias
        self.logits = self.logits - short * moved

    def raw(self) -> Tensor:
        """The head in raw units, `[agents, (features + 1) · classes]`."""
        matrix = torch.baddbmm(self.kept * self._first, self.known, self.curvature.axes.mT)
        own = self.own @ self.view.x if self.view.wide else self.own
        return self.view.to_raw(matrix + own, self.bias)


def _gram(x: Tensor) -> Tensor:
    agents, examples, features = x.shape
    return x @ x.mT if features > examples else x.new_empty(agents, examples, 0)
