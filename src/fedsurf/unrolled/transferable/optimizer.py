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

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import State, own_state
from fedsurf.algorithms.checks import check_batch_size, check_fits, check_head_fits
from fedsurf.common.checks import check_option
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.groups import group_agents, join_groups, split_examples, split_groups
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
    joined_units,
    own_spreads,
    sketches,
    without_squared_means,
)
from fedsurf.unrolled.transferable.newton import (
    LocalProblem,
    LocalUpdate,
    by_feature,
    local_problems,
    local_update,
)
from fedsurf.unrolled.transferable.server import round_through_server
from fedsurf.unrolled.transferable.summaries import (
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
    SUMS_SIZE,
    FederationEstimate,
    contributions,
    no_progress,
    sketch_directions,
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
    """The state of the optimizer. `weights` are for readers: steps go on from `head`."""

    head: Tensor
    """W, class by class (`newton.by_feature`); through a server, its running average, `[nodes, parameters]`."""
    previous: Tensor
    """W one round ago, class by class."""
    fitted: Tensor
    """V of the round before, class by class; through a server, W."""
    sums: Tensor
    progress: Tensor
    confidence_sums: Tensor
    moments: Tensor
    """Each node's averages of the summaries, `[nodes, …]`."""
    varying: Tensor
    """The number of features that vary according to each node's averages, `[nodes]`."""
    own_sums: Tensor
    own_moments: Tensor
    """Each agent's contribution to `sums` and to `moments`, `[agents, …]`."""
    sketch: Tensor
    """Each agent's sketch of its examples from their first centre, `[agents, k, features]`."""
    groups: Groups
    examples: tuple[LocalExamples, ...]
    """The agents and the examples of each group (`local`)."""
    problems: tuple[LocalProblem, ...]
    """Each group's problem; none through a server, where agents keep nothing they receive."""
    reports: int
    """The number of messages that a server has received."""
    rounds: int
    spreads: Tensor
    """Each agent's average of the features' means and spreads, or a server's sum, `[agents or 1,
    1 + 3 · features]`; empty where features are not standardised."""
    own_spreads: Tensor
    """Each agent's own means and spreads, for a server, `[agents, 1 + 2 · features]`; or empty."""
    informed: Tensor
    """Whether each agent knows the units that a server has found, bool `[agents]`."""

    @property
    def counts(self) -> Tensor:
        """The number of each agent's examples, `[agents, 1]`."""
        return join_groups([own.count[:, 0] for own in self.examples], self.groups)

    @property
    def unit(self) -> Tensor | None:
        """Each agent's unit of each feature, raw, `[agents, features]`; None for 1."""
        return joined_units(self.examples, self.groups)


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

    def init(
        self,
        task: Task,
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - it starts at zero
    ) -> TransferState:
        """Start at W = 0, with summaries of the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        check_averaging(network.shift)
        groups = group_agents(task.train)
        spreads = torch.empty(task.agents, 0, dtype=task.train.dtype)
        if self.standardising:
            parts = split_examples(task.train, groups)
            spreads = join_groups([own_spreads(part) for part in parts], groups)
        examples = self.local_examples(task, groups, spreads)
        directions = self.directions(network, spreads)
        sketch = sketches(examples, groups, directions)
        own = contributions(examples, groups, sketch, directions, centred=True)
        check_range(task.train, own.moments, own.sums[:, 1 - SUMS_SIZE])
        zero = own.sums.new_zeros(network.nodes, self.model.parameters)
        sums, moments, sent_spreads = *own, without_squared_means(spreads)
        if network.server:
            sums, moments = (torch.cat([torch.zeros_like(v[:1]), v]) for v in own)
            spreads = spreads.new_zeros(1, spreads.shape[1], dtype=torch.float64)
        problems: tuple[LocalProblem, ...] = ()
        varying = zero.new_full((network.nodes,), self.model.features)
        if not network.server:  # called agents will know more
            varying, problems = local_problems(examples, groups, own, directions)
        return TransferState(
            zero,
            head=zero,
            previous=zero,
            fitted=zero,
            sums=sums,
            progress=no_progress(network.nodes, task.classes, zero),
            confidence_sums=zero.new_zeros(
                network.nodes, CONFIDENCE_SUMS * (self.optimizer.confidence is not None)
            ),
            moments=moments,
            varying=varying,
            own_sums=own.sums,
            own_moments=own.moments,
            sketch=sketch,
            groups=groups,
            examples=examples,
            problems=problems,
            reports=0,
            rounds=0,
            spreads=spreads,
            own_spreads=sent_spreads,
            informed=torch.zeros(network.agents, dtype=torch.bool),
        )

    def step(
        self, state: State, task: Task, network: Network, generator: torch.Generator
    ) -> TransferState:
        """Apply the next layer; `generator` draws mini-batches."""
        own = own_state(state, TransferState)
        check_rounds_left(own.rounds, self.rounds)
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            own = self.round(own, task, network, generator)
        weights = by_feature(own.head[:1] if network.server else own.head, self.model.features)
        if self.optimizer.confidence is not None:
            weights = weights * self.optimizer.confidence(self.inputs(own, network)).exp()
        return replace(own, weights=weights.expand(network.nodes, -1), steps=own.steps + 1)

    def round(
        self, state: TransferState, task: Task, network: Network, generator: torch.Generator
    ) -> TransferState:
        """Take one round."""
        one_round = round_through_server if network.server else round_over_graph
        return one_round(self, state, task, network, generator)

    def inputs(self, state: TransferState, network: Network) -> Tensor:
        """Return the inputs of the confidence after a layer: a row for each agent, or the server's."""
        heads = slice(1) if network.server else slice(None)
        estimate = self.estimate(
            state.sums[heads], state.progress[heads], state.varying[heads], network
        )
        if network.server:
            called = state.reports / state.rounds
            share = state.head.new_full((1, 1), called / network.agents)
        else:
            called, share = GRAPH_CALLS, neighbour_share(network).to(state.head)
        when = schedule(state.rounds - 1, self.rounds, called, state.head)
        return confidence_inputs(
            when, estimate, state.confidence_sums[heads], share, server=network.server
        )

    def estimate(
        self, sums: Tensor, progress: Tensor, varying: Tensor, network: Network
    ) -> FederationEstimate:
        """Interpret averaged summaries."""
        return FederationEstimate.of(
            sums, progress, varying, features=self.model.features, agents=network.agents
        )

    def directions(self, network: Network, like: Tensor) -> Tensor:
        """Return the directions of the sketch, `[features, k]`."""
        width = SERVER_SKETCH_WIDTH if network.server else SKETCH_WIDTH
        return sketch_directions(self.model.features, like.dtype, width)

    def units(self, task: Task, spreads: Tensor, heard: Tensor | int = 1) -> tuple[Tensor, Tensor]:
        """Return the features' centres and units from spreads, averaged over `heard` agents."""
        every = self.scaling == "features"
        return feature_units(spreads, task.train.dtype, every=every, agents=heard)

    def local_examples(
        self, task: Task, groups: Groups, spreads: Tensor, heard: Tensor | int = 1
    ) -> tuple[LocalExamples, ...]:
        """Standardise each group's examples by `spreads`, averaged over `heard` agents, if enabled."""
        parts = split_examples(task.train, groups)
        if not self.standardising:
            return tuple(LocalExamples.of(part, task.classes) for part in parts)
        found = (one.expand(task.agents, -1) for one in self.units(task, spreads, heard))
        own = (split_groups(one, groups) for one in found)
        return tuple(
            LocalExamples.of(part, task.classes, centre, unit)
            for part, centre, unit in zip(parts, *own, strict=True)
        )

    def local_update(
        self, network: Network, when: Tensor, generator: torch.Generator
    ) -> partial[LocalUpdate]:
        """Return the local work of a round with its schedule, `when`."""
        optimizer = self.optimizer
        return partial(
            local_update,
            when=when,
            generator=generator,
            controller=optimizer.server if network.server else optimizer.graph,
            steps=SERVER_LOCAL_STEPS if network.server else LOCAL_STEPS,
            batch_size=self.batch_size,
            ease_rare=self.ease_rare,
            confident=optimizer.confidence is not None,
        )
