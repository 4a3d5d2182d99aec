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

from fedsurf.common.checks import (
    check_count,
    check_not_negative,
    check_number,
    check_positive,
    check_whole,
)
from fedsurf.models import Model, ModuleModel, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task

AVERAGING_TOLERANCE = 1e-9
"""The largest asymmetry of S, and deviation of its row sums from 1, that counts as rounding."""


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


def check_batch_size(batch_size: int | None) -> None:
    """Raise unless a mini-batch holds at least one example; None stands for all examples."""
    if batch_size is not None:
        check_whole(batch_size, "batch_size", " or None for all examples")
        check_count(batch_size, "batch_size", why=", or None for all examples")


def check_fits(task: Task, network: Network, model: Model | None = None) -> None:
    """Raise unless task and network have the same agents and the model takes their examples."""
    if task.agents != network.agents:
        raise ValueError(
            f"task: got examples of {task.agents} agents, but the network has {network.agents} agents"
        )
    if model is not None:
        model.check_takes(task.train, task.classes)


def check_head_fits(model: SoftmaxHead, task: Task) -> None:
    """Raise unless the head has the task's features and classes."""
    if (model.features, model.classes) != (task.features, task.classes):
        raise ValueError(
            f"task: got {task.features} features and {task.classes} classes, but the model has "
            f"{model.features} features and {model.classes} classes"
        )


def check_mixes(network: Network, method: str) -> None:
    """Raise unless the rows of S sum to 1, so that mixing keeps agreement."""
    if any(
        _row_excess(s).abs().max() > AVERAGING_TOLERANCE for s in network.operators(torch.float64)
    ):
        raise ValueError(
            f"network: got the shift operator {network.shift!r}, which does not average, but {method} "
            "mixes averages: use 'metropolis' or 'adjacency'"
        )


def check_averages(network: Network, method: str) -> None:
    """Raise unless S is symmetric and its rows sum to 1, so that mixing keeps the agents' average.

    A star in which only some agents report is judged by the S of all agents.
    """
    for operator in network.operators(torch.float64):
        difference = operator - operator.t()
        entries = difference.coalesce().values() if difference.is_sparse else difference.flatten()
        if torch.cat([entries, _row_excess(operator)]).abs().max() > AVERAGING_TOLERANCE:
            raise ValueError(
                f"network: got the shift operator {network.shift!r}, which on this graph is not "
                f"symmetric with rows that sum to 1, but {method} needs that: use 'metropolis'"
            )


def _row_excess(operator: Tensor) -> Tensor:
    """Return the row sums of S minus 1, `[nodes]`."""
    return (operator @ torch.ones(len(operator), 1, dtype=operator.dtype) - 1).flatten()
