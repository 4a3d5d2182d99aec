"""U-DGD: decentralised gradient descent unrolled into the layers of a graph neural network.

    w_{i,l} = [Σ_{k=0..K} h_{k,l} S^k W_{l−1}]_i − σ(M_l [w_{i,l−1} ‖ b_{i,l}] + d_l)

Compared with its classical step in `fedsurf.algorithms.dgd`, mixing becomes a learned filter of K rounds,
and the gradient step a learned perceptron of the weights and a mini-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import Start, State
from fedsurf.algorithms.checks import check_fits
from fedsurf.common.checks import check_count, check_kind, check_option
from fedsurf.common.devices import CPU
from fedsurf.common.streams import Streams
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.config import Activation, UDGDConfig
from fedsurf.unrolled.perceptron import Perceptron, flatten_batch


class GraphFilter(nn.Module):
    """A polynomial of the shift operator, Σ_k h_k S^k W, with `order + 1` learned taps h_0 … h_K.

    It starts as the plain mean of the K + 1 terms.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> from fedsurf.network import Network
    >>> network = Network(nx.cycle_graph(4), "metropolis")
    >>> filtered = GraphFilter(order=2)(torch.ones(4, 3), network)
    >>> filtered.shape, network.rounds
    (torch.Size([4, 3]), 2)
    """

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        self.taps = nn.Parameter(torch.full((order + 1,), 1 / (order + 1), device=CPU))

    def forward(self, weights: Tensor, network: Network) -> Tensor:
        """Filter `weights[rows, parameters]` in `order` rounds.

        A server, node 0 of a star, has no weights to keep: its tap h_0 is left out.
        """
        shifted = weights
        filtered = network.with_server(self.taps[0] * network.agent_rows(weights))
        for tap in self.taps[1:]:
            shifted = network.mix(shifted)
            filtered = filtered + tap * shifted
        return filtered


class UDGDLayer(nn.Module):
    """One layer φ(W, B; h, M, d): a graph filter minus a perceptron."""

    def __init__(self, model: SoftmaxHead, config: UDGDConfig, generator: torch.Generator) -> None:
        super().__init__()
        batch = config.batch_size * (model.features + model.classes)
        self.filter = GraphFilter(config.filter_order)
        self.perceptron = Perceptron(model.parameters, batch, config.activation, generator)

    def forward(self, weights: Tensor, flat_batch: Tensor, network: Network) -> Tensor:
        """Map W_{l−1} `[rows, parameters]` to W_l. A server has no data and applies the filter only."""
        update = network.with_server(self.perceptron(network.agent_rows(weights), flat_batch))
        filtered: Tensor = self.filter(weights, network) - update
        return filtered


class UDGD(nn.Module):
    """An unrolled optimizer of `config.layers` layers that trains softmax heads.

    Parameters
    ----------
    model : SoftmaxHead
        The model that agents train. The perceptrons fit its numbers of features and classes only.
    config : UDGDConfig
        The optimizer's shape.
    generator : torch.Generator
        Draws the initial parameters θ.

    Examples
    --------
    >>> from fedsurf import UDGD, SoftmaxHead, generator
    >>> from fedsurf.unrolled import UDGDConfig
    >>> optimizer = UDGD(SoftmaxHead(8, 3), UDGDConfig(layers=4), generator(0))
    >>> optimizer.steps, sum(parameter.numel() for parameter in optimizer.parameters())
    (4, 14916)
    """

    name = "U-DGD"

    def __init__(self, model: SoftmaxHead, config: UDGDConfig, generator: torch.Generator) -> None:
        super().__init__()
        check_kind(model, SoftmaxHead, "model", "a SoftmaxHead")
        check_count(config.layers, "layers")
        check_count(config.filter_order, "filter_order", 0)
        check_count(config.batch_size, "batch_size")
        check_option(config.activation, Activation, "activation")
        self.model = model
        self.config = config
        self.start = Start(config.initial_mean, config.initial_deviation)
        self.layers = nn.ModuleList(
            UDGDLayer(model, config, generator) for _ in range(config.layers)
        )

    @property
    def steps(self) -> int:
        """The largest number of steps: the layers."""
        return len(self.layers)

    @property
    def constraints(self) -> int:
        """The number of descending constraints: one for each layer."""
        return self.steps

    def on(self, model: Model, rounds: int | None = None) -> UDGD:
        """Return the algorithm for a model: the optimizer itself, which fits one model only."""
        own_rounds = self.steps * self.config.filter_order
        if model.parameters != self.model.parameters or rounds not in (None, own_rounds):
            raise ValueError(
                f"model, rounds: got {model.parameters} parameters and {rounds} rounds, but this "
                f"optimizer has {self.model.parameters} and {own_rounds}"
            )
        return self

    def init(self, task: Task, network: Network, streams: Streams) -> State:
        """Draw W_0."""
        check_fits(task, network)
        if (task.features, task.classes) != (self.model.features, self.model.classes):
            raise ValueError(
                f"task: got {task.features} features and {task.classes} classes, but this optimizer "
                f"fits {self.model.features} and {self.model.classes}"
            )
        found, wanted = task.train.x.dtype, next(self.parameters()).dtype
        if found != wanted:
            raise ValueError(
                f"task: got features in {found}, but this optimizer is in {wanted}: convert the task, or "
                "the optimizer with .to(dtype)"
            )
        return State(self.start.draw(self.model, streams, task.train.x))

    def step(self, state: State, task: Task, network: Network, streams: Streams) -> State:
        """Apply the next layer, each agent with a mini-batch of its examples."""
        if state.steps >= self.steps:
            raise ValueError(
                f"state: got one after {state.steps} steps, but this optimizer has {self.steps} layers"
            )
        batch = task.train.draw(self.config.batch_size, network.agent_rows(streams))
        return self.apply_layer(state, batch, network)

    def apply_layer(self, state: State, batch: Examples, network: Network) -> State:
        """Apply the next layer with the given mini-batches."""
        flat = flatten_batch(batch, self.model.classes)
        weights: Tensor = self.layers[state.steps](state.weights, flat, network)
        return State(weights, state.steps + 1)
