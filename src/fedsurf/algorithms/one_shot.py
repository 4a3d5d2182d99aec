"""One-shot averaging: every agent trains alone to optimality, then the optima are averaged, once.

Y. Zhang, J. C. Duchi and M. J. Wainwright, "Communication-efficient algorithms for statistical
optimization", JMLR 14, 2013:

    w_i = argmin_w f_i(w) + (strength/2) ‖w‖²,   w = (1/n) Σ_i w_i.

The average is taken by gossip over a graph, or by the server, which has heard one agent after the
other (`gossip`).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import Start, State, check_fits
from fedsurf.algorithms.checks import own_state
from fedsurf.algorithms.gossip import AveragingState, averaging_step, begin_averaging
from fedsurf.algorithms.local_only import check_local_training, local_optimum
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class OneShot:
    """Train alone before the first round, average from then on: one round a step.

    All agents train from the same row of W_0, node 0's, since averages of a model that is not
    convex need a common start; a common seed gives it without a float sent. A message holds the
    weights, and one float more where agents count by their examples.

    Attributes
    ----------
    model : Model
        What the agents train.
    strength : float
        The penalty beside an agent's mean loss, positive, on all weights.
    weighting : {"uniform", "examples"}
        How much an agent counts in the average: as much as any other (the paper's), or by its
        number of examples.
    iterations : int
        Steps of L-BFGS at most.
    accelerated : bool
        Chebyshev-accelerated gossip, or plain; see `gossip`.
    start : Start
        Where W_0 is drawn.
    """

    model: Model
    strength: float = 1e-2
    weighting: AgentWeighting = "uniform"
    iterations: int = 200
    accelerated: bool = True
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_local_training(self.strength, self.iterations)
        if self.weighting not in ("uniform", "examples"):
            raise ValueError(
                f"weighting: got {self.weighting!r}, but it must be 'uniform' or 'examples'"
            )

    @property
    def name(self) -> str:
        """The method's name."""
        return "one-shot averaging"

    def init(self, task: Task, network: Network, generator: torch.Generator) -> AveragingState:
        """Draw W_0, train alone."""
        check_fits(task, network, self.model)
        weights = self.start.draw(network, self.model, generator, task.train.x.dtype)
        first = weights[:1].expand(task.agents, -1)
        trained = local_optimum(
            self.model, first, task.train, self.strength, iterations=self.iterations
        )
        if self.weighting == "examples":
            counts = task.train.counts.to(trained.dtype)[:, None]
            trained = torch.cat([counts * trained, counts], 1)
        return begin_averaging(weights, trained, network, accelerated=self.accelerated)

    def step(
        self,
        state: State,
        task: Task,  # noqa: ARG002 - the local optima are in the state
        network: Network,
        generator: torch.Generator,  # noqa: ARG002
    ) -> AveragingState:
        """Average the local optima for one round."""
        return averaging_step(own_state(state, AveragingState), network, self._solve)

    def _solve(self, estimates: Tensor, weights: Tensor) -> Tensor:
        if self.weighting == "uniform":
            return estimates
        total = estimates[:, -1:]
        # Accelerated gossip may weigh negatively at first: such an agent keeps its weights.
        return torch.where(total > 0, estimates[:, :-1] / total, weights)
