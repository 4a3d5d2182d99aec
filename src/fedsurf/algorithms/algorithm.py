"""What an algorithm is: `init` and `step` over a state of tensors, classical and learned ones alike.

An algorithm sees its own agents' rows and `network.mix` (or `mix_parts`), nothing else of the network:
if it is written against this interface, it is decentralised.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsurf.common.checks import check_number, check_whole
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class State:
    """What an algorithm carries from step to step: tensors and numbers only.

    Attributes
    ----------
    weights : Tensor
        The estimates W, `[nodes, parameters]`.
    steps : int
        Steps taken so far.
    """

    weights: Tensor
    steps: int = 0


class Algorithm(Protocol):
    """A method that trains `model` on a task over a network, step by step."""

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        ...

    @property
    def model(self) -> Model:
        """What it trains."""
        ...

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the state before the first step."""
        ...

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the state after one more step, which may take several rounds of the network."""
        ...


def check_deviation(deviation: float, argument: str = "deviation") -> None:
    """Raise unless weights can be drawn with this standard deviation."""
    check_number(deviation, argument)
    if not 0 <= deviation < math.inf:
        raise ValueError(f"{argument}: got {deviation}, but it must be a finite number, at least 0")


@dataclass(frozen=True)
class Start:
    """Where all methods start: W_0 ~ N(mean, deviation²), independent for every agent and weight.

    Attributes
    ----------
    mean : float
        The mean of the initial weights.
    deviation : float
        Their standard deviation; with 0 all agents start at the mean.
    """

    mean: float = 0.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        check_number(self.mean, "mean")
        if not math.isfinite(self.mean):
            raise ValueError(f"mean: got {self.mean}, but weights start at a finite number")
        check_deviation(self.deviation)

    def draw(
        self,
        network: Network,
        model: Model,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Draw W_0, `[nodes, parameters]`."""
        shape = (network.nodes, model.parameters)
        return self.mean + self.deviation * torch.randn(shape, generator=generator, dtype=dtype)


def check_algorithm(algorithm: object) -> None:
    """Raise unless an object has everything that a run asks of an algorithm."""
    missing = [name for name in ("name", "model", "init", "step") if not hasattr(algorithm, name)]
    if missing:
        way = ": use what its on(model, rounds) returns" if hasattr(algorithm, "on") else ""
        raise TypeError(
            f"algorithm: got a {type(algorithm).__name__} without {' and '.join(missing)}, but it must have "
            f"name, model, init and step{way}"
        )


def check_fits(task: Task, network: Network, model: Model | None = None) -> None:
    """Raise unless every agent of the network has its examples in the task, and the model takes them."""
    if task.agents != network.agents:
        raise ValueError(
            f"task: got examples of {task.agents} agents, but the network has {network.agents} agents"
        )
    if model is not None:
        check_parameters(model)
        model.check_takes(task.train, task.classes)


def check_parameters(model: Model) -> None:
    """Raise unless a model says how many weights an agent has."""
    if not hasattr(model, "parameters"):
        raise TypeError(
            f"model: got a {type(model).__name__} without parameters, but it must have the number of "
            "weights of one agent there: set self.parameters"
        )
    check_whole(model.parameters, "model.parameters")


def node_gradient(model: Model, network: Network, weights: Tensor, examples: Examples) -> Tensor:
    """Return each agent's gradient ∇f_i(w_i), and zero for a server, `[nodes, parameters]`."""
    gradient = model.gradient(network.agent_rows(weights), examples)
    if not network.server:
        return gradient
    return torch.cat([torch.zeros_like(gradient[:1]), gradient])
