"""One round of the transferable layer through a server: a message, local work and replies, and memory.

With the symbols of `optimizer`: the server sends W and its averages of the summaries; the called agents fit
W to their examples and send V, their summaries, and their controls of mixing. With the mean V̄ of their heads,
W⁺ = (1 − b − e) V̄ + bW + eW_prev; the result of the run is a running average, W̄⁺ = (1 − a) W⁺ + a W̄. The
server averages the summaries of all messages so far; of what they receive, agents keep only the units of
the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import ServerState
from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.network.network import Called
from fedsurf.network.wire import Layout, Sections
from fedsurf.tasks.groups import join_groups
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.controller import schedule
from fedsurf.unrolled.transferable.graph import MASS_POWER, bounded
from fedsurf.unrolled.transferable.local import (
    by_group,
    own_spreads,
    pooled_spreads,
    recentred,
    without_squared_means,
)
from fedsurf.unrolled.transferable.newton import problems_of
from fedsurf.unrolled.transferable.rebuilt import View, parts_of
from fedsurf.unrolled.transferable.summaries import (
    PROGRESS_DECAY,
    SUMS_SIZE,
    common_centre,
    contributions,
    curvature,
    message_layout,
    no_progress,
    varying_count,
)

if TYPE_CHECKING:
    from fedsurf.unrolled.transferable.optimizer import TransferableAlgorithm

MAX_OLD_WEIGHT = 0.9
"""The largest weight of a server's older heads, compared with the agents' heads."""


@dataclass(frozen=True, kw_only=True)
class TransferServerState(ServerState):
    """The state of the optimizer through a server. What the server has is `[servers, …]`."""

    head: Tensor
    """W's running average, class by class, `[servers, parameters]`."""
    previous: Tensor
    """W one round ago."""
    fitted: Tensor
    """W."""
    sums: Tensor
    progress: Tensor
    confidence_sums: Tensor
    moments: Tensor
    """The server's averages of the summaries."""
    varying: Tensor
    """The number of features that vary according to them, `[servers]`."""
    spreads: Tensor
    """The sums of the features' means and spreads, float64 `[servers, 1 + 3 · features]`, or empty."""
    base: Tensor
    unit: Tensor
    """Each agent's first centre and unit of each feature, raw, `[agents, features]`; `unit` may be empty."""
    informed: Tensor
    """Whether each agent knows the units that the server has found, bool `[all agents]`."""
    reports: int
    """The number of replies that the server has received."""
    rounds: int


def first_call(
    algorithm: TransferableAlgorithm, task: Task, network: Network, spreads: Tensor, like: Tensor
) -> TransferServerState:
    """Start at W = 0; agents know the units of their own examples."""
    p, k = algorithm.directions(network, like).shape
    numbers = p * (p + 1) // 2 if k == p else k * p
    base, unit = (like.new_empty(task.agents, 0),) * 2
    if algorithm.standardising:
        base, unit = algorithm.units(like.dtype, spreads)
    zero = like.new_zeros(network.servers, algorithm.model.parameters)
    return TransferServerState(
        zero,
        head=zero,
        previous=zero,
        fitted=zero,
        sums=zero.new_zeros(network.servers, task.classes + SUMS_SIZE),
        progress=no_progress(network.servers, task.classes, zero),
        confidence_sums=algorithm.no_confidence(zero),
        moments=zero.new_zeros(network.servers, p + numbers),
        varying=zero.new_full((network.servers,), p),
        spreads=zero.new_zeros(network.servers, spreads.shape[1], dtype=torch.float64),
        base=base,
        unit=unit,
        informed=torch.zeros(network.facts.agents, dtype=torch.bool, device=CPU),
        reports=0,
        rounds=0,
    )


def round_through_server(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    task: Task,
    network: Network,
    streams: Streams,
) -> TransferServerState:
    """Take one round through a server."""
    called = network.attend(network.call())
    state = _with_units(algorithm, state, called, task, network)
    message = server_message(state)
    layout = _layout(algorithm, message)
    received = network.download(torch.cat(message, 1), called, layout=layout)
    sizes = [part.shape[1] for part in message]
    parts = torch.split(received, sizes, 1)
    reply = agent_reply(algorithm, state, called, parts, task, network, streams)
    sizes = [part.shape[1] for part in reply]
    layout = _layout(algorithm, reply)
    uploaded = network.upload(torch.cat(reply, 1), called, layout=layout)
    if len(uploaded):  # the server's; none if all called agents are gone
        state = server_update(algorithm, state, torch.split(uploaded, sizes, 1), network)
    # In the first rounds, all agents need new units after the round.
    sharing = algorithm.standardising and state.rounds < algorithm.shared_rounds
    informed = torch.zeros_like(state.informed)
    if not sharing:
        informed = state.informed.index_fill(0, called.agents, state.rounds > 0)
    return replace(
        state,
        informed=informed,
        reports=state.reports + len(called),
        rounds=state.rounds + 1,
    )


def _with_units(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    called: Called,
    task: Task,
    network: Network,
) -> TransferServerState:
    """Let the server tell the called agents that do not know them the features' units."""
    if not (algorithm.standardising and state.reports):
        return state
    new = ~state.informed
    fresh = called.only(new, network.agent_rows(network.ids))
    units = torch.cat(algorithm.units(task.train.dtype, state.spreads), 1)
    layout = [Sections(units.shape[1], 1)]
    received = network.download(units, fresh, among=new, layout=layout)
    rows = fresh.here.to(received.device)
    base, unit = (
        one.index_copy(0, rows, values)
        for one, values in zip((state.base, state.unit), received.chunk(2, 1), strict=True)
    )
    return replace(state, base=base, unit=unit) if len(rows) else state


