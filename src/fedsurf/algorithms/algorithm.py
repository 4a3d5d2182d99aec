"""The interface of an algorithm: `init` and `step` over a state of tensors, classical and learned alike.

An algorithm sees the rows of its own process (`network.ids`), `network.mix` (or `mix_parts`), and what
everybody knows of the network (`network.facts`): the same code runs where all agents live in one process,
and where each has its own. Its draws come from the agents' own streams.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from fedsurf.algorithms.checks import check_batch_size, check_fits
from fedsurf.common.checks import (
    check_not_negative,
    check_number,
    check_positive,
)
from fedsurf.common.streams import Streams
from fedsurf.models import Model, ModuleModel
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task


@dataclass(frozen=True)
class State:
    """Tensors and numbers that an algorithm carries from step to step."""

    weights: Tensor
    """The estimates W of the rows that live here, `[rows, parameters]`."""
    steps: int = 0
    """Steps taken so far."""

    def agent_weights(self, network: Network) -> Tensor:
        """Return the weights by which the agents that live here are judged, `[agents, parameters]`."""
        return network.agent_rows(self.weights)


@dataclass(frozen=True)
class ServerState(State):
    """The state of a method whose only model is the server's: `weights[servers, parameters]`."""

    def agent_weights(self, network: Network) -> Tensor:
        """Return the server's model for each agent that lives here; nothing is counted as sent."""
        return network.publish(self.weights)


OwnState = TypeVar("OwnState", bound=State)


class Algorithm(Protocol):
    """A method that trains `model` on a task over a network, step by step.

    Examples
    --------
    Two agents with one feature each train a classifier by hand; `fedsurf.run` does the same.

    >>> import networkx as nx, torch
    >>> from fedsurf import Examples, Network, SoftmaxHead, Streams, Task
    >>> from fedsurf.algorithms import DGD
    >>> examples = Examples(torch.tensor([[[0.0], [1.0]]] * 2), torch.tensor([[0, 1]] * 2))
    >>> task = Task(examples, examples, classes=2)
    >>> network = Network(nx.path_graph(2), "metropolis")
    >>> algorithm = DGD(SoftmaxHead(features=1, classes=2), step_size=0.5)
    >>> streams = Streams(0, network.ids)
    >>> state = algorithm.init(task, network, streams.at("start"))
    >>> for step in range(3):
    ...     state = algorithm.step(state, task, network, streams.at("step", step))
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

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Return the state before the first step; `streams` has a row for each of `network.ids`."""
        ...

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Return the state after one more step, which may take several rounds of the network.

        `streams` are those of this step: the same ones in another step would draw the same numbers.
        """
        ...


def own_state(state: State, kind: type[OwnState]) -> OwnState:
    """Return `state` as the kind that a method's `init` returns, or raise if it is another method's."""
    if not isinstance(state, kind):
        raise TypeError(
            f"state: got a {type(state).__name__}, but it must be the {kind.__name__} of this method's init"
        )
    return state


def device_of(algorithm: Algorithm) -> torch.device | None:
    """Return the device of an algorithm's learned parameters; None if it has none."""
    module = (
        algorithm if isinstance(algorithm, nn.Module) else getattr(algorithm, "optimizer", None)
    )
    return next(module.parameters()).device if isinstance(module, nn.Module) else None


def on_device(algorithm: Algorithm, device: torch.device) -> Algorithm:
    """Return an algorithm whose learned parameters, if it has any, are on a device."""
    if device_of(algorithm) == device:
        return algorithm
    if isinstance(algorithm, nn.Module):
        return cast(Algorithm, deepcopy(algorithm).to(device))
    optimizer = getattr(algorithm, "optimizer", None)
    if isinstance(optimizer, nn.Module):
        made: Any = algorithm
        algorithm = replace(made, optimizer=deepcopy(optimizer).to(device))
    return algorithm


def node_gradient(model: Model, network: Network, weights: Tensor, examples: Examples) -> Tensor:
    """Return each agent's gradient ∇f_i(w_i), and zero for a server, `[rows, parameters]`."""
    return network.with_server(model.gradient(network.agent_rows(weights), examples))


@dataclass(frozen=True)
class Start:
    """Independent initial weights, W_0 ~ N(mean, deviation²) for every agent and weight.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import SoftmaxHead, Streams
    >>> Start(deviation=0.1).draw(SoftmaxHead(4, 2), Streams(0, [0, 1, 2]), torch.empty(0)).shape
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

    def draw(self, model: Model, streams: Streams, like: Tensor) -> Tensor:
        """Draw W_0, `[rows of the streams, parameters]`, in the type and on the device of `like`.

        With `streams.shared()`, one row that every process draws alike.
        """
        if self.deviation == 0:
            return like.new_full((len(streams), model.parameters), self.mean)
        return (self.mean + self.deviation * streams.normal(model.parameters)).to(like)


@dataclass(frozen=True)
class SharedStart(Start):
    """The same initial weights at all agents, for networks with hidden layers.

    Averages of independently drawn networks are close to zero, where all hidden units are alike. Agents
    that share a seed draw the same weights without a message.

    Matrices have entries N(mean, deviation² / fan-in). Vectors are zero (biases), or one if their name
    ends in `weight` (scales of a normalisation).

    Examples
    --------
    >>> import torch
    >>> from fedsurf import ModuleModel, Streams
    >>> model = ModuleModel(torch.nn.Linear(4, 2))
    >>> weights = SharedStart().draw(model, Streams(0, [0, 1, 2]), torch.empty(0))
    >>> bool((weights == weights[0]).all())
    True
    """

    def draw(self, model: Model, streams: Streams, like: Tensor) -> Tensor:
        """Draw W_0, `[rows of the streams, parameters]`."""
        if not isinstance(model, ModuleModel):
            raise TypeError(f"model: got a {type(model).__name__}, but it must be a ModuleModel")
        drawn = streams.shared().normal(model.parameters)[0]
        pieces, sizes = [], [shape.numel() for shape in model.shapes.values()]
        parts = zip(model.shapes.items(), fan_ins(model.shapes), drawn.split(sizes), strict=True)  # type: ignore[no-untyped-call]
        for (name, shape), inputs, normal in parts:
            if len(shape) > 1:
                pieces.append(self.mean + self.deviation / math.sqrt(inputs) * normal)
            else:
                pieces.append(torch.full_like(normal, 1.0 if name.endswith("weight") else 0.0))
        return torch.cat(pieces).to(like).repeat(len(streams), 1)


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

    def check(self, task: Task) -> None:  # noqa: B027 - optional
        """Raise if the method cannot resolve the numbers of a task; they are read before a run."""

    def _first_weights(self, task: Task, network: Network, streams: Streams) -> Tensor:
        check_fits(task, network, self.model)
        return self.start.draw(self.model, streams, task.train.x)


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

    def _gradient(self, weights: Tensor, task: Task, network: Network, streams: Streams) -> Tensor:
        batch = task.train
        if self.batch_size is not None:
            batch = task.train.draw(self.batch_size, network.agent_rows(streams))
        return node_gradient(self.model, network, weights, batch)
