"""One round of the transferable layer over a graph: local work, mixing with memory, and recentring.

Agents send φ = V + κ (W − V_prev) and mix with memory: W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev
(`optimizer` explains the symbols).

Mixing counts agents alike, however many examples they hold. Where these are very unequal, most heads are
of agents that know next to nothing; weighing heads by a power of the number of examples lets those
count for more that know more (`MASS_POWER`).

Where most links lead from one side of a graph to the other, as in a bipartite one, agents' heads swing:
the smallest eigenvalue of S is close to −1, and the learned memory, which saw no such graph in
meta-training, amplifies every swing. There agents keep a share s of what they send, (1 − s) S + s I,
so that no eigenvalue is below `CALM_EIGENVALUE`. That takes no message, but one number of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedsurf.algorithms.algorithm import State
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.controller import GRAPH_CALLS, schedule
from fedsurf.unrolled.transferable.local import Groups, LocalExamples, by_group, recentred
from fedsurf.unrolled.transferable.newton import LocalProblem, problems_of
from fedsurf.unrolled.transferable.rebuilt import View
from fedsurf.unrolled.transferable.summaries import (
    PROGRESS_DECAY,
    Contribution,
    Curvature,
    common_centre,
    contributions,
    curvature,
    message_layout,
    no_progress,
    varying_count,
)

if TYPE_CHECKING:
    from fedsurf.unrolled.transferable.optimizer import TransferableAlgorithm

MIXING_LIMITS = {
    "correction": (0.35, 1.0),
    "keep": (0.35, 0.35),
    "stay": (0.7, 0.7),
    "memory": (0.7, 0.25),
}
"""How far κ, a, b and e may fall below 0 and rise above; without limits W could diverge."""
MASS_POWER = 0.5
"""The power of an agent's number of examples by which its head is weighed."""
SWINGING_EIGENVALUE = -0.56
"""Mixing is lazy if an eigenvalue of S is below this; in meta-training, all were above it."""
CALM_EIGENVALUE = -0.45
"""The smallest eigenvalue of lazy mixing, about that of a random 3-regular graph."""


@dataclass(frozen=True, kw_only=True)
class TransferState(State):
    """The state of the optimizer over a graph. `weights` are for readers: steps go on from `head`."""

    head: Tensor
    """W, class by class (`newton.by_feature`), `[agents, parameters]`."""
    previous: Tensor
    """W one round ago, class by class."""
    fitted: Tensor
    """V of the round before, class by class."""
    sums: Tensor
    progress: Tensor
    confidence_sums: Tensor
    moments: Tensor
    """Each agent's averages of the summaries, `[agents, …]`."""
    own_sums: Tensor
    own_moments: Tensor
    """Each agent's contribution to `sums` and to `moments`, `[agents, …]`."""
    spreads: Tensor
    """Each agent's average of the features' means and spreads, `[agents, 1 + 3 · features]`; empty where
    features are not standardised."""
    base: Tensor
    """Each agent's first centre in the present units, raw, `[agents, features]`."""
    unit: Tensor
    """Each agent's unit of each feature, raw, `[agents, features]`; without columns for 1."""
    centre: Tensor
    """Each agent's centre, raw, `[agents, features]`."""
    varying: Tensor
    axes: Tensor
    values: Tensor
    rest: Tensor
    """The number of features that vary, and the curvature, as each agent estimates them, `[agents, …]`."""
    rounds: int

    @property
    def curvature(self) -> Curvature:
        """Each agent's estimate of the second moment of all agents' examples."""
        return Curvature(self.axes, self.values, self.rest)


def first_state(
    algorithm: TransferableAlgorithm, task: Task, network: Network, spreads: Tensor, like: Tensor
) -> TransferState:
    """Start at W = 0, with summaries of each agent's own examples from their mean."""
    unit, base = spreads, None
    if algorithm.standardising:
        base, unit = algorithm.units(like.dtype, spreads)
    directions = algorithm.directions(network, like)
    view = View.of(task.train, task.classes, directions, (base, unit))
    base = view.base if base is None else base
    algorithm.memory.put("view", (task.train, base, unit), view)
    own = contributions(view.examples, view.groups, view.sketch, directions, centred=True)
    zero = own.sums.new_zeros(task.agents, algorithm.model.parameters)
    state = TransferState(
        zero,
        head=zero,
        previous=zero,
        fitted=zero,
        **own._asdict(),
        progress=no_progress(task.agents, task.classes, zero),
        confidence_sums=algorithm.no_confidence(zero),
        own_sums=own.sums,
        own_moments=own.moments,
        spreads=spreads,
        base=base,
        unit=unit,
        centre=base,
        varying=zero[:, 0],
        axes=zero,
        values=zero,
        rest=zero,
        rounds=0,
    )
    return _with_curvature(state, own, directions)