def _layout(algorithm: TransferableAlgorithm, parts: Sequence[Tensor]) -> Layout:
    """Return the sections of the server's message or of a reply."""
    _, sums, progress, moments, *others = (part.shape[1] for part in parts)
    return message_layout(algorithm.model, sums + progress, moments, sum(others))


def server_message(state: TransferServerState) -> list[Tensor]:
    """Return the parts of the server's message to every called agent, each `[servers, …]`."""
    return [state.fitted, state.sums, state.progress, state.moments]


def agent_reply(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    called: Called,
    received: tuple[Tensor, ...],
    task: Task,
    network: Network,
    streams: Streams,
) -> list[Tensor]:
    """Fit the received head at the called agents; return the parts of their replies, each `[called, …]`."""
    head, sums, progress, moments = received
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    directions = algorithm.directions(network, head)
    view = _called_view(algorithm, state, called, task, directions)
    groups, examples, sketch = view
    if state.reports:
        centre = common_centre(moments, sums, algorithm.model.features)
        examples = recentred(examples, groups, centre)
        own = contributions(examples, groups, sketch, directions, centred=False)
    else:
        own = contributions(examples, groups, sketch, directions, centred=True)
        sums, moments = own
    unit = state.unit[called.here.to(head.device)]
    varying = varying_count(sums, moments, directions, unit)
    problems = problems_of(examples, groups, curvature(sums, moments, directions, varying))
    when = schedule(state.rounds, algorithm.rounds, len(called), head)
    update = by_group(
        algorithm.local_update(network, when),
        groups,
        problems,
        head,
        algorithm.estimate(sums, progress, varying, network),
        head.new_full((len(head), 1), len(called) / network.facts.agents),
        network.agent_rows(streams)[called.here],
    )
    reply = [update.fitted, own.sums, update.progress, own.moments, update.confidence_sums]
    return [*reply, update.mixing[:, 1:], _own_units(algorithm, state, view, task, called)]


def _called_view(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    called: Called,
    task: Task,
    directions: Tensor,
) -> View:
    """Return the examples of the called agents that live here; remembered where these are all."""
    every = len(called.here) == task.agents
    rows = called.here.to(state.base.device)

    def make() -> View:
        base = state.base[rows] if algorithm.standardising else None
        units = (base, state.unit[rows])
        here = None if every else called.here
        return View.of(task.train, task.classes, directions, units, here)

    if not every:
        return make()
    return algorithm.memory.get("view", (task.train, state.base, state.unit), make)


def _own_units(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    view: View,
    task: Task,
    called: Called,
) -> Tensor:
    """Return what agents send of the spreads of their features in this round, or nothing."""
    if not algorithm.standardising or state.rounds >= algorithm.shared_rounds:
        return view.sketch.new_empty(len(view.sketch), 0)
    groups, parts = parts_of(task.train, called.here)
    return without_squared_means(join_groups([own_spreads(part) for part in parts], groups))


def server_update(
    algorithm: TransferableAlgorithm,
    state: TransferServerState,
    received: tuple[Tensor, ...],
    network: Network,
) -> TransferServerState:
    """Mix the mean of the called agents' heads with earlier ones, and average their summaries."""
    heads, each_sums, _, _, _, mixing, spreads = received
    called, features = len(heads), algorithm.model.features
    head, sums, progress, moments, confidence_sums = (part.mean(0) for part in received[:5])
    if algorithm.weigh_agents:
        mass = each_sums[:, -SUMS_SIZE] ** MASS_POWER
        head = mass @ heads / mass.sum()
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    keep, stay, old = server_weights(mixing)
    head = (1 - stay - old) * head + stay * state.fitted[0] + old * state.previous[0]
    average = torch.lerp(head, state.head[0], keep)
    share = called / (state.reports + called)
    decay = PROGRESS_DECAY if state.reports else 0.0
    all_sums = torch.lerp(state.sums[0], sums, share)
    all_moments = torch.lerp(state.moments[0], moments, share)
    known = state.spreads
    if algorithm.standardising and state.rounds <= algorithm.shared_rounds:
        # The units changed before this round: sums that depend on them are those of this round.
        each = all_sums[-SUMS_SIZE] / sums[-SUMS_SIZE].clamp(min=1e-6)
        all_sums = torch.cat([all_sums[: 1 - SUMS_SIZE], sums[1 - SUMS_SIZE :]])
        all_moments = torch.cat([all_moments[:features], each * moments[features:]])
    if spreads.shape[1]:
        known = pooled_spreads(known[0], spreads)[None]
    unit = head.new_empty(1, 0)
    if algorithm.standardising:
        unit = algorithm.units(head.dtype, known)[1]
    directions = algorithm.directions(network, head)
    return replace(
        state,
        head=average[None],
        previous=state.fitted,
        fitted=head[None],
        sums=all_sums[None],
        progress=torch.lerp(progress, state.progress[0], decay)[None],
        confidence_sums=torch.lerp(confidence_sums, state.confidence_sums[0], decay)[None],
        moments=all_moments[None],
        varying=varying_count(all_sums[None], all_moments[None], directions, unit),
        spreads=known,
    )


def server_weights(mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and e, scalars: the means of the called agents' controls, `[called, 3]`, bounded."""
    one = torch.ones_like(mixing)
    keep, stay, memory = bounded(mixing, one, one).mean(0).unbind()
    # The agents' heads keep some weight whatever the features; without it W diverges.
    shrink = MAX_OLD_WEIGHT / (stay + memory).clamp(min=MAX_OLD_WEIGHT)
    return keep, shrink * stay, shrink * memory
