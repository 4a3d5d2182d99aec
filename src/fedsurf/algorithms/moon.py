"""MOON: model-contrastive federated learning.

Q. Li, B. He and D. Song, "Model-contrastive federated learning", CVPR 2021, Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import grad
from torch.nn import functional

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.server import Own, RoundState, Work
from fedsurf.common.checks import check_not_negative, check_positive
from fedsurf.models import Model
from fedsurf.tasks.task import Examples

Representation = Callable[[Tensor, Tensor], Tensor]
"""Maps `weights[agents, parameters]` and `x[agents, examples, …]` to `[agents, examples, width]`."""


@dataclass(frozen=True, kw_only=True)
class MOONState(RoundState):
    """The server's model and the agents' previous ones, `[agents, parameters]`; W_0 at the start."""

    previous: Tensor

    agents_own = ("previous",)


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg whose agents keep their representations near the server's.

    Each called agent adds to its loss μ times, in the mean over the examples of the mini-batch,

        −log( exp(sim(z, z_server)/τ) / (exp(sim(z, z_server)/τ) + exp(sim(z, z_previous)/τ)) )

    where sim is the cosine and z, z_server, z_previous are an example's representations by the model in
    training, the server's model, and the model with which the agent ended its last training. All three
    are W_0 at first, so that the term has no effect in an agent's first training. Messages are FedAvg's.

    **On frozen features with a linear head MOON is FedAvg.** The representation is the input of the
    output layer. For a `SoftmaxHead` these are the frozen features, which do not depend on the weights:
    the term is the constant log 2. The SURF paper compares with MOON in this setting and does not
    define the representation. `representation="logits"` takes the scores, which do depend on the
    weights; that is a variation on the authors' method.

    Examples
    --------
    >>> from fedsurf import SoftmaxHead
    >>> from fedsurf.algorithms import MOON
    >>> MOON(SoftmaxHead(features=64, classes=10), mu=0.1, representation="logits").name
    'MOON'
    """

    name = "MOON"
    state_kind = MOONState
    mu: float = 1.0
    """The contrastive term's strength μ (0.1, 1, 5 and 10 in the paper); 0 is FedAvg."""
    temperature: float = 0.5
    """The paper's τ (0.5 there)."""
    representation: Literal["features", "logits"] | Representation = "features"
    """The input of the model's output layer (`Model.representation`), the scores, or a function of
    weights and examples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.mu, "mu")
        check_positive(self.temperature, "temperature")
        if not callable(self.representation) and self.representation not in ("features", "logits"):
            raise ValueError(
                f"representation: got {self.representation!r}, "
                "but it must be 'features', 'logits' or a function of weights and examples"
            )

    def first_state(self, first: RoundState, drawn: Tensor, agents: int) -> RoundState:
        """Return the state before the first round; W_0 is every agent's previous model, too."""
        previous = drawn.repeat(agents, 1)
        return MOONState(first.weights, total=first.total, previous=previous)

    def agent_reply(self, received: Tensor, own: Own, work: Work) -> tuple[Tensor, Own]:
        """Reply with the trained model, which is the next previous one."""
        local = self.train(received, work, model=_Contrasted(self, received, own["previous"]))
        return local, {"previous": local}

    def represent(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the contrasted representation, `[agents, examples, width]`."""
        if self.representation == "features":
            return self.model.representation(weights, x)
        if self.representation == "logits":
            return self.model.logits(weights, x)
        return self.representation(weights, x)


class _Contrasted(Model):
    """The agents' model with MOON's loss, for the length of a round."""

    def __init__(self, moon: MOON, received: Tensor, previous: Tensor) -> None:
        self.parameters = moon.model.parameters
        self._moon = moon
        self._received = received
        self._previous = previous

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        return self._moon.model.logits(weights, x)

    def loss(self, weights: Tensor, examples: Examples) -> Tensor:
        contrastive = self._contrastive(weights, examples)
        return self._moon.model.loss(weights, examples) + self._moon.mu * contrastive

    def gradient(self, weights: Tensor, examples: Examples) -> Tensor:
        # An agent's term depends on its own weights only: the sum has every agent's gradient.
        pull: Tensor = grad(lambda rows: self._contrastive(rows, examples).sum())(weights)
        return self._moon.model.gradient(weights, examples) + self._moon.mu * pull

    def _contrastive(self, weights: Tensor, examples: Examples) -> Tensor:
        own, server, previous = (
            self._moon.represent(rows, examples.x)
            for rows in (weights, self._received, self._previous)
        )
        to_server = functional.cosine_similarity(own, server, dim=2)
        to_previous = functional.cosine_similarity(own, previous, dim=2)
        return examples.mean(
            functional.softplus((to_previous - to_server) / self._moon.temperature)
        )