def round_over_graph(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    task: Task,
    network: Network,
    streams: Streams,
) -> TransferState:
    """Take one round over a graph."""
    estimate = algorithm.estimate(state.sums, state.progress, state.varying, network)
    when = schedule(state.rounds, algorithm.rounds, GRAPH_CALLS, state.head)
    directions = algorithm.directions(network, state.head)
    groups, own_problems = problems(algorithm, state, task, directions)
    heard = neighbour_share(network).to(state.head)
    work = algorithm.local_update(network, when)
    update = by_group(work, groups, own_problems, state.head, estimate, heard, streams)
    correction, weights = mixing_weights(update.mixing)
    sent = update.fitted
    if state.rounds:
        sent = weighted_sum(correction, state.head - state.fitted, plus=sent)
    summaries = [state.sums, torch.lerp(update.progress, state.progress, PROGRESS_DECAY)]
    sharing = state.rounds < algorithm.shared_rounds
    if sharing:
        summaries += [state.moments, state.spreads]
    mass = None
    if algorithm.weigh_agents:
        mass = task.train.counts[:, None].to(state.head) ** MASS_POWER
    parts = [sent if mass is None else mass * sent, torch.cat(summaries, 1)]
    if algorithm.optimizer.confidence is not None:
        parts.append(torch.lerp(update.confidence_sums, state.confidence_sums, PROGRESS_DECAY))
    if mass is not None:
        parts.append(mass)
    sizes = [part.shape[1] for part in summaries]
    others = sum(sizes[3:]) + sum(part.shape[1] for part in parts[2:])
    layout = message_layout(algorithm.model, sum(sizes[:2]), sum(sizes[2:3]), others)
    mixed = network.mix_parts(*parts, layout=layout)
    head, averages, *rest = mix_lazily(network, parts, mixed)
    if mass is not None:
        head = head / rest.pop()
    sums, progress, *shared = torch.split(averages, [part.shape[1] for part in summaries], 1)
    # No parameter acts on these: without detaching, derivatives would be taken of all examples.
    sums, shared = sums.detach(), [part.detach() for part in shared]
    state = replace(
        state,
        head=weighted_sum(weights, head, sent, state.head, state.previous),
        previous=state.head,
        fitted=update.fitted,
        sums=sums,
        progress=progress,
        confidence_sums=rest[0] if rest else state.confidence_sums,
        rounds=state.rounds + 1,
    )
    return _recentred(algorithm, state, task, network, *shared) if sharing else state


def _recentred(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    task: Task,
    network: Network,
    moments: Tensor,
    spreads: Tensor,
) -> TransferState:
    """Move the centres to the averaged ones, in the averaged units; the agents' summaries change with them.

    The averages change by as much, so that they stay averages of what agents send (dynamic average
    consensus).
    """
    facts = network.facts
    if algorithm.standardising:
        degrees = facts.degrees[:, None].to(spreads.device)
        heard = (1 + state.rounds * degrees).clamp(max=facts.agents)
        base, unit = algorithm.units(task.train.dtype, spreads, heard)
        state = replace(state, base=base, unit=unit, centre=base)
    else:
        centre = common_centre(moments, state.sums, algorithm.model.features)
        state = replace(state, centre=centre)
    directions = algorithm.directions(network, state.head)
    groups, examples = _centred(algorithm, state, task, directions)
    sketch = _view(algorithm, state, task, directions).sketch
    own = contributions(examples, groups, sketch, directions, centred=False)
    sums = state.sums + own.sums - state.own_sums
    moments = (moments + own.moments).sub_(state.own_moments)
    state = _with_curvature(state, Contribution(sums, moments), directions)
    return replace(state, own_sums=own.sums, own_moments=own.moments, spreads=spreads)


def problems(
    algorithm: TransferableAlgorithm, state: TransferState, task: Task, directions: Tensor
) -> tuple[Groups, tuple[LocalProblem, ...]]:
    """Return the groups of agents, and their problems, made anew where they are not remembered."""

    def make() -> tuple[Groups, tuple[LocalProblem, ...]]:
        groups, examples = _centred(algorithm, state, task, directions)
        return groups, problems_of(examples, groups, state.curvature)

    key = (task.train, state.base, state.unit, state.centre, state.axes)
    found = algorithm.memory.get("problems", key, make)
    if state.rounds >= algorithm.shared_rounds:  # centres move no more
        algorithm.memory.forget("view", "centred")
    return found


