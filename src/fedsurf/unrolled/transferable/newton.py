"""Newton-like steps that fit softmax heads to the agents' own examples: what agents do before they send.

A step preconditions the gradient by the softmax's curvature p (1 − p) of each class times the second
moment of all agents' features. With fewer examples than features, which is the rule, it is computed
through the Gram matrix of the examples, and costs as many numbers as there are examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedsurf.common.streams import Streams
from fedsurf.unrolled.transferable.confidence import own_confidence_sums
from fedsurf.unrolled.transferable.controller import LENGTHS, Controller, eased_share
from fedsurf.unrolled.transferable.local import (
    Groups,
    LocalExamples,
    columns,
    split_rows,
    with_column,
)
from fedsurf.unrolled.transferable.summaries import (
    PRIOR_COUNT,
    Curvature,
    FederationEstimate,
    own_progress,
)


@dataclass(frozen=True)
class LocalProblem:
    """Examples and curvature of a group of agents, with the products that all fits to them share."""

    examples: LocalExamples
    curvature: Curvature
    rows: Tensor
    """In the agent's units, the centre, with a 1 for the bias; the curvature's k axes; `examples.moved`, if
    there are more features than examples; and the bias alone, `[agents, k + 2 or k + 3, features + 1]`."""
    seen: Tensor
    """The examples along the axes, `[agents, k, examples]`."""
    rows_at_centre: Tensor
    """The centre's products with all `rows` but the first and the last, `[agents, k or k + 1, 1]`."""
    x_at_centre: Tensor
    """The centre's products with `examples.x`, `[agents, examples, 1]`."""

    @staticmethod
    def of(examples: LocalExamples, curvature: Curvature) -> LocalProblem:
        """Project examples on the curvature's axes."""
        axes, centre = curvature.axes, examples.from_raw(examples.centre)[:, None]
        moved = examples.moved[:, None]
        parts = [centre, axes, *([moved] if examples.wide else [])]
        agents, features = examples.base.shape
        rows = axes.new_zeros(agents, 1 + sum(part.shape[1] for part in parts), features + 1)
        torch.cat(parts, 1, out=rows[:, :-1, :-1])
        rows[:, 0, -1] = rows[:, -1, -1] = 1
        along = rows[:, : 1 + axes.shape[1], :-1] @ examples.x.mT
        seen = along[:, 1:]
        if examples.wide:
            seen = seen + (moved @ axes.mT).mT * examples.real.mT
        at_centre = (centre @ rows[:, 1:-1, :-1].mT).mT
        return LocalProblem(examples, curvature, rows, seen, at_centre, along[:, :1].mT)

    def batch(self, size: int, streams: Streams) -> LocalProblem:
        """Draw `size` examples of each agent, or all of an agent that has fewer."""
        places = self.examples.places
        chosen = streams.choose(min(size, places.shape[1]), places).to(self.seen.device)
        return replace(
            self,
            examples=self.examples.batch(chosen),
            seen=columns(self.seen, chosen),
            x_at_centre=self.x_at_centre.gather(1, chosen[:, :, None]),
        )


def problems_of(
    examples: tuple[LocalExamples, ...], groups: Groups, curvature: Curvature
) -> tuple[LocalProblem, ...]:
    """Return the problems of all groups, with the agents' estimates of the curvature."""
    pairs = zip(examples, split_rows(curvature, groups), strict=True)
    return tuple(LocalProblem.of(own, found) for own, found in pairs)


class LocalUpdate(NamedTuple):
    """The result of a round's local work."""

    fitted: Tensor
    """V, class by class, `[agents, parameters]`."""
    mixing: Tensor
    """The controls of mixing, before they are bounded, `[agents, MIXING]`."""
    progress: Tensor
    """How the head fits (`summaries.own_progress`), `[agents, classes + PROGRESS_SIZE]`."""
    confidence_sums: Tensor
    """How confident the received head is, `[agents, CONFIDENCE_SUMS]`; or empty."""


