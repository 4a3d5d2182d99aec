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

from fedsurf.algorithms.algorithm import State, own_state
from fedsurf.algorithms.checks import check_batch_size, check_fits, check_head_fits
from fedsurf.common.checks import check_option
from fedsurf.common.streams import Streams
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
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
from fedsurf.unrolled.transferable.graph import (
    TransferState,
    first_state,
    neighbour_share,
    round_over_graph,
)
from fedsurf.unrolled.transferable.local import (
    check_range,
    feature_units,
    own_spreads,
)
from fedsurf.unrolled.transferable.newton import (
    LocalUpdate,
    by_feature,
    local_update,
)
from fedsurf.unrolled.transferable.rebuilt import Memory
from fedsurf.unrolled.transferable.server import (
    TransferServerState,
    first_call,
    round_through_server,
)
from fedsurf.unrolled.transferable.summaries import (
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
    FederationEstimate,
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
        if task.agents:
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
        return (first_call if network.server else first_state)(self, task, network, spreads, x)

    def no_confidence(self, like: Tensor) -> Tensor:
        """Return the sums of a confidence before the first round, `[rows of like, …]`."""
        confident = self.optimizer.confidence is not None
        return like.new_zeros(len(like), CONFIDENCE_SUMS * confident)

    def step(
        self, state: State, task: Task, network: Network, streams: Streams
    ) -> TransferState | TransferServerState:
        """Apply the next layer; `streams` draw mini-batches."""
        own: TransferState | TransferServerState = (
            own_state(state, TransferServerState)
            if network.server
            else own_state(state, TransferState)
        )
        check_rounds_left(own.rounds, self.rounds)
        for _ in range(min(ROUNDS_PER_LAYER, self.rounds - own.rounds)):
            own = self.round(own, task, network, streams)
        return self.after_layer(own, network)

    def round(
        self,
        state: TransferState | TransferServerState,
        task: Task,
        network: Network,
        streams: Streams,
    ) -> TransferState | TransferServerState:
        """Take one round of a layer; `streams` are those of the layer."""
        streams = streams.at("round", state.rounds)
        if isinstance(state, TransferServerState):
            return round_through_server(self, state, task, network, streams)
        return round_over_graph(self, state, task, network, streams)

    def after_layer(
        self, state: TransferState | TransferServerState, network: Network
    ) -> TransferState | TransferServerState:
        """Return the state after the last round of a layer, with the weights by which agents are judged."""
        weights = by_feature(state.head, self.model.features)
        if self.optimizer.confidence is not None:
            weights = weights * self.optimizer.confidence(self.inputs(state, network)).exp()
        return replace(state, weights=weights, steps=layer_count(state.rounds))

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

    def units(
        self, dtype: torch.dtype, spreads: Tensor, heard: Tensor | int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the features' centres and units from spreads, averaged over `heard` agents."""
        return feature_units(spreads, dtype, every=self.scaling == "features", agents=heard)

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