def _view(
    algorithm: TransferableAlgorithm, state: TransferState, task: Task, directions: Tensor
) -> View:
    def make() -> View:
        return View.of(task.train, task.classes, directions, (state.base, state.unit))

    return algorithm.memory.get("view", (task.train, state.base, state.unit), make)


def _centred(
    algorithm: TransferableAlgorithm, state: TransferState, task: Task, directions: Tensor
) -> tuple[Groups, tuple[LocalExamples, ...]]:
    """Return the groups of agents, and their examples from the present centres."""

    def make() -> tuple[Groups, tuple[LocalExamples, ...]]:
        view = _view(algorithm, state, task, directions)
        if state.rounds == 0 or algorithm.standardising:  # the base is the centre
            return view.groups, view.examples
        return view.groups, recentred(view.examples, view.groups, state.centre)

    key = (task.train, state.base, state.unit, state.centre)
    return algorithm.memory.get("centred", key, make)


def _with_curvature(state: TransferState, known: Contribution, directions: Tensor) -> TransferState:
    """Return the state with averaged summaries of data, and the curvature that they tell."""
    varying = varying_count(*known, directions, state.unit)
    axes, values, rest = curvature(*known, directions, varying)
    return replace(state, **known._asdict(), varying=varying, axes=axes, values=values, rest=rest)


def neighbour_share(network: Network) -> Tensor:
    """Return the share of the agents whose heads each mixes in a round, with its own, `[agents, 1]`."""
    return ((1 + network.facts.degrees) / network.facts.agents)[:, None]


def mixing_weights(mixing: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the controls `[agents, MIXING]`: κ, `[agents, 1]`, and the weights of Sφ, φ, W and W_prev."""
    below, above = (
        torch.tensor(limits, dtype=mixing.dtype, device=mixing.device)
        for limits in zip(*MIXING_LIMITS.values(), strict=True)
    )
    mixing = bounded(mixing, below, above)
    memory = mixing[:, 1:]
    return mixing[:, :1], torch.cat([1 - memory.sum(1, keepdim=True), memory], 1)


def bounded(value: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Keep values between −below and above; unlike tanh it keeps a slope for large values in float32."""
    return value / (1 + value.abs() / torch.where(value < 0, below, above))


def mix_lazily(network: Network, sent: Sequence[Tensor], mixed: Sequence[Tensor]) -> list[Tensor]:
    """Return (1 − s) `mixed` + s `sent` with the share s that the network needs; `mixed` is S · `sent`."""
    share = laziness(network)
    if not share:
        return list(mixed)
    return [torch.lerp(new, own, share) for own, new in zip(sent, mixed, strict=True)]


def laziness(network: Network) -> float:
    """Return s, the share that agents keep of what they send; 0 on most graphs."""
    lowest = network.facts.spectrum.lowest_eigenvalue
    return 0.0 if lowest >= SWINGING_EIGENVALUE else (CALM_EIGENVALUE - lowest) / (1 - lowest)


def weighted_sum(weights: Tensor, *terms: Tensor, plus: Tensor | None = None) -> Tensor:
    """Return plus + Σ_k weights[:, k] · terms[k], row by row: `weights[rows, terms]`, a term `[rows, columns]`.

    Autograd would keep and pass over several long matrices for every term; this keeps the terms only. It
    is differentiable once.
    """
    total: Tensor = _WeightedSum.apply(weights, plus, *terms)  # type: ignore[no-untyped-call]
    return total


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, plus: Tensor | None, *terms: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *terms)
        first = weights[:, :1], terms[0]
        total = torch.mul(*first) if plus is None else torch.addcmul(plus, *first)
        for place, term in enumerate(terms[1:], 1):
            total.addcmul_(weights[:, place, None], term)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weights, *terms = ctx.saved_tensors
        product = torch.empty_like(slope)
        of_weights = [torch.mul(slope, term, out=product).sum(1) for term in terms]
        of_terms = [
            weights[:, place, None] * slope if needed else None
            for place, needed in enumerate(ctx.needs_input_grad[2:])
        ]
        of_plus = slope if ctx.needs_input_grad[1] else None
        return torch.stack(of_weights, 1), of_plus, *of_terms
