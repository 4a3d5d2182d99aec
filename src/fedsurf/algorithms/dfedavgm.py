"""Decentralised federated averaging with momentum (DFedAvgM), and what it sends quantised.

T. Sun, D. Li and B. Wang, "Decentralized federated averaging", IEEE Transactions on Pattern
Analysis and Machine Intelligence, 2022 (arXiv 2104.11375). From x_i(l), agent i takes K steps on
mini-batches of its own,

    y_{k+1} = y_k − β ∇F_i(y_k; ξ_k) + μ (y_k − y_{k−1}),    y_{−1} = y_0 = x_i(l),

so that the momentum begins at rest in every round, and its result z_i = y_K is mixed:

    x_i(l+1) = Σ_j S_ij z_j(l).

With K = 1 and μ = 0 this is DGD that steps first and mixes after (W ← S (W − β ∇f(W)), also called
diffusion), where DGD mixes the weights but not the steps.

Quantised, an agent sends a difference of b bits a number, and the neighbours add it up:

    q_j = Q(z_j − c_j),    c_j ← c_j + q_j,    x_i(l+1) = x_i(l) + Σ_j S_ij q_j,

with c_j, agent j's weights as its neighbours know them from what it sent so far (nothing, 0, in the
beginning), so that x_i = Σ_j S_ij c_j after every round; an exact Q makes it the method above. The
paper's equation 7 takes the difference to x_j instead of c_j. That gives X + S (Z − X), which is
S·Z only where the agents agree: what they disagree about would never be averaged out. The
difference to the neighbours' copies is that of H. Tang, S. Gan, C. Zhang, T. Zhang and J. Liu,
"Communication compression for decentralized training", NeurIPS 2018.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.algorithms.checks import (
    check_batch_size,
    check_mixes,
    check_momentum,
    check_step_size,
    own_state,
)
from fedsurf.algorithms.local import local_descent
from fedsurf.common.checks import check_whole
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.task import Task

FLOAT_BITS = 32
"""The bits of what is counted as one float."""


@dataclass(frozen=True, kw_only=True)
class QuantisedState(State):
    """Weights, and what the neighbours know of them.

    Attributes
    ----------
    known : Tensor
        Each node's weights as its neighbours know them, c, `[nodes, parameters]`.
    mixed : Tensor
        S·c, which every node sums up from what it receives, `[nodes, parameters]`.
    """

    known: Tensor
    mixed: Tensor


@dataclass(frozen=True)
class DFedAvgM:
    """Several local steps with momentum, then one round of mixing.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The β above.
    local_steps : int
        Gradient steps between two rounds, K.
    momentum : float
        Heavy ball within a round, μ; it restarts in every round.
    batch_size : int or None
        Examples of each step's mini-batch; all of an agent's examples where None.
    bits : int or None
        Bits of every number that is sent, 2 to 32; plain floats where None. A message is then the
        step s of the quantiser (one float, an agent's largest difference divided by
        2^(bits−1) − 1) and a whole multiple of s for every number, rounded up or down at random so
        that its mean is right; it counts as 1 + ⌈bits · parameters / 32⌉ floats. With 2 bits the
        noise of rounding can exceed the differences and grow without bound; take more.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    step_size: float = 0.1
    local_steps: int = 6
    momentum: float = 0.9
    batch_size: int | None = 10
    bits: int | None = None
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_step_size(self.step_size)
        check_momentum(self.momentum)
        check_batch_size(self.batch_size)
        check_whole(self.local_steps, "local_steps")
        if self.local_steps < 1:
            raise ValueError(f"local_steps: got {self.local_steps}, but it must be at least 1")
        if self.bits is not None:
            check_whole(self.bits, "bits", " or None for plain floats")
        if self.bits is not None and not 2 <= self.bits <= FLOAT_BITS:
            raise ValueError(
                f"bits: got {self.bits}, but it must be between 2 and {FLOAT_BITS}, "
                "or None for plain floats"
            )

    @property
    def name(self) -> str:
        """The method's name, with the bits where it is quantised."""
        return "DFedAvgM" if self.bits is None else f"DFedAvgM ({self.bits} bits)"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Draw W_0, of which the neighbours know nothing yet."""
        check_fits(task, network, self.model)
        check_mixes(network, self.name)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        if self.bits is None:
            return State(weights)
        if not network.reliable:
            where = "on a network with faults, or with links that change"
            if network.reporting < network.agents:
                where = f"in a star of whom {network.reporting} of {network.agents} agents report"
            raise ValueError(
                f"bits: got {self.bits} {where}, "
                "but differences add up only where every message arrives, over the same links: use None"
            )
        nothing = torch.zeros_like(weights)
        return QuantisedState(weights, known=nothing, mixed=nothing)

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Train locally, then mix the results or their quantised differences."""
        trained = local_descent(
            self.model,
            network.agent_rows(state.weights),
            task.train,
            generator,
            steps=self.local_steps,
            step_size=self.step_size,
            batch_size=self.batch_size,
            momentum=self.momentum,
        )
        if network.server:
            trained = torch.cat([state.weights[:1], trained])
        if self.bits is None:
            return State(network.mix(trained), state.steps + 1)
        state = own_state(state, QuantisedState)
        sent = quantise(trained - state.known, self.bits, generator)
        floats = 1 + math.ceil(self.bits * self.model.parameters / FLOAT_BITS)
        mixed = state.mixed + network.mix(sent, floats)
        return QuantisedState(mixed, state.steps + 1, known=state.known + sent, mixed=mixed)


def quantise(values: Tensor, bits: int, generator: torch.Generator) -> Tensor:
    """Round each of `values[nodes, numbers]` to a multiple of its row's step, right in the mean.

    A row's step is its largest absolute value divided by 2^(bits−1) − 1. A number between two
    multiples becomes the upper one with the chance that makes the mean the number itself.
    """
    levels = (1 << (bits - 1)) - 1
    step = values.abs().amax(1, keepdim=True) / levels
    noise = torch.rand(values.shape, generator=generator, dtype=values.dtype).to(values.device)
    multiple = torch.floor(values / torch.where(step > 0, step, 1) + noise)
    return step * multiple.clamp(-levels, levels)
