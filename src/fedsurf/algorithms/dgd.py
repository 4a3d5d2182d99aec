"""Decentralised gradient descent (DGD).

A. Nedić and A. Ozdaglar, "Distributed subgradient methods for multi-agent optimization", IEEE
Transactions on Automatic Control 54(1), 2009:

    w_i(l) = Σ_j α_ij w_j(l−1) − β ∇f_i(w_i(l−1)).
"""

from dataclasses import dataclass, field

import torch

from fedsurf.algorithms.algorithm import Start, State, check_fits, node_gradient
from fedsurf.algorithms.checks import check_batch_size, check_mixes, check_step_size
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class DGD:
    """Mix with the neighbours, step against the own gradient: one round a step.

    Attributes
    ----------
    model : Model
        What the agents train.
    step_size : float
        The paper's β.
    batch_size : int or None
        Examples of a mini-batch (the paper: 10); all of an agent's examples where None.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    step_size: float = 1.0
    batch_size: int | None = None
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_step_size(self.step_size)
        check_batch_size(self.batch_size)

    @property
    def name(self) -> str:
        """The method's name."""
        return "DGD"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Draw W_0."""
        check_fits(task, network, self.model)
        check_mixes(network, self.name)
        return State(self.start.draw(network, self.model, generator, task.train.x.dtype))

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return S·W − β ∇f(W), row by row."""
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, generator)
        gradient = node_gradient(self.model, network, state.weights, batch)
        return State(network.mix(state.weights) - self.step_size * gradient, state.steps + 1)
