"""A transferable layer: an unrolled optimizer for softmax heads on any data, over any network.

U-DGD's perceptron sees raw weights and raw examples, so it fits the features and the classes that it
was meta-trained on. This layer keeps the structure, local work and then learned mixing, but computes
what every learner must compute, gradients and curvature, and learns only how to use them. In a
round, every agent

1. hears what kind of problem the federation has (`signals`), from which a small perceptron sets the
   knobs of the round and another one, class by class, a gate and an offset of the logits by how
   unusual the class is at this agent (`controller`);
2. takes Newton-like steps on its examples, all or a mini-batch, from W to V (`local_fit`), with the
   second moment of all agents' features, as far as it knows it (`curvature`); two over a graph, four
   for a server;
3. sends φ = V + κ (W − V_prev), its sums and its progress, and in the first rounds the sum of its
   examples and its sketch of the second moment;
4. mixes with memory: W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev.

S is a little lazier than the network's where that would swing (`laziness`).

With κ = 1 and no memory that is Exact Diffusion with Newton-like steps. Through a server, the agents
that it calls do 1 to 3 from the server's W, without κ, and the server does 4 with the mean of what
they send, without a; what it returns in the end is a running average of its W, of which a is the
memory. All parameters are shared by agents, classes and features: permuting agents or classes, moving
the features or changing their unit changes nothing but the names. Rotating or permuting the features
changes the random directions of the sketch only.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import State, own_state
from fedsurf.algorithms.checks import check_batch_size, check_fits, check_head_fits
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.cohorts import divided, join, parts_of
from fedsurf.tasks.task import Task
from fedsurf.unrolled import memory
from fedsurf.unrolled.config import ROUNDS_PER_LAYER, Scaling, check_rounds, layer_count
from fedsurf.unrolled.transferable.calibration import (
    Standards,
    own_spreads,
    pooled_spreads,
    without_squared_means,
)
from fedsurf.unrolled.transferable.cohorts import Cohorts
from fedsurf.unrolled.transferable.confidence import SURENESS, known_of
from fedsurf.unrolled.transferable.controller import NOBODY, schedule
from fedsurf.unrolled.transferable.curvature import WIDTH, WIDTH_THROUGH_SERVER, directions
from fedsurf.unrolled.transferable.feature_range import check_range
from fedsurf.unrolled.transferable.laziness import lazily
from fedsurf.unrolled.transferable.local_fit import Outlook, by_feature
from fedsurf.unrolled.transferable.local_work import LocalWork
from fedsurf.unrolled.transferable.moments import centre, curvature, in_new_units, varying
from fedsurf.unrolled.transferable.summaries import FORGETTING, SUMS, Heard, hear, no_progress
from fedsurf.unrolled.transferable.transfer_state import TransferState
from fedsurf.unrolled.transferable.weighted_sum import weighted_sum

if TYPE_CHECKING:
    from fedsurf.unrolled.transferable.optimizer import Transferable

LOCAL_STEPS, LOCAL_STEPS_THROUGH_SERVER = 2, 4
SHARED_ROUNDS, SHARED_ROUNDS_FOR_UNITS = 3, 4
"""In how many rounds agents over a graph tell the sum and the sketch of their examples; and, wherever they
standardise, in how many also the spreads of the features: in units too different, heads do not mix."""


@dataclass(frozen=True)
class TransferableAlgorithm:
    """A transferable optimizer that trains a certain head in a certain number of rounds.

    Attributes
    ----------
    optimizer : Transferable
        The learned parameters.
    model : SoftmaxHead
        What the agents train.
    rounds : int
        The communication rounds of a whole run. The optimizer knows from the start how many.
    scaling : {"whole", "features", "auto"}
        whole: features share one unit, and agents soon look at them from a common centre; features:
        they are standardised by the mean and the standard deviation of each in the federation, of
        which agents hear in the first rounds; auto: only those that these say are in different units
        (`calibration`).
    batch_size : int or None
        How many of its examples, drawn anew in every round, an agent fits its head to; all of them
        where it has no more, and where None. What it tells of its data is of all of them.
    ease_rare : bool
        Whether steps of rare classes are damped less (`rarity`). Neither meta-training nor the tables
        of its results do so: their classes are of about one size.
    weigh_agents : bool
        Whether the heads of agents with more examples count for more where they are mixed (`memory`).
        Neither meta-training nor the tables of its results do so: most of their agents are of one size.
    """

    optimizer: "Transferable"
    model: SoftmaxHead
    rounds: int = 20
    scaling: Scaling = "whole"
    batch_size: int | None = None
    ease_rare: bool = False
    weigh_agents: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        check_batch_size(self.batch_size)
        if self.scaling not in get_args(Scaling):
            raise ValueError(
                f"scaling: got {self.scaling!r}, but it must be 'whole', 'features' or 'auto'"
            )

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return "SURF-T"

    @property
    def steps(self) -> int:
        """The number of layers: of two rounds each, the last of one if the rounds are odd."""
        return layer_count(self.rounds)

    @property
    def standardising(self) -> bool:
        """Whether agents find units for the features."""
        return self.scaling != "whole"

    @property
    def shared_rounds(self) -> int:
        """In how many rounds agents over a graph tell of their examples."""
        return SHARED_ROUNDS_FOR_UNITS if self.standardising else SHARED_ROUNDS

    def init(
        self,
        task: Task,
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - it starts at zero
    ) -> TransferState:
        """Start at W = 0; look at the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        if network.shift == "laplacian":
            raise ValueError(
                "network: got the shift operator 'laplacian', which does not average, but this "
                "optimizer mixes averages: use 'metropolis'"
            )
        members = divided(task.train)
        spreads = torch.empty(task.agents, 0, dtype=task.train.dtype)
        if self.standardising:
            parts = [own_spreads(part) for part in parts_of(task.train, members)]
            spreads = join(parts, members)
        cohorts = self._cohorts(task, members, spreads)
        known = self._directions(network, task.train.dtype)
        sketch = cohorts.sketch(known)
        own, own_moments = cohorts.contribution(known, sketch, centred=True)
        check_range(task.train, own_moments, own[:, 1 - SUMS])
        zero = own.new_zeros(network.nodes, self.model.parameters)
        told_spreads = without_squared_means(spreads)
        sums, moments = own, own_moments
        if network.server:
            sums, moments = (torch.cat([torch.zeros_like(v[:1]), v]) for v in (own, own_moments))
            spreads = spreads.new_zeros(1, spreads.shape[1], dtype=torch.float64)
        progress = no_progress(network.nodes, task.classes, own)
        outlooks: tuple[Outlook, ...] = ()
        vary = own.new_full((network.nodes,), self.model.features)
        if not network.server:  # when a server calls agents, they will know more
            vary = varying(own_moments, own, known, cohorts.unit)
            outlooks = cohorts.look(curvature(own_moments, own, known, vary))
        return TransferState(
            zero,
            head=zero,
            previous=zero,
            fitted=zero,
            sums=sums,
            progress=progress,
            sureness=zero.new_zeros(
                network.nodes, SURENESS * (self.optimizer.confidence is not None)
            ),
            moments=moments,
            varying=vary,
            own=own,
            own_moments=own_moments,
            sketch=sketch,
            cohorts=cohorts,
            outlooks=outlooks,
            reports=0,
            rounds=0,
            spreads=spreads,
            own_spreads=told_spreads,
            told=torch.zeros(network.agents, dtype=torch.bool),
        )

    def step(
        self,
        state: State,
        task: Task,
        network: Network,
        generator: torch.Generator,
    ) -> TransferState:
        """Apply the next layer; `generator` draws mini-batches, if any."""
        own = own_state(state, TransferState)
        if own.rounds >= self.rounds:
            raise ValueError(
                f"state: got one after {own.rounds} rounds, but this run has {self.rounds} rounds, "
                f"in {self.steps} steps"
            )
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            one_round = self._through_server if network.server else self._over_graph
            own = one_round(own, task, network, generator)
        weights = by_feature(own.head[:1] if network.server else own.head, self.model.features)
        if self.optimizer.confidence is not None:
            weights = weights * self.optimizer.confidence(self.known(own, network)).exp()
        return replace(own, weights=weights.expand(network.nodes, -1), steps=own.steps + 1)

    def known(self, state: TransferState, network: Network) -> Tensor:
        """Return what the confidence of heads depends on, after a layer: a row for each, or the server's."""
        heard_of = slice(1) if network.server else slice(None)
        heard = self._hear(
            state.sums[heard_of], state.progress[heard_of], state.varying[heard_of], network
        )
        last, rounds = state.rounds, self.rounds
        if network.server:
            called = state.reports / last
            share = state.head.new_full((1, 1), called / network.agents)
        else:
            called, share = NOBODY, self._heard_share(network).to(state.head)
        when = schedule(last - 1, rounds, called, state.head)
        return known_of(
            when,
            heard,
            state.sureness[heard_of],
            share,
            server=network.server,
        )

    def _over_graph(
        self, state: TransferState, task: Task, network: Network, generator: torch.Generator
    ) -> TransferState:
        heard = self._hear(state.sums, state.progress, state.varying, network)
        sharing = state.rounds < self.shared_rounds
        share = self._heard_share(network).to(state.head)
        worked = state.cohorts.work(
            self._work(network),
            schedule(state.rounds, self.rounds, NOBODY, state.head),
            state.outlooks,
            state.head,
            heard,
            share,
            generator,
        )
        correction, weights = memory.over_graph(worked.mixing)
        sent = worked.fitted
        if state.rounds:
            sent = weighted_sum(correction, state.head - state.fitted, plus=sent)
        seen = torch.lerp(worked.progress, state.progress, FORGETTING)
        told = [state.sums, seen]
        if sharing:
            told += [state.moments, state.spreads]
        mass = memory.mass(state.cohorts.count) if self.weigh_agents else None
        parts = [sent if mass is None else mass * sent, torch.cat(told, 1)]
        if self.optimizer.confidence is not None:
            parts.append(torch.lerp(worked.sureness, state.sureness, FORGETTING))
        if mass is not None:
            parts.append(mass)
        head, heard_of, *rest = lazily(network, parts, network.mix_parts(*parts))
        if mass is not None:
            head = head / rest.pop()
        sums, seen, *shared = torch.split(heard_of, [part.shape[1] for part in told], 1)
        # Nothing learned is in these: without this, derivatives would be taken of all examples.
        sums, shared = sums.detach(), [part.detach() for part in shared]
        head = weighted_sum(weights, head, sent, state.head, state.previous)
        state = replace(
            state,
            head=head,
            previous=state.head,
            fitted=worked.fitted,
            sums=sums,
            progress=seen,
            sureness=rest[0] if rest else state.sureness,
            rounds=state.rounds + 1,
        )
        if not sharing:
            return state
        moments, spreads = shared
        return self._recentred(state, task, moments, spreads, network)

    def _recentred(
        self, state: TransferState, task: Task, moments: Tensor, spreads: Tensor, network: Network
    ) -> TransferState:
        """Look from the centre that was heard of, in its units; what one tells of oneself changes with it.

        The averages that are under way change by as much, so that they stay averages of what agents
        tell (dynamic average consensus).
        """
        known, sketch = self._directions(network, state.head.dtype), state.sketch
        if self.standardising:
            heard = (1 + state.rounds * network.degrees[:, None]).clamp(max=network.agents)
            cohorts = self._cohorts(task, state.cohorts.members, spreads, heard)
            sketch = cohorts.sketch(known)
        else:
            cohorts = state.cohorts.about(centre(moments, state.sums, self.model.features))
        own, own_moments = cohorts.contribution(known, sketch, centred=False)
        sums = state.sums + own - state.own
        moments = (moments + own_moments).sub_(state.own_moments)
        vary = varying(moments, sums, known, cohorts.unit)
        return replace(
            state,
            sums=sums,
            moments=moments,
            varying=vary,
            own=own,
            own_moments=own_moments,
            sketch=sketch,
            spreads=spreads,
            cohorts=cohorts,
            outlooks=cohorts.look(curvature(moments, sums, known, vary)),
        )

    def _through_server(
        self, state: TransferState, task: Task, network: Network, generator: torch.Generator
    ) -> TransferState:
        called = network.call()
        if self.standardising and state.reports:
            new, found = ~state.told, self._standards(task, state.spreads)
            units = torch.cat([found.centre[0], found.unit[0]])
            network.download(units, called[new[called]], among=new)
        message = [state.fitted[0], state.sums[0], state.progress[0], state.moments[0]]
        sizes = [len(part) for part in message]
        received = network.download(torch.cat(message), called)
        head, sums, progress, moments = torch.split(received, sizes, 1)
        sums, moments = sums.detach(), moments.detach()  # nothing learned is in them
        known = self._directions(network, state.head.dtype)
        cohorts = state.cohorts.of_agents(called)
        own, own_moments = state.own[called], state.own_moments[called]
        if state.reports:
            cohorts = cohorts.about(centre(moments, sums, self.model.features))
            own, own_moments = cohorts.contribution(known, state.sketch[called], centred=False)
        else:
            sums, moments = own, own_moments
        vary = varying(moments, sums, known, cohorts.unit)
        heard = self._hear(sums, progress, vary, network)
        worked = cohorts.work(
            self._work(network),
            schedule(state.rounds, self.rounds, len(called), head),
            cohorts.look(curvature(moments, sums, known, vary)),
            head,
            heard,
            head.new_full((len(called), 1), len(called) / network.agents),
            generator,
        )
        reply = [worked.fitted, own, worked.progress, own_moments, worked.sureness]
        received = network.upload(torch.cat(reply, 1), called)
        sizes.append(worked.sureness.shape[1])
        head, sums, progress, moments, sure = torch.split(received.mean(0), sizes)
        if self.weigh_agents:
            mass = memory.mass(received[:, sizes[0] + sizes[1] - SUMS])
            head = mass @ received[:, : sizes[0]] / mass.sum()
        sums, moments = sums.detach(), moments.detach()  # nothing learned is in them
        # Agents need not tell these: they follow from what the server sent and what it received.
        keep, stay, old = memory.through_server(worked.mixing)
        head = (1 - stay - old) * head + stay * state.fitted[0] + old * state.previous[0]
        average = torch.lerp(head, state.head[0], keep)
        reports = state.reports + len(called)
        share = len(called) / reports
        forgetting = FORGETTING if state.reports else 0.0
        averages = (
            torch.lerp(state.sums[0], sums, share),
            torch.lerp(state.moments[0], moments, share),
        )
        if self.standardising and state.rounds <= SHARED_ROUNDS_FOR_UNITS:
            averages = in_new_units(sums, moments, averages, self.model.features)
        unit = None if cohorts.unit is None else cohorts.unit[:1]
        vary = varying(averages[1][None], averages[0][None], known, unit)[0]
        state = replace(
            state,
            told=state.told.index_fill(0, called, bool(state.reports)),
            head=average.expand(network.nodes, -1),
            previous=state.fitted,
            fitted=head.expand(network.nodes, -1),
            sums=_with_server(state.sums, averages[0]),
            progress=_with_server(
                state.progress, torch.lerp(progress, state.progress[0], forgetting)
            ),
            sureness=_with_server(state.sureness, torch.lerp(sure, state.sureness[0], forgetting)),
            moments=_with_server(state.moments, averages[1]),
            varying=_with_server(state.varying, vary),
            reports=reports,
            rounds=state.rounds + 1,
        )
        if not self.standardising or state.rounds > SHARED_ROUNDS_FOR_UNITS:
            return state
        return self._found_units(state, task, called, network)

    def _found_units(
        self, state: TransferState, task: Task, called: Tensor, network: Network
    ) -> TransferState:
        """Have the called agents tell a server of the spreads of their features: then all need new units."""
        own = network.upload(state.own_spreads[called], called)
        spreads = pooled_spreads(state.spreads[0], own)[None]
        cohorts = self._cohorts(task, state.cohorts.members, spreads)
        known = self._directions(network, state.head.dtype)
        return replace(
            state,
            spreads=spreads,
            told=torch.zeros_like(state.told),
            sketch=cohorts.sketch(known),
            cohorts=cohorts,
        )

    def _cohorts(
        self, task: Task, members: tuple[Tensor, ...], spreads: Tensor, heard: Tensor | int = 1
    ) -> Cohorts:
        """Look at the agents' examples, in the units that spreads, of so many agents, say, if any."""
        if not self.standardising:
            return Cohorts.of(task.train, task.classes, members)
        found, agents = self._standards(task, spreads, heard), task.train.agents
        centre, unit = (one.expand(agents, -1) for one in (found.centre, found.unit))
        return Cohorts.of(task.train, task.classes, members, centre, unit)

    def _standards(self, task: Task, spreads: Tensor, heard: Tensor | int = 1) -> Standards:
        every = self.scaling == "features"
        return Standards.of(spreads, task.train.dtype, every=every, agents=heard)

    def _hear(self, sums: Tensor, progress: Tensor, vary: Tensor, network: Network) -> Heard:
        return hear(sums, progress, vary, features=self.model.features, agents=network.agents)

    def _heard_share(self, network: Network) -> Tensor:
        """Return the share of the agents that each hears in a round, itself included, `[agents, 1]`."""
        return ((1 + network.degrees) / network.agents)[:, None]

    def _directions(self, network: Network, dtype: torch.dtype) -> Tensor:
        width = WIDTH_THROUGH_SERVER if network.server else WIDTH
        return directions(self.model.features, dtype, width)

    def _work(self, network: Network) -> LocalWork:
        optimizer = self.optimizer
        return LocalWork(
            optimizer.server if network.server else optimizer.graph,
            LOCAL_STEPS_THROUGH_SERVER if network.server else LOCAL_STEPS,
            self.batch_size,
            self.ease_rare,
            asks_sureness=optimizer.confidence is not None,
        )


def _with_server(values: Tensor, server: Tensor) -> Tensor:
    return torch.cat([server[None], values[1:]])
