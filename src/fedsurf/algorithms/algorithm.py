"""The interface of an algorithm: `init` and `step` over a state of tensors, classical and learned alike.

An algorithm sees its own agents' rows and `network.mix` (or `mix_parts`), nothing else of the network:
code written against this interface is decentralised.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedsurf.algorithms.checks import check_batch_size, check_fits
from fedsurf.common.checks import (
    check_not_negative,
    check_number,
    check_positive,
)
from fedsurf.models import Model, ModuleModel
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task


@dataclass(frozen=True)
class State:
    """Tensors and numbers that an algorithm carries from step to step."""

    weights: Tensor
    """The estimates W, `[nodes, parameters]`."""
    steps: int = 0
    """Steps taken so far."""


OwnState = TypeVar("OwnState", bound=State)


class Algorithm(Protocol):
    """A method that trains `model` on a task over a network, step by step.

    Examples
    --------
    Two agents with one feature each train a classifier by hand; `fedsurf.run` does the same.

    >>> import networkx as nx, torch
    >>> from fedsurf import Examples, Network, SoftmaxHead, Task, generator
    >>> from fedsurf.algorithms import DGD
    >>> examples = Examples(torch.tensor([[[0.0], [1.0]]] * 2), torch.tensor([[0, 1]] * 2))
    >>> task = Task(examples, examples, classes=2)
    >>> network = Network(nx.path_graph(2), "metropolis")
    >>> algorithm = DGD(SoftmaxHead(features=1, classes=2), step_size=0.5)
    >>> state = algorithm.init(task, network, generator(0))
    >>> for _ in range(3):
    ...     state = algorithm.step(state, task, network, generator(0))
    >>> state.weights.shape, network.rounds
    (torch.Size([2, 4]), 3)
    """

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        ...

    @property
    def model(self) -> Model:
        """The model that agents train."""
        ...

    def init(self, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the state before the first step."""
        ...

    def step(self, state: State, task: Task, network: Network, generator: torch.Generator) -> State:
        """Return the state after one more step, which may take several rounds of the network."""
        ...


def own_state(state: State, kind: type[OwnState]) -> OwnState:
    """Return `state` as the kind that a method's `init` returns, or raise if it is another method's."""
    if not isinstance(state, kind):
        raise TypeError(
            f"state: got a {type(state).__name__}, but it must be the {kind.__name__} of this method's init"
        )
    return state


def node_gradient(model: Model, network: Network, weights: Tensor, examples: Examples) -> Tensor:
    """Return each agent's gradient ∇f_i(w_i), and zero for a server, `[nodes, parameters]`."""
    gradient = model.gradient(network.agent_rows(weights), examples)
    if not network.server:
        return gradient
    return torch.cat([torch.zeros_like(gradient[:1]), gradient])


@dataclass(frozen=True)
class Start:
    """Independent initial weights, W_0 ~ N(mean, deviation²) for every agent and weight.

    Examples
    --------
    >>> import networkx as nx
    >>> from fedsurf import Network, SoftmaxHead, generator
    >>> Start(deviation=0.1).draw(Network(nx.path_graph(3)), SoftmaxHead(4, 2), generator(0)).shape
    torch.Size([3, 10])
    """

    mean: float = 0.0
    """Mean of the initial weights."""
    deviation: float = 1.0
    """Their standard deviation; with 0 all agents start at the mean."""

    def __post_init__(self) -> None:
        check_number(self.mean, "mean")
        if not math.isfinite(self.mean):
            raise ValueError(f"mean: got {self.mean}, but it must be a finite number")
        check_not_negative(self.deviation, "deviation")

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


@dataclass(frozen=True)
class SharedStart(Start):
    """The same initial weights at all agents, for networks with hidden layers.

    Averages of independently drawn networks are close to zero, where all hidden units are alike. Agents
    that share a seed draw the same weights without a message.

    Matrices have entries N(mean, deviation² / fan-in). Vectors are zero (biases), or one if their name
    ends in `weight` (scales of a normalisation).

    Examples
    --------
    >>> import networkx as nx, torch
    >>> from fedsurf import ModuleModel, Network, generator
    >>> model = ModuleModel(torch.nn.Linear(4, 2))
    >>> weights = SharedStart().draw(Network(nx.path_graph(3)), model, generator(0))
    >>> bool((weights == weights[0]).all())
    True
    """

    def draw(
        self,
        network: Network,
        model: Model,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Draw W_0, `[nodes, parameters]`."""
        if not isinstance(model, ModuleModel):
            raise TypeError(f"model: got a {type(model).__name__}, but it must be a ModuleModel")
        pieces = []
        for (name, shape), inputs in zip(model.shapes.items(), fan_ins(model.shapes), strict=True):
            if len(shape) > 1:
                drawn = torch.randn(shape.numel(), generator=generator, dtype=dtype)
                pieces.append(self.mean + self.deviation / math.sqrt(inputs) * drawn)
            else:
                value = 1.0 if name.endswith("weight") else 0.0
                pieces.append(torch.full((shape.numel(),), value, dtype=dtype))
        return torch.cat(pieces).repeat(network.nodes, 1)


def fan_ins(shapes: Mapping[str, torch.Size]) -> list[int]:
    """Return the number of inputs of an output of each tensor; vectors share it with their matrix."""
    found, inputs = [], 1
    for shape in shapes.values():
        if len(shape) > 1:
            inputs = max(1, shape.numel() // shape[0])
        found.append(inputs)
    return found


@dataclass(frozen=True)
class ClassicalMethod(ABC):
    """A method without learned parameters."""

    model: Model
    """The model that agents train."""
    start: Start = field(default_factory=Start, kw_only=True)
    """The distribution of W_0."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The method's name in tables and figures."""

    def _first_weights(self, task: Task, network: Network, generator: torch.Generator) -> Tensor:
        check_fits(task, network, self.model)
        return self.start.draw(network, self.model, generator, task.train.x.dtype)


@dataclass(frozen=True)
class GradientMethod(ClassicalMethod):
    """A method that combines gradients and mixing, one round a step."""

    step_size: float = 0.1
    """The step β."""
    batch_size: int | None = field(default=None, kw_only=True)
    """Examples of a mini-batch; all of an agent's examples where None."""

    def __post_init__(self) -> None:
        check_positive(self.step_size, "step_size")
        check_batch_size(self.batch_size)

    def _gradient(
        self, weights: Tensor, task: Task, network: Network, generator: torch.Generator
    ) -> Tensor:
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, generator)
        return node_gradient(self.model, network, weights, batch)
