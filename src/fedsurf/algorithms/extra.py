"""EXTRA, the exact first-order algorithm: DGD that corrects its bias by its own past.

W. Shi, Q. Ling, G. Wu and W. Yin, "EXTRA: an exact first-order algorithm for decentralized
consensus optimization", SIAM Journal on Optimization 25(2), 2015, with W̃ = (I + S)/2:

    W(1)   = S·W(0) − β ∇f(W(0))
    W(l+2) = (I + S) W(l+1) − ½ (I + S) W(l) − β [∇f(W(l+1)) − ∇f(W(l))].
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
class ExtraState(State):
    """Weights, and what the next step takes away from them.

    Attributes
    ----------
    past : Tensor
        ½ (I + S) W(l−1) − β ∇f(W(l−1)) of the step before, `[nodes, parameters]`; W(0) before the
        first step, which makes that one a step of DGD.
    """

    past: Tensor


@dataclass(frozen=True)
class EXTRA:
    """One round a step with the floats of DGD, and the optimum itself with a constant step.

    It needs a symmetric S whose rows sum to 1 (`Network(graph, "metropolis")`). In a star of whom
    only some agents report, S changes from round to round: it is exact no longer, and what that
    does to its corrections adds up, so that the weights drift away in a long run.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The β above; below 2 λ_min(W̃)/L it converges on convex losses with L-Lipschitz gradients.
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
        return "EXTRA"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> ExtraState:
        """Draw W_0."""
        check_fits(task, network, self.model)
        check_averages(network, self.name)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        return ExtraState(weights, past=weights)

    def step(
        self, state: State, task: Task, network: Network, generator: torch.Generator
    ) -> ExtraState:
        """Return (I + S) W − β ∇f(W) less what the step before left as the past."""
        state = own_state(state, ExtraState)
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, generator)
        descent = self.step_size * node_gradient(self.model, network, state.weights, batch)
        both = state.weights + network.mix(state.weights)
        return ExtraState(both - descent - state.past, state.steps + 1, past=both / 2 - descent)
