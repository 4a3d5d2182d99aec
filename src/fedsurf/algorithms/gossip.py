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

from fedsurf.algorithms.algorithm import ClassicalMethod, State, own_state
from fedsurf.algorithms.checks import check_averages
from fedsurf.network import Network
from fedsurf.tasks.task import Task

Solve = Callable[[Tensor, Tensor], Tensor]
"""A function from estimates `[rows, size]` and the weights so far to weights `[rows, parameters]`."""


@dataclass(frozen=True, kw_only=True)
class AveragingState(State):
    """Weights, and the estimates of the mean statistic from which they are solved."""

    values: Tensor
    """Each agent's estimate of the mean statistic, `[nodes, size]`. Through a server: its estimate in
    row 0, the agents' own statistics below it."""
    previous: Tensor
    """The estimates one round ago."""
    relaxation: float
    """ω of the last round."""
    contraction: float
    """λ of the acceleration; 0 without acceleration."""
    heard: Tensor
    """The agents whose statistic the server has, bool `[agents]`."""


@dataclass(frozen=True)
class AveragingMethod(ClassicalMethod):
    """A method that averages a statistic of the agents and solves for weights, one round a step."""

    accelerated: bool = field(default=True, kw_only=True)
    """Chebyshev-accelerated gossip, or plain."""

    @abstractmethod
    def _statistics(self, task: Task, weights: Tensor) -> Tensor:
        """Return the statistics to average, `[agents, size]`, given W_0 `[nodes, parameters]`."""

    @abstractmethod
    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        """Return weights `[rows, parameters]`, given estimates `[rows, size]` and the weights so far."""

    def init(self, task: Task, network: Network, generator: torch.Generator) -> AveragingState:
        """Draw W_0 and compute the agents' statistics."""
        weights = self._first_weights(task, network, generator)
        statistics = self._statistics(task, weights)
        return begin_averaging(weights, statistics, network, accelerated=self.accelerated)

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - its statistics are in the state
        network: Network,
        generator: torch.Generator,  # noqa: ARG002 - nothing is random here
    ) -> AveragingState:
        """Average for one round, then solve."""
        return averaging_step(own_state(state, AveragingState), network, self._solve)


def begin_averaging(
    weights: Tensor, statistics: Tensor, network: Network, *, accelerated: bool
) -> AveragingState:
    """Return the state before the first round, given W_0 and statistics `[agents, size]`.

    A graph needs a symmetric S whose rows sum to 1 (`metropolis`). The acceleration has no effect
    through a server, nor on a network with faults or changing links.
    """
    heard = torch.zeros(len(statistics), dtype=torch.bool)
    if network.server:
        statistics = torch.cat([torch.zeros_like(statistics[:1]), statistics])
        accelerated = False
    else:
        check_averages(network, "gossip")
    return AveragingState(
        weights,
        values=statistics,
        previous=statistics,
        relaxation=1.0,
        contraction=network.second_eigenvalue if accelerated and network.reliable else 0.0,
        heard=heard,
    )


def averaging_step(state: AveragingState, network: Network, solve: Solve) -> AveragingState:
    """Average for one round, and solve for the weights given the new estimates.

    Over a graph every link carries the statistic, and every agent solves, unless its estimate moved
    by no more than rounding. Through a server the called agents upload their statistics, the server
    solves, and the called agents download the weights; as in every method through a server, all agents
    are judged with the server's weights.
    """
    if network.server:
        return _through_server(state, network, solve)
    relaxation = 1.0
    if state.steps:
        before = state.relaxation if state.steps > 1 else 2.0
        relaxation = 1 / (1 - state.contraction**2 * before / 4)
    mixed = torch.lerp(state.previous, network.mix(state.values), relaxation)
    weights = state.weights
    rounding = 10 * torch.finfo(mixed.dtype).eps
    change = (mixed - state.values).square().sum(1).sqrt()
    moved = change > rounding * mixed.square().sum(1).sqrt()
    if state.steps == 0:
        moved = torch.ones_like(moved)
    if moved.any():
        weights = weights.clone()
        weights[moved] = solve(mixed[moved], weights[moved])
    return replace(
        state,
        weights=weights,
        steps=state.steps + 1,
        values=mixed,
        previous=state.values,
        relaxation=relaxation,
    )


def _through_server(state: AveragingState, network: Network, solve: Solve) -> AveragingState:
    called = network.call()
    fresh = called[~state.heard[called]]
    values, heard, server = state.values, state.heard, state.weights[:1]
    uploaded = network.upload(values[1 + fresh], fresh, among=~heard)
    if len(fresh):
        known = int(heard.sum())
        total = known * values[0] + uploaded.sum(0)
        estimate = (total / (known + len(fresh)))[None]
        values = torch.cat([estimate, values[1:]])
        heard = heard.index_fill(0, fresh, True)
        server = solve(estimate, server)
    network.download(server[0], called)
    weights = server.expand(network.nodes, -1)
    return replace(state, weights=weights, steps=state.steps + 1, values=values, heard=heard)
