"""One round of the transferable layer through a server: a download, local work, an upload, and memory.

With the symbols of `optimizer`: the server sends W and its averages of the summaries; the called agents fit
W to their examples and send V and their summaries. With the mean V̄ of their heads,
W⁺ = (1 − b − e) V̄ + bW + eW_prev; the result of the run is a running average, W̄⁺ = (1 − a) W⁺ + a W̄. The
server averages the summaries of all messages so far; of what they receive, agents keep only the units of
the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsurf.network import Network
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.controller import schedule
from fedsurf.unrolled.transferable.graph import MASS_POWER, bounded
from fedsurf.unrolled.transferable.local import (
    by_group,
    of_agents,
    pooled_spreads,
    recentred,
    sketches,
)
from fedsurf.unrolled.transferable.newton import local_problems
from fedsurf.unrolled.transferable.summaries import (
    PROGRESS_DECAY,
    SUMS_SIZE,
    Contribution,
    common_centre,
    contributions,
    varying_count,
)

if TYPE_CHECKING:
    from fedsurf.unrolled.transferable.optimizer import TransferableAlgorithm, TransferState

MAX_OLD_WEIGHT = 0.9
"""The largest weight of a server's older heads, compared with the agents' heads."""


def round_through_server(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    task: Task,
    network: Network,
    generator: torch.Generator,
) -> TransferState:
    """Take one round through a server."""
    called = network.call()
    if algorithm.standardising and state.reports:
        # Only the called agents that do not know the units need them.
        new, units = ~state.informed, torch.cat(algorithm.units(task, state.spreads), 1)
        network.download(units[0], called[new[called]], among=new)
    message = [state.fitted[0], state.sums[0], state.progress[0], state.moments[0]]
    received = network.download(torch.cat(message), called)
    parts = torch.split(received, [len(part) for part in message], 1)
    reply, mixing, unit = _called_work(algorithm, state, called, parts, network, generator)
    received, sizes = network.upload(torch.cat(reply, 1), called), [part.shape[1] for part in reply]
    # Agents need not send the controls of mixing: the server can compute them from both messages.
    state = _server_update(algorithm, state, received, sizes, mixing, unit, network)
    state = replace(state, informed=state.informed.index_fill(0, called, state.rounds > 1))
    if not algorithm.standardising or state.rounds > algorithm.shared_rounds:
        return state
    # With the spreads of the called agents' features, all agents need new units.
    own = network.upload(state.own_spreads[called], called)
    spreads = pooled_spreads(state.spreads[0], own)[None]
    examples = algorithm.local_examples(task, state.groups, spreads)
    return replace(
        state,
        spreads=spreads,
        informed=torch.zeros_like(state.informed),
        sketch=sketches(examples, state.groups, algorithm.directions(network, state.head)),
        examples=examples,
    )


def _called_work(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    called: Tensor,
    received: Sequence[Tensor],
    network: Network,
    generator: torch.Generator,
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Fit the server's head at the called agents; return their reply, their mixing, and the unit."""
    head, sums, progress, moments = received
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    directions = algorithm.directions(network, state.head)
    groups, examples = of_agents(state.groups, state.examples, called)
    own = Contribution(state.own_sums[called], state.own_moments[called])
    if state.reports:
        centre = common_centre(moments, sums, algorithm.model.features)
        examples = recentred(examples, groups, centre)
        own = contributions(examples, groups, state.sketch[called], directions, centred=False)
    else:
        sums, moments = own
    varying, problems = local_problems(examples, groups, Contribution(sums, moments), directions)
    when = schedule(state.rounds, algorithm.rounds, len(called), head)
    update = by_group(
        algorithm.local_update(network, when, generator),
        groups,
        problems,
        head,
        algorithm.estimate(sums, progress, varying, network),
        head.new_full((len(called), 1), len(called) / network.agents),
    )
    reply = [update.fitted, own.sums, update.progress, own.moments, update.confidence_sums]
    unit = examples[0].unit
    return reply, update.mixing, None if unit is None else unit[:1]


def _server_update(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    received: Tensor,
    sizes: list[int],
    mixing: Tensor,
    unit: Tensor | None,
    network: Network,
) -> TransferState:
    """Mix the mean of the called agents' heads with earlier ones, and average their summaries."""
    called, features = len(mixing), algorithm.model.features
    head, sums, progress, moments, confidence_sums = torch.split(received.mean(0), sizes)
    if algorithm.weigh_agents:
        mass = received[:, sizes[0] + sizes[1] - SUMS_SIZE] ** MASS_POWER
        head = mass @ received[:, : sizes[0]] / mass.sum()
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    keep, stay, old = server_weights(mixing)
    head = (1 - stay - old) * head + stay * state.fitted[0] + old * state.previous[0]
    average = torch.lerp(head, state.head[0], keep)
    reports = state.reports + called
    share, decay = called / reports, PROGRESS_DECAY if state.reports else 0.0
    all_sums = torch.lerp(state.sums[0], sums, share)
    all_moments = torch.lerp(state.moments[0], moments, share)
    if algorithm.standardising and state.rounds <= algorithm.shared_rounds:
        # The units changed before this round: sums that depend on them are those of this round.
        each = all_sums[-SUMS_SIZE] / sums[-SUMS_SIZE].clamp(min=1e-6)
        all_sums = torch.cat([all_sums[: 1 - SUMS_SIZE], sums[1 - SUMS_SIZE :]])
        all_moments = torch.cat([all_moments[:features], each * moments[features:]])
    directions = algorithm.directions(network, state.head)
    varying = varying_count(all_sums[None], all_moments[None], directions, unit)[0]
    progress = torch.lerp(progress, state.progress[0], decay)
    confidence_sums = torch.lerp(confidence_sums, state.confidence_sums[0], decay)
    return replace(
        state,
        head=average.expand(network.nodes, -1),
        previous=state.fitted,
        fitted=head.expand(network.nodes, -1),
        sums=_at_server(state.sums, all_sums),
        progress=_at_server(state.progress, progress),
        confidence_sums=_at_server(state.confidence_sums, confidence_sums),
        moments=_at_server(state.moments, all_moments),
        varying=_at_server(state.varying, varying),
        reports=reports,
        rounds=state.rounds + 1,
    )


def server_weights(mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and e, scalars: the means of the called agents' controls, `[agents, MIXING]`, bounded."""
    one = torch.ones_like(mixing)
    _, keep, stay, memory = bounded(mixing, one, one).mean(0).unbind()
    # The agents' heads keep some weight whatever the features; without it W diverges.
    shrink = MAX_OLD_WEIGHT / (stay + memory).clamp(min=MAX_OLD_WEIGHT)
    return keep, shrink * stay, shrink * memory


def _at_server(values: Tensor, server: Tensor) -> Tensor:
    return torch.cat([server[None], values[1:]])