def local_update(
    problem: LocalProblem,
    head: Tensor,
    estimate: FederationEstimate,
    heard_share: Tensor,
    streams: Streams,
    *,
    when: Tensor,
    controller: Controller,
    steps: int,
    batch_size: int | None,
    ease_rare: bool,
    confident: bool,
) -> LocalUpdate:
    """Fit the heads of a group of agents, `head[agents, parameters]`, class by class, to their examples.

    `heard_share[agents, 1]` is the share of all agents whose messages reach each agent, or the server, in
    a round, `streams` draw mini-batches, and `when` is the round's `schedule`. `batch_size` and
    `ease_rare` are those of `TransferableAlgorithm`; `confident` is whether to compute `confidence_sums`.
    """
    whole, classes = problem.examples, problem.examples.labels.shape[1]
    count = whole.count[:, 0]
    share = (whole.labels.sum(2) + PRIOR_COUNT * estimate.classes) / (count + PRIOR_COUNT)
    unusual = share.log() - estimate.classes.log()
    if batch_size is not None:
        problem = problem.batch(batch_size, streams)
    fit, examples = HeadFit(problem, head), problem.examples
    lengths, mixing, context = controller.controls(
        when, estimate.description, examples.count[:, 0] / count, heard_share
    )
    before = fit.probabilities()
    confidence_sums = before.new_empty(len(before), 0)
    if confident:
        confidence_sums = own_confidence_sums(fit.logits, before, examples.labels)
    error = classes * (before - examples.labels).abs().sum(2) / examples.count[:, 0]
    relative = (count / estimate.examples[:, None].clamp(min=0.1)).log().expand_as(share)
    about = [
        unusual,
        (classes * share - 1).clamp(max=4),
        (classes * estimate.classes).log(),
        (error - 1).clamp(max=4),
        relative.clamp(-3, 3),
    ]
    gate, weight = controller.gates(torch.stack(about, 2), context)
    values = lengths.clamp(-12, 3).exp()[:, :, None, None].unbind(1)
    named = dict(zip(LENGTHS, values, strict=True))
    if ease_rare:
        eased = eased_share(estimate.classes, (share * unusual).sum(1))[:, :, None]
        named |= {name: eased * named[name] for name in ("damping", "floor")}
    step = Step(
        gate=gate,
        offset=weight * unusual[:, :, None],
        bend=estimate.bends[:, :, None],
        scale=estimate.scale[:, None, None],
        **named,
    )
    fit.take(step)
    after = fit.probabilities()
    for _ in range(steps - 1):
        fit.take(step)
    progress = own_progress(before, after, examples, share, estimate.classes)
    return LocalUpdate(fit.head(), mixing, progress, confidence_sums)


class Step(NamedTuple):
    """The settings of a local step; all broadcast to `[agents, classes, 1]`."""

    newton: Tensor
    """The length of the preconditioned step."""
    gradient: Tensor
    """The length of the plain gradient step that is added to it."""
    damping: Tensor
    """Added to the curvature, in units of `scale`."""
    decay: Tensor
    """The weight of the regularisation, in units of `scale`."""
    floor: Tensor
    """Added to `bend`, in units of its start: the curvature of a confident fit vanishes."""
    reach: Tensor
    """About how far the logits of the agent's examples may move in a step."""
    again: Tensor
    """Multiplies the length of all steps of a fit but the first."""
    gate: Tensor
    """Multiplies the step of each class."""
    offset: Tensor
    """Added to the logits of each class while fitting."""
    bend: Tensor
    """The curvature of the softmax for each class, the mean of p (1 − p) over the federation."""
    scale: Tensor
    """The mean square of a feature."""


