"""Decentralised federated averaging with momentum (DFedAvgM), optionally with quantised messages.

T. Sun, D. Li and B. Wang, "Decentralized federated averaging", IEEE Transactions on Pattern
Analysis and Machine Intelligence, 2022 (arXiv 2104.11375). The quantised messages follow H. Tang,
S. Gan, C. Zhang, T. Zhang and J. Liu, "Communication compression for decentralized training",
NeurIPS 2018: the difference is taken to the neighbours' copies. The former paper's equation 7 takes
it to the agent's own weights, which gives X + S (Z − X) in place of S·Z, so that agents that
disagree would never average out their differences.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import GradientMethod, State, own_state
from fedsurf.algorithms.checks import check_mixes
from fedsurf.algorithms.local import local_descent
from fedsurf.common.checks import check_below_one, check_count, check_whole
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task

FLOAT_BITS = 32
"""Bits of a number that counts as one float."""


@dataclass(frozen=True, kw_only=True)
class QuantisedState(State):
    """Weights, and their copies at the neighbours."""

    known: Tensor
    """Each node's weights as its neighbours know them, c, `[rows, parameters]`; zero at first."""
    mixed: Tensor
    """S·c, which every node sums up from the received messages, `[rows, parameters]`."""


@dataclass(frozen=True)
class DFedAvgM(GradientMethod):
    """Take several local steps with momentum, then one round of mixing.

        y_{k+1} = y_k − β ∇F_i(y_k; ξ_k) + μ (y_k − y_{k−1}),    y_{−1} = y_0 = w_i(l),
        w_i(l+1) = Σ_j S_ij z_j,    z_j = y_K of agent j

    The momentum restarts in every round. With K = 1 and μ = 0 this is diffusion, W ← S (W − β ∇f(W)).

    Quantised, an agent sends a difference, and the neighbours add it to their copy c_j of its weights:

        q_j = Q(z_j − c_j),    c_j ← c_j + q_j,    w_i(l+1) = w_i(l) + Σ_j S_ij q_j,

    so that w_i = Σ_j S_ij c_j after every round.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import DFedAvgM
    >>> DFedAvgM(SoftmaxHead(features=64, classes=10), local_steps=6, bits=8).name
    'DFedAvgM (8 bits)'
    """

    local_steps: int = 6
    """Gradient steps between two rounds, K."""
    momentum: float = 0.9
    """Heavy ball within a round, μ."""
    batch_size: int | None = field(default=10, kw_only=True)
    bits: int | None = field(default=None, kw_only=True)
    """Bits of every number that is sent, 2 to 32; plain floats where None. A message is then the step s
    of the quantiser (one float, an agent's largest difference divided by 2^(bits−1) − 1) and a multiple
    of s for every number, rounded up or down at random without bias; it counts as 1 + ⌈bits · parameters
    / 32⌉ floats. With 2 bits the noise can exceed the differences and grow without bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self.momentum, "momentum")
        check_count(self.local_steps, "local_steps")
        if self.bits is not None:
            check_whole(self.bits, "bits", " or None for plain floats")
            if not 2 <= self.bits <= FLOAT_BITS:
                raise ValueError(
                    f"bits: got {self.bits}, but it must be between 2 and {FLOAT_BITS}, "
                    "or None for plain floats"
                )

    @property
    def name(self) -> str:
        """The method's name, with the bits if it is quantised."""
        return "DFedAvgM" if self.bits is None else f"DFedAvgM ({self.bits} bits)"

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Draw W_0; the neighbours' copies are zero."""
        check_mixes(network, self.name)
        weights = self._first_weights(task, network, streams)
        if self.bits is None:
            return State(weights)
        if not network.facts.reliable:
            raise ValueError(
                f"bits: got {self.bits} on a network with faults, changing links or agents that do not "
                "report, but differences add up only if every message arrives over the same links: use None"
            )
        zero = torch.zeros_like(weights)
        return QuantisedState(weights, known=zero, mixed=zero)

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Train locally, then mix the results or their quantised differences."""
        trained = local_descent(
            self.model,
            network.agent_rows(state.weights),
            task.train,
            network.agent_rows(streams),
            steps=self.local_steps,
            step_size=self.step_size,
            batch_size=self.batch_size,
            momentum=self.momentum,
        )
        trained = network.with_server(trained, state.weights[: network.servers])
        if self.bits is None:
            return State(network.mix(trained), state.steps + 1)
        state = own_state(state, QuantisedState)
        sent = quantise(trained - state.known, self.bits, streams.at("rounding"))
        floats = 1 + math.ceil(self.bits * self.model.parameters / FLOAT_BITS)
        mixed = state.mixed + network.mix(sent, floats)
        return QuantisedState(mixed, state.steps + 1, known=state.known + sent, mixed=mixed)


def quantise(values: Tensor, bits: int, streams: Streams) -> Tensor:
    """Round each of `values[rows, numbers]` to a multiple of its row's step, without bias.

    A row's step is its largest absolute value divided by 2^(bits−1) − 1. A number between two
    multiples becomes one of them at random, so that the expected value is the number itself.
    """
    levels = (1 << (bits - 1)) - 1
    step = values.abs().amax(1, keepdim=True) / levels
    noise = streams.uniform(values.shape[1]).to(values)
    multiple = torch.floor(values / torch.where(step > 0, step, 1) + noise)
    return step * multiple.clamp(-levels, levels)
