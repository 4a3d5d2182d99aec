"""A transferable layer: an unrolled optimizer for softmax heads on any data, over any network.

U-DGD's perceptron sees raw weights and raw examples, so it fits the features and the classes that it
was meta-trained on. This layer keeps the structure, local work and then learned mixing, but computes
what every learner must compute, gradients and curvature, and learns only how to use them. In a round,
every agent goes from its head W, the weights of its softmax classifier, to the next one, W⁺. It

1. estimates the kind of problem from the summaries that it received (`summaries`); a small perceptron
   maps that to the controls of the round, and another one, class by class, maps how the class differs
   at this agent to a gate and an offset of the logits (`controller`);
2. takes Newton-like steps on its examples, all or a mini-batch, from W to V (`newton`), with its estimate
   of the second moment of all agents' features; two over a graph, four for a server;
3. sends φ = V + κ (W − V_prev), its summaries, and in the first rounds the sum of its examples and its
   sketch of the second moment; V_prev is the V of the round before;
4. mixes by the network's shift operator S, and with memory of W_prev, the W of the round before (`graph`):
   W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev.

κ, a, b and e are among the controls. With κ = 1 and no memory that is Exact Diffusion with Newton-like
steps. Through a server, the called agents do 1 to 3 from the server's W, without κ, and the server does 4
with the mean of what they send (`server`).

All parameters are shared by agents, classes and features: permuting agents or classes, moving the features
or changing their unit changes only the names. Rotating or permuting the features changes only the random
directions of the sketch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import ServerState, State, own_state
from fedsurf.algorithms.checks import check_batch_size, check_fits, check_head_fits
from fedsurf.common.checks import check_option
from fedsurf.common.streams import Streams
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.network.network import Called
from fedsurf.tasks.groups import group_agents, join_groups, split_examples
from fedsurf.tasks.task import Task
from fedsurf.unrolled.config import (
    CONSTRAINT_COUNT,
    DEFAULT_ROUNDS,
    ROUNDS_PER_LAYER,
    Scaling,
    TransferableConfig,
    check_averaging,
    check_rounds,
    check_rounds_left,
    layer_count,
)
from fedsurf.unrolled.transferable.confidence import (
    CONFIDENCE_SUMS,
    Confidence,
    confidence_inputs,
)
from fedsurf.unrolled.transferable.controller import GRAPH_CALLS, Controller, schedule
from fedsurf.unrolled.transferable.graph import neighbour_share, round_over_graph
from fedsurf.unrolled.transferable.local import (
    Groups,
    LocalExamples,
    check_range,
    feature_units,
    own_spreads,
    recentred,
)
from fedsurf.unrolled.transferable.newton import (
    LocalProblem,
    LocalUpdate,
    by_feature,
    local_update,
    problems_of,
)
from fedsurf.unrolled.transferable.rebuilt import Memory, View
from fedsurf.unrolled.transferable.server import round_through_server
from fedsurf.unrolled.transferable.summaries import (
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
    SUMS_SIZE,
    Contribution,
    Curvature,
    FederationEstimate,
    contributions,
    curvature,
    no_progress,
    sketch_directions,
    varying_count,
)

LOCAL_STEPS, SERVER_LOCAL_STEPS = 2, 4
"""Newton-like steps of a round, over a graph and through a server."""
SHARED_ROUNDS, UNIT_ROUNDS = 3, 4
"""The number of first rounds in which agents send the sum and the sketch of their examples. The second is for
standardising, where they also send the spreads of the features."""


class Transferable(nn.Module):
    """The learned parameters: a controller for graphs, one for servers, and perhaps a confidence.

    Parameters
    ----------
    config : TransferableConfig
        Its shape.
    generator : torch.Generator
        Draws the initial parameters.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead, Transferable, generator
    >>> from fedsurf.unrolled import TransferableConfig
    >>> optimizer = Transferable(TransferableConfig(), generator(0))
    >>> sum(parameter.numel() for parameter in optimizer.parameters())
    1976
    >>> optimizer.on(SoftmaxHead(features=64, classes=10), rounds=20).steps
    10
    """

    constraints = CONSTRAINT_COUNT

    def __init__(self, config: TransferableConfig, generator: torch.Generator) -> None:
        super().__init__()
        config.check()
        self.config = config
        self.graph = Controller(config.width, config.class_width, generator)
        self.server = Controller(config.width, config.class_width, generator)
        self.confidence: Confidence | None = None
        if config.confidence_width:
            self.confidence = Confidence(config.confidence_width, generator)

    def on(
        self,
        model: Model,
        rounds: int | None = None,
        scaling: Scaling = "whole",
        batch_size: int | None = None,
        *,
        ease_rare: bool = False,
        weigh_agents: bool = False,
    ) -> TransferableAlgorithm:
        """Return the algorithm that trains `model`.

        The other arguments are those of `TransferableAlgorithm`.
        """
        if not isinstance(model, SoftmaxHead):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this optimizer trains a SoftmaxHead"
            )
        rounds = DEFAULT_ROUNDS if rounds is None else rounds
        return TransferableAlgorithm(
            self, model, rounds, scaling, batch_size, ease_rare, weigh_agents
        )


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


@dataclass(frozen=True)
class TransferableAlgorithm:
    """A transferable optimizer that trains one model in a fixed number of rounds.

    Attributes
    ----------
    rounds : int
        The communication rounds of a whole run, which the controls depend on.
    scaling : {"whole", "features", "auto"}
        whole: features share one unit; features: each is standardised by its mean and standard deviation
        in the federation, which agents estimate in the first rounds; auto: only those with spreads so
        different that they are in different units (`local.feature_units`).
    batch_size : int or None
        The number of examples, drawn anew in every round, to which an agent fits its head; None for all.
        Summaries are always of all examples.
    ease_rare : bool
        Whether steps of rare classes are damped less (`controller.eased_share`). Not in meta-training,
        whose classes are of about one size.
    weigh_agents : bool
        Whether the heads of agents with more examples count for more in mixing (`graph`). Not in
        meta-training, where most agents are of one size.
    """

    name = "SURF-T"

    optimizer: Transferable
    model: SoftmaxHead
    rounds: int = DEFAULT_ROUNDS
    scaling: Scaling = "whole"
    batch_size: int | None = None
    ease_rare: bool = False
    weigh_agents: bool = False
    memory: Memory = field(init=False, compare=False, repr=False, default_factory=Memory)

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        check_batch_size(self.batch_size)
        check_option(self.scaling, Scaling, "scaling")

    @property
    def steps(self) -> int:
        """The number of layers, of two rounds each; the last one has one if the rounds are odd."""
        return layer_count(self.rounds)

    @property
    def standardising(self) -> bool:
        """Whether agents find units for the features."""
        return self.scaling != "whole"

    @property
    def shared_rounds(self) -> int:
        """The number of first rounds in which agents send moments of their examples."""
        return UNIT_ROUNDS if self.standardising else SHARED_ROUNDS

    def check(self, task: Task) -> None:
        """Raise unless the squares of the features can be computed; their numbers are read before a run."""
        check_range(task.train)

    def init(
        self,
        task: Task,
        network: Network,
        streams: Streams,  # noqa: ARG002 - it starts at zero
    ) -> TransferState | TransferServerState:
        """Start at W = 0, with summaries of the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        check_averaging(network.facts.shift)
        groups = group_agents(task.train)
        x = task.train.stored().x
        spreads = x.new_empty(task.agents, 0)
        if self.standardising:
            parts = split_examples(task.train, groups)
            spreads = join_groups([own_spreads(part) for part in parts], groups)
        return (self._first_call if network.server else self._first)(task, network, spreads, x)

    def _first(self, task: Task, network: Network, spreads: Tensor, like: Tensor) -> TransferState:
        unit, base = spreads, None
        if self.standardising:
            base, unit = self.units(task, spreads)
        directions = self.directions(network, like)
        view = View.of(task.train, task.classes, directions, (base, unit))
        base = view.base if base is None else base
        self.memory.put("view", (task.train, base, unit), view)
        own = contributions(view.examples, view.groups, view.sketch, directions, centred=True)
        zero = own.sums.new_zeros(task.agents, self.model.parameters)
        state = TransferState(
            zero,
            head=zero,
            previous=zero,
            fitted=zero,
            **own._asdict(),
            progress=no_progress(task.agents, task.classes, zero),
            confidence_sums=self._no_confidence(zero),
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
        return self.with_curvature(state, own)

    def _first_call(
        self, task: Task, network: Network, spreads: Tensor, like: Tensor
    ) -> TransferServerState:
        p, k = self.directions(network, like).shape
        numbers = p * (p + 1) // 2 if k == p else k * p
        base, unit = (like.new_empty(task.agents, 0),) * 2
        if self.standardising:
            base, unit = self.units(task, spreads)
        zero = like.new_zeros(network.servers, self.model.parameters)
        return TransferServerState(
            zero,
            head=zero,
            previous=zero,
            fitted=zero,
            sums=zero.new_zeros(network.servers, task.classes + SUMS_SIZE),
            progress=no_progress(network.servers, task.classes, zero),
            confidence_sums=self._no_confidence(zero),
            moments=zero.new_zeros(network.servers, p + numbers),
            varying=zero.new_full((network.servers,), p),
            spreads=zero.new_zeros(network.servers, spreads.shape[1], dtype=torch.float64),
            base=base,
            unit=unit,
            informed=torch.zeros(network.facts.agents, dtype=torch.bool),
            reports=0,
            rounds=0,
        )

    def _no_confidence(self, like: Tensor) -> Tensor:
        confident = self.optimizer.confidence is not None
        return like.new_zeros(len(like), CONFIDENCE_SUMS * confident)

    def step(
        self, state: State, task: Task, network: Network, streams: Streams
    ) -> TransferState | TransferServerState:
        """Apply the next layer; `streams` draw mini-batches."""
        own = state
        if not isinstance(own, TransferState | TransferServerState):
            own = own_state(own, TransferServerState if network.server else TransferState)
        check_rounds_left(own.rounds, self.rounds)
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            own = self.round(own, task, network, streams.at("round", own.rounds))
        weights = by_feature(own.head, self.model.features)
        if self.optimizer.confidence is not None:
            weights = weights * self.optimizer.confidence(self.inputs(own, network)).exp()
        return replace(own, weights=weights, steps=own.steps + 1)

    def round(
        self,
        state: TransferState | TransferServerState,
        task: Task,
        network: Network,
        streams: Streams,
    ) -> TransferState | TransferServerState:
        """Take one round."""
        if isinstance(state, TransferServerState):
            return round_through_server(self, state, task, network, streams)
        return round_over_graph(self, state, task, network, streams)

    def inputs(self, state: TransferState | TransferServerState, network: Network) -> Tensor:
        """Return the inputs of the confidence after a layer: a row for each agent, or the server's."""
        estimate = self.estimate(state.sums, state.progress, state.varying, network)
        server = isinstance(state, TransferServerState)
        if isinstance(state, TransferServerState):
            called = state.reports / state.rounds
            share = state.head.new_full((len(state.head), 1), called / network.facts.agents)
        else:
            called, share = GRAPH_CALLS, neighbour_share(network).to(state.head)
        when = schedule(state.rounds - 1, self.rounds, called, state.head)
        return confidence_inputs(when, estimate, state.confidence_sums, share, server=server)

    def estimate(
        self, sums: Tensor, progress: Tensor, varying: Tensor, network: Network
    ) -> FederationEstimate:
        """Interpret averaged summaries."""
        return FederationEstimate.of(
            sums, progress, varying, features=self.model.features, agents=network.facts.agents
        )

    def directions(self, network: Network, like: Tensor) -> Tensor:
        """Return the directions of the sketch, `[features, k]`."""
        width = SERVER_SKETCH_WIDTH if network.server else SKETCH_WIDTH
        return sketch_directions(self.model.features, like.dtype, width, like.device)

    def graph_directions(self, like: Tensor) -> Tensor:
        """Return the directions of the sketch over a graph, `[features, k]`."""
        return sketch_directions(self.model.features, like.dtype, SKETCH_WIDTH, like.device)

    def units(self, task: Task, spreads: Tensor, heard: Tensor | int = 1) -> tuple[Tensor, Tensor]:
        """Return the features' centres and units from spreads, averaged over `heard` agents."""
        return self.units_in(task.train.dtype, spreads, heard)

    def units_in(
        self, dtype: torch.dtype, spreads: Tensor, heard: Tensor | int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the features' centres and units in a floating type."""
        return feature_units(spreads, dtype, every=self.scaling == "features", agents=heard)

    def problems(self, state: TransferState, task: Task) -> tuple[Groups, tuple[LocalProblem, ...]]:
        """Return the groups of agents over a graph, and their problems."""

        def make() -> tuple[Groups, tuple[LocalProblem, ...]]:
            groups, examples = self._centred(state, task)
            return groups, problems_of(examples, groups, state.curvature)

        key = (task.train, state.base, state.unit, state.centre, state.axes)
        return self.memory.get("problems", key, make)

    def contributions(self, state: TransferState, task: Task) -> Contribution:
        """Return the agents' summaries of their data from their centres, over a graph."""
        groups, examples = self._centred(state, task)
        directions, view = self.graph_directions(state.head), self._view(state, task)
        return contributions(examples, groups, view.sketch, directions, centred=False)

    def with_curvature(self, state: TransferState, known: Contribution) -> TransferState:
        """Return the state with averaged summaries of data, and the curvature that they tell."""
        directions = self.graph_directions(state.head)
        varying = varying_count(*known, directions, state.unit)
        axes, values, rest = curvature(*known, directions, varying)
        return replace(
            state, **known._asdict(), varying=varying, axes=axes, values=values, rest=rest
        )

    def _view(self, state: TransferState, task: Task) -> View:
        def make() -> View:
            directions = self.graph_directions(state.head)
            return View.of(task.train, task.classes, directions, (state.base, state.unit))

        return self.memory.get("view", (task.train, state.base, state.unit), make)

    def _centred(
        self, state: TransferState, task: Task
    ) -> tuple[Groups, tuple[LocalExamples, ...]]:
        def make() -> tuple[Groups, tuple[LocalExamples, ...]]:
            view = self._view(state, task)
            if state.centre is state.base:
                return view.groups, view.examples
            return view.groups, recentred(view.examples, view.groups, state.centre)

        key = (task.train, state.base, state.unit, state.centre)
        return self.memory.get("centred", key, make)

    def called_view(
        self, state: TransferServerState, called: Called, task: Task, network: Network
    ) -> View:
        """Return the examples of the agents that a server called and that live here."""
        every = len(called.here) == task.agents
        rows = called.here.to(state.base.device)

        def make() -> View:
            base = state.base[rows] if self.standardising else None
            directions = self.directions(network, task.train.x)
            units = (base, state.unit[rows])
            return View.of(task.train, task.classes, directions, units, None if every else rows)

        if not every:
            return make()
        return self.memory.get("view", (task.train, state.base, state.unit), make)

    def local_update(self, network: Network, when: Tensor) -> partial[LocalUpdate]:
        """Return the local work of a round with its schedule, `when`."""
        optimizer = self.optimizer
        return partial(
            local_update,
            when=when,
            controller=optimizer.server if network.server else optimizer.graph,
            steps=SERVER_LOCAL_STEPS if network.server else LOCAL_STEPS,
            batch_size=self.batch_size,
            ease_rare=self.ease_rare,
            confident=optimizer.confidence is not None,
        )
