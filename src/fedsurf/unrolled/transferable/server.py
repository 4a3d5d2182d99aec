"""One round of the transferable layer through a server: a download, local work, an upload, and memory.

The server sends W and its averages of the summaries; the called agents fit W to their examples and send
V and their summaries. With the mean V̄ of what they send, W⁺ = (1 − b − e) V̄ + bW + eW_prev; the result
of the run is a running average of W, of which a is the memory. The server keeps averages over all messages
so far; agents keep nothing that they hear but the units of the features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsurf.network import Network
from fedsurf.tasks.task import Task
from fedsurf.unrolled.transferable.controller import schedule
from fedsurf.unrolled.transferable.graph import bounded, head_mass
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
    called, features = network.call(), algorithm.model.features
    directions = algorithm.directions(network, state.head)
    if algorithm.standardising and state.reports:
        # Only the called agents that do not know the units need them.
        new, units = ~state.informed, torch.cat(algorithm.units(task, state.spreads), 1)
        network.download(units[0], called[new[called]], among=new)
    message = [state.fitted[0], state.sums[0], state.progress[0], state.moments[0]]
    sizes = [len(part) for part in message]
    received = network.download(torch.cat(message), called)
    head, sums, progress, moments = torch.split(received, sizes, 1)
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    groups, examples = of_agents(state.groups, state.examples, called)
    own = Contribution(state.own_sums[called], state.own_moments[called])
    if state.reports:
        examples = recentred(examples, groups, common_centre(moments, sums, features))
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
    received = network.upload(torch.cat(reply, 1), called)
    sizes.append(update.confidence_sums.shape[1])
    head, sums, progress, moments, confidence_sums = torch.split(received.mean(0), sizes)
    if algorithm.weigh_agents:
        mass = head_mass(received[:, sizes[0] + sizes[1] - SUMS_SIZE])
        head = mass @ received[:, : sizes[0]] / mass.sum()
    sums, moments = sums.detach(), moments.detach()  # no parameter acts on them
    # Agents need not send these controls: the server can compute them from both messages.
    keep, stay, old = server_weights(update.mixing)
    head = (1 - stay - old) * head + stay * state.fitted[0] + old * state.previous[0]
    average = torch.lerp(head, state.head[0], keep)
    reports = state.reports + len(called)
    share, decay = len(called) / reports, PROGRESS_DECAY if state.reports else 0.0
    all_sums = torch.lerp(state.sums[0], sums, share)
    all_moments = torch.lerp(state.moments[0], moments, share)
    if algorithm.standardising and state.rounds <= algorithm.shared_rounds:
        # The units changed before this round: sums that depend on them are those of this round.
        each = all_sums[-SUMS_SIZE] / sums[-SUMS_SIZE].clamp(min=1e-6)
        all_sums = torch.cat([all_sums[: 1 - SUMS_SIZE], sums[1 - SUMS_SIZE :]])
        all_moments = torch.cat([all_moments[:features], each * moments[features:]])
    unit = None if examples[0].unit is None else examples[0].unit[:1]
    varying = varying_count(all_sums[None], all_moments[None], directions, unit)[0]
    state = replace(
        state,
        informed=state.informed.index_fill(0, called, bool(state.reports)),
        head=average.expand(network.nodes, -1),
        previous=state.fitted,
        fitted=head.expand(network.nodes, -1),
        sums=_at_server(state.sums, all_sums),
        progress=_at_server(state.progress, torch.lerp(progress, state.progress[0], decay)),
        confidence_sums=_at_server(
            state.confidence_sums, torch.lerp(confidence_sums, state.confidence_sums[0], decay)
        ),
        moments=_at_server(state.moments, all_moments),
        varying=_at_server(state.varying, varying),
        reports=reports,
        rounds=state.rounds + 1,
    )
    if not algorithm.standardising or state.rounds > algorithm.shared_rounds:
        return state
    return _with_new_units(algorithm, state, task, called, network)


def server_weights(mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and e, scalars: the means of the called agents' controls, `[agents, MIXING]`, bounded."""
    one = torch.ones_like(mixing)
    _, keep, stay, memory = bounded(mixing, one, one).mean(0).unbind()
    # The agents' heads keep some weight whatever the features; without it W diverges.
    shrink = MAX_OLD_WEIGHT / (stay + memory).clamp(min=MAX_OLD_WEIGHT)
    return keep, shrink * stay, shrink * memory


def _with_new_units(
    algorithm: TransferableAlgorithm,
    state: TransferState,
    task: Task,
    called: Tensor,
    network: Network,
) -> TransferState:
    """Receive the spreads of the called agents' features; then all agents need new units."""
    own = network.upload(state.own_spreads[called], called)
    spreads = pooled_spreads(state.spreads[0], own)[None]
    examples = algorithm.local_examples(task, state.groups, spreads)
    directions = algorithm.directions(network, state.head)
    return replace(
        state,
        spreads=spreads,
        informed=torch.zeros_like(state.informed),
        sketch=sketches(examples, state.groups, directions),
        examples=examples,
    )


def _at_server(values: Tensor, server: Tensor) -> Tensor:
    return torch.cat([server[None], values[1:]])
