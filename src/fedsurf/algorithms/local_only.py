"""Local-only training: every agent trains alone, to optimality. The floor of a comparison."""

from dataclasses import dataclass

from fedsurf.algorithms.algorithm import ClassicalMethod, State
from fedsurf.algorithms.local import local_optimum
from fedsurf.common.checks import check_count, check_positive
from fedsurf.common.streams import Streams
from fedsurf.network import Network
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class LocalOnly(ClassicalMethod):
    """Train alone to optimality in the first step, then rest; nothing is ever sent.

        w_i = argmin_w f_i(w) + (strength/2) ‖w‖²

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import LocalOnly
    >>> LocalOnly(SoftmaxHead(features=64, classes=10), strength=1e-3).name
    'local only'
    """

    strength: float = 1e-2
    """The penalty's strength, positive. It applies to all weights, since the bias of a class without
    examples at an agent would fall for ever."""
    iterations: int = 200
    """Maximum number of L-BFGS steps."""
    name = "local only"

    def __post_init__(self) -> None:
        check_positive(self.strength, "strength")
        check_count(self.iterations, "iterations")

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Draw W_0."""
        return State(self._first_weights(task, network, streams))

    def step(
        self,
        state: State,
        task: Task,
        network: Network,
        streams: Streams,  # noqa: ARG002 - nothing is random here
    ) -> State:
        """Train to optimality in the first step; a server's row stays as it is."""
        if state.steps > 0:
            return State(state.weights, state.steps + 1)
        trained = local_optimum(
            self.model,
            network.agent_rows(state.weights),
            task.train,
            self.strength,
            iterations=self.iterations,
        )
        return State(network.with_server(trained, state.weights[: network.servers]), 1)
