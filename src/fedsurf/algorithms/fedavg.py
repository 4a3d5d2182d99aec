"""Federated averaging (FedAvg).

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from fedsurf.algorithms.local import Correction
from fedsurf.algorithms.server import Own, Replies, RoundState, ServerMethod, Work


@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Train at the agents and average at the server; fields as in `ServerMethod`.

    Each called agent k starts at the server's model w_t and takes K steps; the server averages:

        w_k ← w_k − η ∇f_k(w_k; mini-batch),      w_{t+1} = Σ_k (n_k/n) w_k

    With one local step on all examples of all agents it is centralised gradient descent; with more
    steps and heterogeneous agents its limit differs from the optimum.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import FedAvg
    >>> FedAvg(SoftmaxHead(features=64, classes=10), local_steps=6, step_size=0.3).name
    'FedAvg'
    """

    name = "FedAvg"

    def _correction(self, received: Tensor) -> Correction | None:  # noqa: ARG002
        """Return a term to add to every gradient, given the received models `[called, parameters]`."""
        return None

    def server_message(self, state: RoundState) -> Tensor:
        """Send the model."""
        return state.weights

    def agent_reply(self, received: Tensor, own: Own, work: Work) -> tuple[Tensor, Own]:
        """Reply with the trained model."""
        return self.train(received, work, correction=self._correction(received)), own

    def server_update(self, state: RoundState, replies: Replies) -> RoundState:
        """Take the average of the trained models."""
        return replace(state, weights=replies.mean)
