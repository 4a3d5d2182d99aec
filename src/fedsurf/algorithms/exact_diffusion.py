"""Exact Diffusion: adapt, correct, combine.

K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact diffusion for distributed optimization and
learning, part I: algorithm development", IEEE Transactions on Signal Processing 67(3), 2019:

    Ψ(l) = W(l−1) − β ∇f(W(l−1))              adapt
    Φ(l) = Ψ(l) + W(l−1) − Ψ(l−1)             correct
    W(l) = ½ (I + S) Φ(l)                     combine

with Ψ(0) = W(0), so that the first step is plain diffusion.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits, node_gradient
from fedsurf.algorithms.checks import check_averages, check_batch_size, check_step_size, own_state
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class DiffusionState(State):
    """Weights, and the adapted weights of the step before.

    Attributes
    ----------
    adapted : Tensor
        Ψ of the step before, `[nodes, parameters]`; W(0) before the first step.
    """

    adapted: Tensor


@dataclass(frozen=True)
class ExactDiffusion:
    """One round a step with the floats of DGD, and the optimum itself with a constant step.

    Corrected weights are mixed after the gradient step, which bears larger steps than EXTRA's. It
    needs a symmetric S whose rows sum to 1 (`Network(graph, "metropolis")`). In a star of whom
    only some agents report, S changes from round to round: it is exact no longer, and what that
    does to its corrections adds up, so that the weights drift away in a long run.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The β above.
    batch_size : int or None
        Examples of a mini-batch; all of an agent's examples where None, and only then exact.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    step_size: float = 0.1
    batch_size: int | None = None
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_step_size(self.step_size)
        check_batch_size(self.batch_size)

    @property
    def name(self) -> str:
        """The method's name."""
        return "Exact Diffusion"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> DiffusionState:
        """Draw W_0."""
        check_fits(task, network, self.model)
        check_averages(network, self.name)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        return DiffusionState(weights, adapted=weights)

    def step(
        self, state: State, task: Task, network: Network, generator: torch.Generator
    ) -> DiffusionState:
        """Adapt, correct, and combine with the neighbours."""
        state = own_state(state, DiffusionState)
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, generator)
        gradient = node_gradient(self.model, network, state.weights, batch)
        adapted = state.weights - self.step_size * gradient
        corrected = adapted + state.weights - state.adapted
        combined = (corrected + network.mix(corrected)) / 2
        return DiffusionState(combined, state.steps + 1, adapted=adapted)