class HeadFit:
    """Heads in the agents' own coordinates, while they are fitted to the agents' examples.

    A head is V = αV_0 + D + E U with U the curvature's axes, and D = B X where there are more features
    than examples. Steps change α, D (or B) and E only. Everything has a row for each class: a product of
    a few long rows with the examples is several times faster than one of a few columns.

    It begins at `head`, V_0, raw, class by class, `[agents, classes · (features + 1)]`.
    """

    def __init__(self, problem: LocalProblem, head: Tensor) -> None:
        examples = problem.examples
        self.problem, self.examples = problem, examples
        classes = examples.labels.shape[1]
        first = head.reshape(len(head), classes, head.shape[1] // classes)
        self._unit = None if examples.unit is None else with_column(examples.unit, 1.0)[:, None]
        self._first = first if self._unit is None else first * self._unit
        self._real = examples.real.mT
        self._share = self._real / examples.count
        self._target = -examples.labels / examples.count
        self._first_logits = self._first @ examples.rows.mT
        along = self._first @ problem.rows[:, :-1].mT
        width = problem.curvature.values.shape[1]
        self._first_bias, self._first_known = along[:, :, :1], along[:, :, 1 : 1 + width]
        if examples.wide:
            self._first_logits = self._first_logits + along[:, :, -1:]
        self.bias = self._first_bias
        self.kept = torch.ones_like(self.bias)
        self.own = torch.zeros_like(self._first_logits if examples.wide else self._first)
        self.known = torch.zeros_like(self._first_known)
        self._logits = self._first_logits + self.bias
        self._moved: tuple[Tensor, Tensor] | None = None
        self._steps = 0
        self._factors: _Factors

    @property
    def logits(self) -> Tensor:
        """The logits of the agent's own examples, `[agents, classes, examples]`; arbitrary for padding."""
        if self._moved is not None:  # not computed after the last step
            self._logits = torch.addcmul(self._logits, *self._moved)
            self._moved = None
        return self._logits

    def probabilities(self) -> Tensor:
        """Return the classes' probabilities, `[agents, classes, examples]`; zero for padding."""
        return self.logits.softmax(1) * self._real

    def take(self, step: Step) -> None:
        """Take one step against the gradient of the regularised loss; the same `step` in all of a fit."""
        if not self._steps:
            self._factors = _Factors.of(step, self.problem.curvature, self.bias.shape[1])
        factors, examples = self._factors, self.examples
        residual = torch.addcmul(self._target, (self.logits + step.offset).softmax(1), self._share)
        fresh = residual if examples.wide else residual @ examples.rows
        onto = self.problem.seen if examples.wide else self.problem.rows[:, 1:-1]
        if self._steps:
            slope = torch.addcmul(fresh, factors.decay, self.own)
            held = torch.addcmul(self.known, self.kept, self._first_known)
        else:  # only V_0: no zeros to add or to differentiate
            slope, held = fresh, self._first_known
        along = torch.baddbmm(factors.decay * held, slope, onto.mT)
        own = factors.rest * slope
        known = factors.leading * along
        if self._steps:
            known = torch.addcmul(known, factors.fade, self.known)
        kept = factors.fade * self.kept
        bias = factors.bias * residual.sum(2, keepdim=True)
        products = examples.gram if examples.wide else examples.rows.mT
        moved = torch.addcmul(bias, kept, self._first_logits)
        moved = torch.baddbmm(moved, own, products)
        moved = torch.baddbmm(moved, known, self.problem.seen) * self._real
        mean_square = moved.square().sum((1, 2), keepdim=True)
        mean_square = mean_square / (examples.count * self.bias.shape[1])
        shortened = (1 + mean_square / step.reach.square()).rsqrt()
        back = -step.again * shortened if self._steps else -shortened
        self.own = torch.addcmul(self.own, back, own) if self._steps else back * own
        self.known = torch.addcmul(self.known, back, known) if self._steps else back * known
        self.kept = torch.addcmul(self.kept, back, kept)
        self.bias = torch.addcmul(self.bias, back, bias)
        self._moved = back, moved
        self._steps += 1

    def head(self) -> Tensor:
        """Return the raw heads, class by class, `[agents, classes · (features + 1)]`."""
        examples, problem, known = self.examples, self.problem, self.known
        if examples.wide:
            known = torch.cat([known, self.own.sum(2, keepdim=True)], 2)
            own_at_centre = self.own @ problem.x_at_centre
        else:
            own_at_centre = self.own @ problem.rows[:, :1].mT
        bias = torch.addcmul(self.bias - own_at_centre, self.kept, self._first_bias, value=-1)
        bias = bias - known @ problem.rows_at_centre
        head = self.kept * self._first  # then in place: these terms are not used again
        head.baddbmm_(torch.cat([known, bias], 2), problem.rows[:, 1:])
        if examples.wide:
            head.baddbmm_(self.own, examples.rows)
        else:
            head.add_(self.own)
        return (head if self._unit is None else head / self._unit).flatten(1)


class _Factors(NamedTuple):
    """The factors of all steps of a round that have the same settings, `[agents, classes, 1]` or wider."""

    decay: Tensor
    """The weight of the regularisation in the features' unit."""
    rest: Tensor
    """Multiplies the slope in every direction."""
    leading: Tensor
    """Multiplies it along the curvature's axes, in addition, `[agents, classes, k]`."""
    fade: Tensor
    """Multiplies the previous head."""
    bias: Tensor
    """Multiplies the residuals' sum."""

    @staticmethod
    def of(step: Step, curvature: Curvature, classes: int) -> _Factors:
        # Where the logit of a class rises, those of the others fall.
        bend = (step.bend + step.floor / classes) * classes / max(1, classes - 1)
        decay = step.decay * step.scale / classes
        damping = step.damping * step.scale / classes + decay
        plain = classes * step.gradient / step.scale
        rest = step.newton / (bend * curvature.rest[:, None, None] + damping)
        leading = step.newton / (bend * curvature.values[:, None] + damping) - rest
        rest = step.gate * (rest + plain)
        bias = step.newton / (bend + step.damping / classes) + classes * step.gradient
        return _Factors(decay, rest, step.gate * leading, decay * rest, step.gate * bias)


def by_feature(head: Tensor, features: int) -> Tensor:
    """Reorder heads from class by class, as this layer keeps them, to the order of a `SoftmaxHead`.

    `[agents, classes · (features + 1)]` becomes `[agents, (features + 1) · classes]`.
    """
    classes = head.shape[1] // (features + 1)
    return head.reshape(len(head), classes, features + 1).mT.flatten(1)
