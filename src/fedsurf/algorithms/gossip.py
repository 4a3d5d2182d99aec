"""Average a statistic of all agents, one round a step: by gossip over a graph, or through a server.

Over a graph, plain gossip x ← S x (S. Boyd, A. Ghosh, B. Prabhakar and D. Shah, "Randomized gossip
algorithms", IEEE Transactions on Information Theory 52(6), 2006), or the Chebyshev semi-iteration
(W. Auzinger, "Iterative solution of large linear systems", lecture notes, TU Wien 2011; K. Scaman,
F. Bach, S. Bubeck, Y. T. Lee and L. Massoulié, "Optimal algorithms for smooth and strongly convex
distributed optimization in networks", ICML 2017):

    x(1) = S x(0),   x(k+1) = ω(k+1) (S x(k) − x(k−1)) + x(k−1),
    ω(2) = 1 / (1 − λ²/2),   ω(k+1) = 1 / (1 − λ² ω(k)/4),

with λ the second largest absolute eigenvalue of S, which all agents know. After k rounds the distance
from the average is 1/T_k(1/λ) of its start, with T_k Chebyshev's polynomial, and λ^k with plain gossip.
With λ = 0 the two are the same. Early accelerated estimates weight some agents negatively. The
acceleration needs the same S in every round; where messages are lost or late, or links change, it would
amplify the errors, and gossip is plain.

Through a server, each agent's statistic counts once: called agents upload theirs unless they have done
so before, and the server's estimate is the mean of all received statistics.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import ClassicalMethod, ServerState, State, own_state
from fedsurf.algorithms.checks import check_averages
from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task

Solve = Callable[[Tensor, Tensor], Tensor]
"""A function from estimates `[rows, size]` and the weights so far to weights `[rows, parameters]`."""


@dataclass(frozen=True, kw_only=True)
class AveragingState(State):
    """Weights, and the estimates of the mean statistic from which they are solved, over a graph."""

    values: Tensor
    """Each agent's estimate of the mean statistic, `[agents, size]`."""
    previous: Tensor
    """The estimates one round ago."""
    relaxation: float
    """ω of the last round."""
    contraction: float
    """λ of the acceleration; 0 without acceleration."""


@dataclass(frozen=True, kw_only=True)
class ServerAveragingState(ServerState):
    """The server's weights and estimate, and the agents' own statistics."""

    estimate: Tensor
    """The mean of the statistics that the server has, `[servers, size]`."""
    statistics: Tensor
    """Each agent's own statistic, `[agents, size]`."""
    heard: Tensor
    """The agents that were called to send their statistic, bool `[all agents]`; known to everybody."""
    received: int = 0
    """The number of statistics that the server has."""


@dataclass(frozen=True)
class AveragingMethod(ClassicalMethod):
    """A method that averages a statistic of the agents and solves for weights, one round a step."""

    accelerated: bool = field(default=True, kw_only=True)
    """Chebyshev-accelerated gossip, or plain."""

    @abstractmethod
    def _statistics(self, task: Task, first: Tensor) -> Tensor:
        """Return the statistics to average, `[agents, size]`, given a W_0 that all share, `[1, parameters]`."""

    @abstractmethod
    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        """Return weights `[rows, parameters]`, given estimates `[rows, size]` and the weights so far."""

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Draw W_0 and compute the agents' statistics."""
        weights = self._first_weights(task, network, streams)
        first = self.start.draw(self.model, streams.shared(), task.train.x)
        statistics = self._statistics(task, first)
        if network.server:
            return begin_calls(first[: network.servers], statistics, network)
        return begin_gossip(weights, statistics, network, accelerated=self.accelerated)

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - its statistics are in the state
        network: Network,
        streams: Streams,  # noqa: ARG002 - nothing is random here
    ) -> State:
        """Average for one round, then solve."""
        if network.server:
            return through_server(own_state(state, ServerAveragingState), network, self._solve)
        return gossip_step(own_state(state, AveragingState), network, self._solve)


def begin_gossip(
    weights: Tensor, statistics: Tensor, network: Network, *, accelerated: bool
) -> AveragingState:
    """Return the state before the first round over a graph, given W_0 and statistics `[agents, size]`.

    The graph needs a symmetric S whose rows sum to 1 (`metropolis`). The acceleration has no effect on a
    network with faults or changing links.
    """
    check_averages(network, "gossip")
    facts = network.facts
    accelerated = accelerated and facts.reliable
    return AveragingState(
        weights,
        values=statistics,
        previous=statistics,
        relaxation=1.0,
        contraction=facts.spectrum.second_eigenvalue if accelerated else 0.0,
    )


def gossip_step(state: AveragingState, network: Network, solve: Solve) -> AveragingState:
    """Average for one round over a graph, and solve for the weights given the new estimates.

    Every link carries the statistic, and every agent solves, unless its estimate moved by no more than
    rounding.
    """
    relaxation = 1.0
    if state.steps:
        before = state.relaxation if state.steps > 1 else 2.0
        relaxation = 1 / (1 - state.contraction**2 * before / 4)
    mixed = torch.lerp(state.previous, network.mix(state.values), relaxation)
    rounding = 10 * torch.finfo(mixed.dtype).eps
    change = (mixed - state.values).square().sum(1).sqrt()
    moved = change > rounding * mixed.square().sum(1).sqrt()
    if state.steps == 0:
        moved = torch.ones_like(moved)
    return replace(
        state,
        weights=_solved(solve, mixed, state.weights, moved),
        steps=state.steps + 1,
        values=mixed,
        previous=state.values,
        relaxation=relaxation,
    )


def _solved(solve: Solve, estimates: Tensor, weights: Tensor, moved: Tensor) -> Tensor:
    """Solve for the weights of the rows that moved; the others keep theirs."""
    if moved.device.type != "cpu":  # which rows moved is not known without waiting for the device
        return torch.where(moved[:, None], solve(estimates, weights), weights)
    rows = moved.nonzero().flatten()
    return (
        weights.index_copy(0, rows, solve(estimates[rows], weights[rows])) if len(rows) else weights
    )


def begin_calls(weights: Tensor, statistics: Tensor, network: Network) -> ServerAveragingState:
    """Return the state before the first round through a server, given `weights[servers, parameters]`."""
    return ServerAveragingState(
        weights,
        estimate=statistics.new_zeros(network.servers, statistics.shape[1]),
        statistics=statistics,
        heard=torch.zeros(network.agents, dtype=torch.bool, device=CPU),
    )


def through_server(
    state: ServerAveragingState, network: Network, solve: Solve
) -> ServerAveragingState:
    """Take a round through a server, and solve for the weights given its new estimate.

    The called agents upload their statistics unless the server has them, and download the weights; as in
    every method through a server, all agents are judged with the server's weights.
    """
    called = network.call()
    fresh = called.only(~state.heard, network.agent_rows(network.ids))
    reply = state.statistics[fresh.here.to(state.statistics.device)]
    uploaded = network.upload(reply, fresh, among=~state.heard)
    heard = state.heard.index_fill(0, fresh.agents, True)
    weights, estimate = state.weights, state.estimate
    received = state.received + len(uploaded)
    if len(uploaded):  # the server's; none if all called agents are gone
        estimate = (state.received * estimate + uploaded.sum(0)) / received
        weights = solve(estimate, weights)
    network.download(weights, network.attend(called))
    return replace(
        state,
        weights=weights,
        steps=state.steps + 1,
        estimate=estimate,
        heard=heard,
        received=received,
    )
