"""An agent's own view of its examples, and Newton-like steps that fit a softmax head to them.

Each agent centres its examples by its own mean, and rotates them onto the axes of their singular
value decomposition X = U Σ Qᵀ. There the second moment is diagonal, so that a preconditioned step
costs no more than a gradient step; with fewer examples than features, which is the rule, everything
happens in as many dimensions as there are examples. What a head holds outside of these axes no
example of the agent sees: only the regularisation shrinks it.

Heads travel in the features' raw units. An agent's centre and units are its own affair.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.tasks.examples import Examples

RANK_TOLERANCE = 1e-6
"""Axes whose second moment is below this share of the largest one count as empty."""


@dataclass(frozen=True)
class LocalView:
    """Every agent's examples in coordinates of its own.

    Attributes
    ----------
    rotated : Tensor
        The centred examples on the agent's axes, `[agents, examples, rank]`; padding is zero.
    axes : Tensor
        The axes as columns in centred features, `[agents, features, rank]`; empty ones are zero.
    moments : Tensor
        The second moment along each axis, (1/m) Σ x², `[agents, rank]`.
    centre : Tensor
        The agent's mean, `[agents, features]`.
    unit : Tensor
        What one unit of each feature is worth, `[agents, features]`: centred features were divided
        by it.
    labels : Tensor
        One-hot labels, zero for padding, `[agents, examples, classes]`.
    real : Tensor
        1 where an example is real, 0 for padding, `[agents, examples, 1]`.
    count : Tensor
        The number of examples, `[agents, 1, 1]`.
    """

    rotated: Tensor
    axes: Tensor
    moments: Tensor
    centre: Tensor
    unit: Tensor
    labels: Tensor
    real: Tensor
    count: Tensor

    @staticmethod
    @torch.no_grad()
    def of(examples: Examples, classes: int, unit: Tensor | None = None) -> "LocalView":
        """Look at examples; `unit[agents, features]` is 1 where it is not given."""
        x = examples.x
        real = torch.ones_like(examples.y, dtype=x.dtype)
        if examples.mask is not None:
            real = examples.mask.to(x.dtype)
        real = real[:, :, None]
        count = real.sum(1, keepdim=True)
        centre = (x * real).sum(1, keepdim=True) / count
        unit = torch.ones_like(centre[:, 0]) if unit is None else unit
        centred = (x - centre) * real / unit[:, None]
        rotated, axes, moments = _principal(centred)
        return LocalView(
            rotated,
            axes,
            moments / count[:, 0],
            centre[:, 0],
            unit,
            functional.one_hot(examples.y, classes).to(x.dtype) * real,
            real,
            count,
        )

    def of_agents(self, agents: Tensor) -> "LocalView":
        """Return the view of some agents, numbered by `agents`."""
        return LocalView(**{name: value[agents] for name, value in vars(self).items()})

    def from_raw(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Turn raw heads `[agents, (features + 1) · classes]` into own matrices and biases.

        The matrices are `[agents, features, classes]`, the biases `[agents, 1, classes]`.
        """
        head = weights.reshape(len(weights), self.centre.shape[1] + 1, -1)
        matrix = head[:, :-1]
        bias = head[:, -1:] + self.centre[:, None] @ matrix
        return matrix * self.unit[:, :, None], bias

    def to_raw(self, matrix: Tensor, bias: Tensor) -> Tensor:
        """Undo `from_raw`."""
        matrix = matrix / self.unit[:, :, None]
        return torch.cat([matrix, bias - self.centre[:, None] @ matrix], 1).flatten(1)


@dataclass(frozen=True)
class Step:
    """What one local step is made with; everything broadcasts to `[agents, 1, classes]`.

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
    floor : Tensor
        What is added to the curvature of the softmax, in units of its largest: a confident fit has
        none of its own.
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
    floor: Tensor
    reach: Tensor
    scale: Tensor


class LocalFit:
    """A head in an agent's own coordinates, while it is fitted to the agent's examples."""

    def __init__(self, view: LocalView, weights: Tensor) -> None:
        self.view = view
        self._first, self.bias = view.from_raw(weights)
        self._first_inside = view.axes.mT @ self._first
        self.inside = self._first_inside
        self.outside = torch.ones_like(self.bias)
        self.logits = torch.baddbmm(self.bias, view.rotated, self.inside)

    def probabilities(self, offset: Tensor | float = 0.0) -> Tensor:
        """The classes' probabilities at the agent's own examples, zero for padding."""
        return (self.logits + offset).softmax(2) * self.view.real

    def take(self, step: Step) -> None:
        """Take one step against the gradient of the regularised loss on all own examples."""
        view, classes = self.view, self.bias.shape[2]
        found = self.probabilities(step.offset)
        residual = (found - view.labels) / view.count
        spread = (view.real - found.square().sum(2, keepdim=True)).sum(1, keepdim=True)
        curvature = spread / view.count / max(1, classes - 1) + step.floor / classes
        decay = step.decay * step.scale
        damping = step.damping * step.scale / classes + decay
        slope = torch.baddbmm(decay * self.inside, view.rotated.mT, residual)
        inverse = step.newton / (curvature * view.moments[:, :, None] + damping)
        plain = classes * step.gradient / step.scale
        inside = step.gate * (inverse + plain) * slope
        outside = step.gate * decay * (step.newton / damping + plain) * self.outside
        length = step.newton / (curvature + step.damping / classes) + classes * step.gradient
        bias = step.gate * length * residual.sum(1, keepdim=True)
        moved = torch.baddbmm(bias, view.rotated, inside) * view.real
        mean_square = moved.square().sum((1, 2), keepdim=True) / (view.count * classes)
        short = (1 + mean_square / step.reach.square()).rsqrt()
        self.inside = self.inside - short * inside
        self.outside = self.outside - short * outside
        self.bias = self.bias - short * bias
        self.logits = self.logits - short * moved

    def raw(self) -> Tensor:
        """The head in raw units, `[agents, (features + 1) · classes]`."""
        moved = self.inside - self.outside * self._first_inside
        matrix = torch.baddbmm(self.outside * self._first, self.view.axes, moved)
        return self.view.to_raw(matrix, self.bias)


def _principal(centred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the examples on their principal axes, the axes, and the sums of squares along them."""
    examples, features = centred.shape[1:]
    exact = centred.double()
    if features <= examples:
        sums, axes = torch.linalg.eigh(exact.mT @ exact)
    else:
        sums, left = torch.linalg.eigh(exact @ exact.mT)
        axes = exact.mT @ (left / sums.clamp(min=torch.finfo(sums.dtype).tiny).sqrt()[:, None])
    largest = sums.amax(1, keepdim=True).clamp(min=torch.finfo(centred.dtype).tiny)
    kept = sums > RANK_TOLERANCE * largest
    axes = torch.where(kept[:, None], axes, 0.0)
    sums = torch.where(kept, sums, 0.0)
    return (exact @ axes).to(centred.dtype), axes.to(centred.dtype), sums.to(centred.dtype)
