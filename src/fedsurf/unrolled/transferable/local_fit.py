"""Newton-like steps that fit a softmax head to an agent's examples, as the agent sees them.

With fewer examples than features, which is the rule, a step is computed through the Gram matrix of
the examples, and costs as many numbers as there are examples instead of features.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsurf.unrolled.transferable.curvature import Curvature
from fedsurf.unrolled.transferable.local_view import LocalView, with_column


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
    again : Tensor
        Multiplies the length of every such step but the first.
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
    again: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Outlook:
    """What the fits of agents to their examples have in common, round after round.

    Attributes
    ----------
    view : LocalView
        The examples.
    curvature : Curvature
        The second moment as each agent knows it.
    rows : Tensor
        The centre, with a 1 for the bias; the curvature's axes; what moved the view, where there are
        more features than examples; the bias alone: in the agent's units,
        `[agents, k + 2 or k + 3, features + 1]`.
    seen : Tensor
        The examples along the axes, `[agents, k, examples]`.
    rows_at_centre, x_at_centre : Tensor
        The products with the centre of the rows between the first and the last, and of the view's x:
        `[agents, k or k + 1, 1]` and `[agents, examples, 1]`.
    """

    view: LocalView
    curvature: Curvature
    rows: Tensor
    seen: Tensor
    rows_at_centre: Tensor
    x_at_centre: Tensor

    @staticmethod
    def of(view: LocalView, curvature: Curvature) -> "Outlook":
        """Look at a view's examples along the curvature's axes."""
        axes, centre = curvature.axes, view.from_raw(view.centre)[:, None]
        parts = [centre, axes, *([view.moved[:, None]] if view.wide else [])]
        agents, features = view.base.shape
        rows = axes.new_zeros(agents, 1 + sum(part.shape[1] for part in parts), features + 1)
        torch.cat(parts, 1, out=rows[:, :-1, :-1])
        rows[:, 0, -1] = rows[:, -1, -1] = 1
        along = rows[:, : 1 + axes.shape[1], :-1] @ view.x.mT
        seen = along[:, 1:]
        if view.wide:
            seen = seen + (view.moved[:, None] @ axes.mT).mT * view.real.mT
        at_centre = (centre @ rows[:, 1:-1, :-1].mT).mT
        return Outlook(view, curvature, rows, seen, at_centre, along[:, :1].mT)

    def batch(self, size: int, generator: torch.Generator) -> "Outlook":
        """Return the outlook on a mini-batch: `size` of each agent's examples, or all that it has."""
        view = self.view
        keys = torch.rand(view.real.shape[:2], generator=generator, dtype=torch.float32)
        keys = keys.masked_fill(view.real[:, :, 0] == 0, 2.0)
        chosen = keys.topk(min(size, keys.shape[1]), 1, largest=False).indices
        row = torch.arange(len(chosen))[:, None]
        rows, real = view.rows[row, chosen], view.real[row, chosen]
        gram = view.gram[row, chosen]
        if view.wide:
            gram = gram.gather(2, chosen[:, None].expand(-1, chosen.shape[1], -1))
        batch = replace(
            view,
            rows=rows,
            gram=gram,
            total=rows[:, :, :-1].sum(1),
            labels=view.labels.gather(2, chosen[:, None].expand(-1, view.labels.shape[1], -1)),
            real=real,
            count=real.sum(1, keepdim=True),
        )
        seen = self.seen.gather(2, chosen[:, None].expand(-1, self.seen.shape[1], -1))
        return replace(self, view=batch, seen=seen, x_at_centre=self.x_at_centre[row, chosen])


