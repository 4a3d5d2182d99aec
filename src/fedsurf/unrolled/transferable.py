"""A transferable layer: an unrolled optimizer for softmax heads on any data, over any network.

U-DGD's perceptron sees raw weights and raw examples, so it fits the features and the classes that it
was meta-trained on. This layer keeps the structure, local work and then learned mixing, but computes
what every learner must compute, gradients and curvature, and learns only how to use them. In a
round, every agent

1. hears what kind of problem the federation has (`signals`), from which a small perceptron sets the
   knobs of the round and another one, class by class, a gate and an offset of the logits by how
   unusual the class is at this agent (`controller`);
2. takes two Newton-like steps on all its examples, from W to V (`local_fit`);
3. sends φ = V + κ (W − V_prev), its sums and its progress;
4. mixes with memory: W⁺ = (1 − a − b − e) Sφ + aφ + bW + eW_prev.

With κ = 1 and no memory that is Exact Diffusion with Newton-like steps. Through a server, the agents
that it calls do 1 to 3 from the server's W, and the server does 4 with the mean of what they send.
All parameters are shared by agents, classes and features: permuting any of them, rotating the
features, moving or scaling them permutes, rotates, moves or scales the result.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import State, check_fits
from fedsurf.algorithms.checks import own_state
from fedsurf.algorithms.class_means import check_head_fits
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Task
from fedsurf.unrolled.calibration import CALIBRATION_ROUNDS, standards
from fedsurf.unrolled.controller import Controller, schedule
from fedsurf.unrolled.local_fit import LocalFit, LocalView, Step
from fedsurf.unrolled.signals import (
    FORGETTING,
    PRIOR,
    PROGRESS,
    SUMS,
    Heard,
    data_sums,
    hear,
    own_progress,
)

Scaling = Literal["whole", "features"]
LOCAL_STEPS = 2
ROUNDS_OF_A_LAYER = 2
FEWEST_ROUNDS, MOST_ROUNDS = 1, 200


@dataclass(frozen=True)
class TransferableConfig:
    """The shape of a transferable optimizer."""

    width: int = 16
    """Hidden units of the perceptron that sets the knobs of a round."""
    class_width: int = 12
    """Hidden units of the perceptron that sees the classes."""


@dataclass(frozen=True, kw_only=True)
class TransferState(State):
    """What the optimizer carries.

    Attributes
    ----------
    previous : Tensor
        W one round ago, `[nodes, parameters]`.
    fitted : Tensor
        V of the round before, `[nodes, parameters]`.
    sums, progress : Tensor
        What each node heard of the data and of progress, `[nodes, …]`.
    own : Tensor
        Each agent's own sums, `[agents, …]`.
    reports : int
        How many messages a server received so far.
    rounds : int
        Rounds so far.
    view : LocalView
        Each agent's own view of its examples.
    standards : Tensor
        What a server tells an agent when it calls it for the first time; empty if nothing.
    told : Tensor
        Whom it has told, bool `[agents]`.
    """

    previous: Tensor
    fitted: Tensor
    sums: Tensor
    progress: Tensor
    own: Tensor
    reports: int
    rounds: int
    view: LocalView
    standards: Tensor
    told: Tensor


class Transferable(nn.Module):
    """The learned parameters: a controller for graphs and one for servers.

    Parameters
    ----------
    config : TransferableConfig
        Its shape.
    generator : torch.Generator
        Draws the initial parameters.
    """

    def __init__(self, config: TransferableConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.graph = Controller(config.width, config.class_width, generator)
        self.server = Controller(config.width, config.class_width, generator)

    def on(
        self, model: Model, rounds: int = 20, scaling: Scaling = "whole"
    ) -> "TransferableAlgorithm":
        """Return the algorithm that trains `model` in so many rounds."""
        if not isinstance(model, SoftmaxHead):
            raise TypeError(
                f"model: got a {type(model).__name__}, but this optimizer trains a SoftmaxHead"
            )
        return TransferableAlgorithm(self, model, rounds, scaling)


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
    scaling : {"whole", "features"}
        whole: features share one unit, and each agent centres them by its own mean; features: they
        are standardised by the mean and the standard deviation of each in the federation, which
        agents estimate in the first two of the rounds.
    """

    optimizer: Transferable
    model: SoftmaxHead
    rounds: int = 20
    scaling: Scaling = "whole"

    def __post_init__(self) -> None:
        if self.scaling not in ("whole", "features"):
            raise ValueError(f"scaling: got {self.scaling!r}, but it must be 'whole' or 'features'")
        fewest = FEWEST_ROUNDS + self.calibration
        if not fewest <= self.rounds <= MOST_ROUNDS:
            raise ValueError(
                f"rounds: got {self.rounds}, but it must be between {fewest} and {MOST_ROUNDS}"
                + (f", {self.calibration} of which standardise" if self.calibration else "")
            )

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return "SURF-T"

    @property
    def steps(self) -> int:
        """The number of layers: of two rounds each, the last of one if the rounds are odd."""
        return -(-(self.rounds - self.calibration) // ROUNDS_OF_A_LAYER)

    @property
    def calibration(self) -> int:
        """The rounds before the first layer, in which the features are standardised."""
        return CALIBRATION_ROUNDS if self.scaling == "features" else 0

    def init(
        self,
        task: Task,
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - it starts at zero
    ) -> TransferState:
        """Start at W = 0; look at the own examples."""
        check_fits(task, network)
        check_head_fits(self.model, task)
        told = torch.zeros(network.agents, dtype=torch.bool)
        if self.scaling == "features":
            found = standards(task.train, network)
            view, news = found.view(task.train, task.classes), found.of_one
        else:
            view = LocalView.of(task.train, task.classes)
            news = view.centre.new_empty(0)
        own = data_sums(view)
        zero = own.new_zeros(network.nodes, self.model.parameters)
        sums = torch.cat([torch.zeros_like(own[:1]), own]) if network.server else own
        return TransferState(
            zero,
            previous=zero,
            fitted=zero,
            sums=sums,
            progress=own.new_zeros(network.nodes, PROGRESS),
            own=own,
            reports=0,
            rounds=self.calibration,
            view=view,
            standards=news,
            told=told,
        )

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - all that matters of it is in the state
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - nothing is random
    ) -> TransferState:
        """Apply the next layer."""
        own = own_state(state, TransferState)
        if own.rounds >= self.rounds:
            raise ValueError(
                f"state: got one after {own.rounds} rounds, but this run has {self.rounds} rounds"
            )
        for _ in range(min(ROUNDS_OF_A_LAYER, self.rounds - own.rounds)):
            one_round = self._through_server if network.server else self._over_graph
            own = one_round(own, network)
        return replace(own, steps=own.steps + 1)

    def _over_graph(self, state: TransferState, network: Network) -> TransferState:
        heard = self._hear(state.sums, state.progress, network)
        knobs, fitted, progress = self._work(
            self.optimizer.graph, state, state.weights, heard, state.view, state.own
        )
        sent = fitted + knobs["correction"][:, 0].tanh() * (state.weights - state.fitted)
        if state.rounds == self.calibration:
            sent = fitted
        seen = FORGETTING * state.progress + (1 - FORGETTING) * progress
        parameters = self.model.parameters
        mixed = network.mix(torch.cat([sent, state.sums, seen], 1))
        keep, stay, memory = (knobs[name][:, 0].tanh() for name in ("keep", "stay", "memory"))
        weights = (1 - keep - stay - memory) * mixed[:, :parameters]
        weights = weights + keep * sent + stay * state.weights + memory * state.previous
        return replace(
            state,
            weights=weights,
            previous=state.weights,
            fitted=fitted,
            sums=mixed[:, parameters:-PROGRESS],
            progress=mixed[:, -PROGRESS:],
            rounds=state.rounds + 1,
        )

    def _through_server(self, state: TransferState, network: Network) -> TransferState:
        called = network.call()
        if self.calibration:
            network.download(state.standards, called[~state.told[called]])
        server = torch.cat([state.weights[0], state.sums[0], state.progress[0]])
        received = network.download(server, called)
        parameters, own = self.model.parameters, state.own[called]
        known = received[:, parameters:-PROGRESS] if state.reports else own
        heard = self._hear(known, received[:, -PROGRESS:], network)
        view = state.view.of_agents(called)
        knobs, fitted, progress = self._work(
            self.optimizer.server, state, received[:, :parameters], heard, view, own
        )
        uploaded = network.upload(torch.cat([fitted, own, progress], 1), called)
        stay, memory = (knobs[name].tanh().mean() for name in ("stay", "memory"))
        weights = (1 - stay - memory) * uploaded[:, :parameters].mean(0)
        weights = weights + stay * state.weights[0] + memory * state.previous[0]
        reports = state.reports + len(called)
        share = len(called) / reports
        sums = torch.lerp(state.sums[0], uploaded[:, parameters:-PROGRESS].mean(0), share)
        forgetting = FORGETTING if state.reports else 0.0
        seen = torch.lerp(uploaded[:, -PROGRESS:].mean(0), state.progress[0], forgetting)
        return replace(
            state,
            weights=weights.expand(network.nodes, -1),
            previous=state.weights,
            sums=torch.cat([sums[None], state.sums[1:]]),
            progress=torch.cat([seen[None], state.progress[1:]]),
            reports=reports,
            rounds=state.rounds + 1,
            told=state.told.index_fill(0, called, True),
        )

    def _hear(self, sums: Tensor, progress: Tensor, network: Network) -> Heard:
        return hear(sums, progress, features=self.model.features, agents=network.agents)

    def _work(
        self,
        controller: Controller,
        state: TransferState,
        weights: Tensor,
        heard: Heard,
        view: LocalView,
        own: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Fit the heads to the agents' examples; return the knobs, the heads V and the progress."""
        classes = self.model.classes
        rounds = self.rounds - self.calibration
        depth = torch.tensor([rounds / 20], dtype=weights.dtype).log()
        when = schedule(state.rounds - self.calibration, rounds, weights)
        knobs, context = controller.knobs(when, depth, heard.signals)
        counts, count = own[:, :-SUMS], view.count[:, 0]
        share = (counts + PRIOR * heard.classes) / (count + PRIOR)
        unusual = share.log() - heard.classes.log()
        fit = LocalFit(view, weights)
        before = fit.probabilities()
        error = classes * (before - view.labels).abs().sum(1) / count
        relative = (count / heard.examples[:, None].clamp(min=0.1)).log().expand_as(share)
        about = [
            unusual,
            (classes * share - 1).clamp(max=4),
            (classes * heard.classes).log(),
            (error - 1).clamp(max=4),
            relative.clamp(-3, 3),
        ]
        gate, weight = controller.gates(torch.stack(about, 2), context)
        step = Step(
            newton=_exp(knobs["newton"]),
            gradient=_exp(knobs["gradient"]),
            damping=_exp(knobs["damping"]),
            decay=_exp(knobs["decay"]),
            gate=gate,
            offset=weight * unusual[:, None],
            floor=_exp(knobs["floor"]),
            reach=_exp(knobs["reach"]),
            scale=heard.scale[:, None, None],
        )
        fit.take(step)
        after = fit.probabilities()
        for _ in range(LOCAL_STEPS - 1):
            fit.take(step)
        return knobs, fit.raw(), own_progress(before, after, view, share, heard.classes)


def _exp(logarithm: Tensor) -> Tensor:
    return logarithm.clamp(-12, 3).exp()