class LocalFit:
    """A head in an agent's own coordinates, while it is fitted to the agent's examples.

    It is V = αV_0 + D + E U with U the curvature's axes, and D = B X where there are more features
    than examples. Steps change α, D (or B) and E only. Here everything has a row for each class: a
    product of a few long rows with the examples is several times faster than one of a few columns.

    Parameters
    ----------
    outlook : Outlook
        What the agents see.
    head : Tensor
        The raw heads, class by class (as `by_feature` takes them), `[agents, classes · (features + 1)]`.
    """

    def __init__(self, outlook: Outlook, head: Tensor) -> None:
        view = outlook.view
        self.outlook, self.view, self.curvature = outlook, view, outlook.curvature
        classes = view.labels.shape[1]
        first = head.reshape(len(head), classes, -1)
        self._unit = None if view.unit is None else with_column(view.unit, 1.0)[:, None]
        self._first = first if self._unit is None else first * self._unit
        self._real = view.real.mT
        self._share, self._target = self._real / view.count, -view.labels / view.count
        self._first_logits = self._first @ view.rows.mT
        along = self._first @ outlook.rows[:, :-1].mT
        width = self.curvature.values.shape[1]
        self._first_bias, self._first_known = along[:, :, :1], along[:, :, 1 : 1 + width]
        if view.wide:
            self._first_logits = self._first_logits + along[:, :, -1:]
        self.bias = self._first_bias
        self.kept = torch.ones_like(self.bias)
        self.own = torch.zeros_like(self._first_logits if view.wide else self._first)
        self.known = torch.zeros_like(self._first_known)
        self._logits = self._first_logits + self.bias
        self._moved: tuple[Tensor, Tensor] | None = None
        self._steps = 0
        self._prepared: tuple[Step, _Lengths] | None = None

    @property
    def logits(self) -> Tensor:
        """The logits at the agent's own examples, `[agents, classes, examples]`; arbitrary for padding."""
        if self._moved is not None:  # only now: after the last step nobody may ask
            self._logits = torch.addcmul(self._logits, *self._moved)
            self._moved = None
        return self._logits

    def probabilities(self) -> Tensor:
        """The classes' probabilities at the agent's own examples, `[agents, classes, examples]`.

        They are zero for padding.
        """
        return self.logits.softmax(1) * self._real

    def take(self, step: Step) -> None:
        """Take one step against the gradient of the regularised loss on the examples."""
        if self._prepared is None or self._prepared[0] is not step:
            self._prepared = step, _Lengths.of(step, self.curvature, self.bias.shape[1])
            self._again: Tensor | float = 1.0
        lengths, view = self._prepared[1], self.view
        residual = torch.addcmul(self._target, (self.logits + step.offset).softmax(1), self._share)
        fresh = residual if view.wide else residual @ view.rows
        onto = self.outlook.seen if view.wide else self.outlook.rows[:, 1:-1]
        if self._steps:
            slope = torch.addcmul(fresh, lengths.decay, self.own)
            held = torch.addcmul(self.known, self.kept, self._first_known)
        else:  # nothing but V_0, and no need to add zeros or to differentiate them
            slope, held = fresh, self._first_known
        along = torch.baddbmm(lengths.decay * held, slope, onto.mT)
        own = lengths.rest * slope
        known = lengths.leading * along
        if self._steps:
            known = torch.addcmul(known, lengths.fade, self.known)
        kept = lengths.fade * self.kept
        bias = lengths.bias * residual.sum(2, keepdim=True)
        products = view.gram if view.wide else view.rows.mT
        moved = torch.addcmul(bias, kept, self._first_logits)
        moved = torch.baddbmm(moved, own, products)
        moved = torch.baddbmm(moved, known, self.outlook.seen) * self._real
        mean_square = moved.square().sum((1, 2), keepdim=True) / (view.count * self.bias.shape[1])
        back = -self._again * (1 + mean_square / step.reach.square()).rsqrt()
        self._again = step.again
        self.own = torch.addcmul(self.own, back, own) if self._steps else back * own
        self.known = torch.addcmul(self.known, back, known) if self._steps else back * known
        self.kept = torch.addcmul(self.kept, back, kept)
        self.bias = torch.addcmul(self.bias, back, bias)
        self._moved = back, moved
        self._steps += 1

    def head(self) -> Tensor:
        """The raw head, class by class, `[agents, classes · (features + 1)]`."""
        view, outlook, known = self.view, self.outlook, self.known
        if view.wide:
            known = torch.cat([known, self.own.sum(2, keepdim=True)], 2)
            own_at_centre = self.own @ outlook.x_at_centre
        else:
            own_at_centre = self.own @ outlook.rows[:, :1].mT
        bias = torch.addcmul(self.bias - own_at_centre, self.kept, self._first_bias, value=-1)
        bias = bias - known @ outlook.rows_at_centre
        # In place: nobody needs the parts of these sums again.
        head = self.kept * self._first
        head.baddbmm_(torch.cat([known, bias], 2), outlook.rows[:, 1:])
        if view.wide:
            head.baddbmm_(self.own, view.rows)
        else:
            head.add_(self.own)
        return (head if self._unit is None else head / self._unit).flatten(1)


@dataclass(frozen=True)
class _Lengths:
    """A step's lengths as they multiply: the same for all steps of a round.

    Attributes
    ----------
    decay : Tensor
        The weight of the regularisation in the features' unit.
    rest : Tensor
        Multiplies the slope in every direction, `[agents, classes, 1]`.
    leading : Tensor
        Multiplies it along the axes beside, `[agents, classes, k]`.
    fade : Tensor
        Multiplies what the head was, `[agents, classes, 1]`.
    bias : Tensor
        Multiplies the residuals' sum, `[agents, classes, 1]`.
    """

    decay: Tensor
    rest: Tensor
    leading: Tensor
    fade: Tensor
    bias: Tensor

    @staticmethod
    def of(step: Step, curvature: Curvature, classes: int) -> "_Lengths":
        # Where the logit of a class rises, those of the others fall.
        bend = (step.bend + step.floor / classes) * classes / max(1, classes - 1)
        decay = step.decay * step.scale / classes
        damping = step.damping * step.scale / classes + decay
        plain = classes * step.gradient / step.scale
        rest = step.newton / (bend * curvature.rest[:, None, None] + damping)
        leading = step.newton / (bend * curvature.values[:, None] + damping) - rest
        rest = step.gate * (rest + plain)
        bias = step.newton / (bend + step.damping / classes) + classes * step.gradient
        return _Lengths(decay, rest, step.gate * leading, decay * rest, step.gate * bias)


def by_feature(head: Tensor, features: int) -> Tensor:
    """Order heads as a `SoftmaxHead` has them, which here have the weights and the bias of each class in turn.

    `[agents, classes · (features + 1)]` becomes `[agents, (features + 1) · classes]`.
    """
    return head.reshape(len(head), -1, features + 1).mT.flatten(1)
