"""Models: what the agents train, pure functions of flat weights and examples, the Ψ(x; w) of the paper.

Weights are `[agents, parameters]`, a row for each agent; the model itself stores none. Every method is
differentiable, gradients included, since meta-training differentiates through them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedsurf.common.checks import check_count, check_kind
from fedsurf.tasks.task import Examples


class Model(ABC):
    """A classifier; a custom one sets `parameters` and defines `logits`, `loss` and `gradient`.

    Examples
    --------
    A linear classifier that is trained by least squares, with its gradient by `torch.func`:

    >>> import torch
    >>> from fedsurf import Examples, Model
    >>> class LeastSquares(Model):
    ...     def __init__(self, features, classes):
    ...         self.classes, self.parameters = classes, features * classes
    ...
    ...     def logits(self, weights, x):
    ...         return x @ weights.unflatten(1, (-1, self.classes))
    ...
    ...     def loss(self, weights, examples):
    ...         targets = torch.nn.functional.one_hot(examples.y, self.classes)
    ...         errors = self.logits(weights, examples.x) - targets
    ...         return examples.mean(errors.square().sum(2))
    ...
    ...     def gradient(self, weights, examples):
    ...         return torch.func.grad(lambda w: self.loss(w, examples).sum())(weights)
    >>> model = LeastSquares(features=2, classes=2)
    >>> examples = Examples(torch.eye(2).expand(3, 2, 2), torch.tensor([[0, 1]] * 3))
    >>> weights = torch.zeros(3, model.parameters)
    >>> model.accuracy(weights - model.gradient(weights, examples), examples)
    tensor([1., 1., 1.])
    """

    parameters: int
    """The number of weights of an agent, the paper's d."""

    @abstractmethod
    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return a score of every class.

        `weights[agents, parameters]` and `x[agents, examples, …]` give `[agents, examples, classes]`.
        With `x[1, examples, …]` every agent scores the same examples.
        """

    @abstractmethod
    def loss(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the mean loss f_i(w_i) over each agent's examples, `[agents]`."""

    @abstractmethod
    def gradient(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the gradient ∇f_i(w_i) of each agent's mean loss, `[agents, parameters]`."""

    def representation(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the input of the output layer for every example, `[agents, examples, width]`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define representation(weights, x), the input of its output layer"
        )

    def accuracy(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the share of each agent's examples that it classifies correctly, `[agents]`."""
        self._check(weights, examples)
        # Faster than argmax, and much so where the scores of an example are far apart in memory.
        hits = self.logits(weights, examples.x).max(2).indices == examples.y
        return examples.mean(hits.to(weights.dtype))

    def pooled_accuracy(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the share of *all* agents' examples that each agent classifies correctly, `[agents]`."""
        pool = examples.pooled()
        hits = self.logits(weights, pool.x).max(2).indices == pool.y
        return hits.to(weights.dtype).mean(1)

    def pooled_loss(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the mean cross-entropy of each agent over *all* agents' examples, `[agents]`."""
        pool = examples.pooled()
        return cross_entropy(self.logits(weights, pool.x), pool.y.expand(len(weights), -1)).mean(1)

    def check_takes(self, examples: Examples, classes: int) -> None:  # noqa: B027 - optional
        """Raise if the model cannot be trained on such examples and number of classes."""

    def _check(self, weights: Tensor, examples: Examples | None = None) -> None:
        if weights.dim() != 2 or weights.shape[1] != self.parameters:
            raise ValueError(
                f"weights: got shape {list(weights.shape)}, "
                f"but this model takes [agents, {self.parameters}]"
            )
        if examples is not None and examples.agents != len(weights):
            raise ValueError(
                f"examples: got examples of {examples.agents} agents, but there are weights of "
                f"{len(weights)} agents"
            )


class SoftmaxHead(Model):
    """The paper's softmax layer with bias, its gradient in closed form.

    The flat weights of an agent are the matrix `[features + 1, classes]`, row after row; its last
    row is the bias.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import SoftmaxHead
    >>> model = SoftmaxHead(features=4, classes=3)
    >>> model.logits(torch.zeros(5, model.parameters), torch.ones(5, 7, 4)).shape
    torch.Size([5, 7, 3])
    """

    def __init__(self, features: int, classes: int) -> None:
        check_count(features, "features")
        check_count(classes, "classes")
        self.features = features
        self.classes = classes
        self.parameters = (features + 1) * classes

    def check_takes(self, examples: Examples, classes: int) -> None:  # noqa: ARG002 - `logits` checks
        """Raise unless all classes have a score."""
        _check_scores(self.classes, classes)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return X·W + bias for every agent."""
        self._check(weights)
        self._check_features(weights, x)
        matrix = weights.reshape(-1, self.features + 1, self.classes)
        if x.shape[0] == 1 and len(matrix) > 1:
            # The same examples for all agents: one product instead of a batch of them. Classes come
            # before examples in memory, since sums over them are then much faster.
            stacked = matrix.mT.reshape(-1, self.features + 1)
            scores = torch.addmm(stacked[:, -1:], stacked[:, :-1], x[0].T)
            return scores.reshape(len(matrix), self.classes, -1).mT
        # A few long rows times the examples are faster than the examples times a few columns.
        rows = matrix.mT
        return torch.baddbmm(rows[:, :, -1:], rows[:, :, :-1], x.mT).mT

    def representation(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the features: there is no layer before the output."""
        self._check(weights)
        return x

    def loss(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the mean cross-entropy of each agent."""
        self._check(weights, examples)
        return examples.mean(cross_entropy(self.logits(weights, examples.x), examples.y))

    def gradient(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return Xᵀ(P − Y)/m above the row of the bias, flat, for every agent.

        Examples of one agent are used for the weights of all agents.
        """
        if examples.agents == 1 < len(weights):
            return self._gradients_on_shared_examples(weights, examples)
        self._check(weights, examples)
        probabilities = self.logits(weights, examples.x).softmax(2)
        labels = functional.one_hot(examples.y, self.classes)
        residual = (probabilities - labels) / examples.counts[:, None, None]
        if examples.mask is not None:
            residual = residual * examples.mask[:, :, None]
        matrix = torch.bmm(residual.mT, examples.x).mT
        return torch.cat([matrix, residual.sum(1, keepdim=True)], 1).flatten(1)

    def _check_features(self, weights: Tensor, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[2] != self.features or x.shape[0] not in (1, len(weights)):
            raise ValueError(
                f"x: got shape {list(x.shape)}, but this model with weights of {len(weights)} agents "
                f"takes [agents, examples, {self.features}], or 1 instead of agents"
            )

    def _gradients_on_shared_examples(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the gradients of all weights on the examples of one agent, by two products."""
        chances = self.logits(weights, examples.x).mT.softmax(1)
        labels = functional.one_hot(examples.y, self.classes).mT.to(chances).contiguous()
        residual = chances - labels
        if examples.mask is not None:
            residual = residual * examples.mask[:, None]
        matrix = (residual.flatten(0, 1) @ examples.x[0]).reshape(len(weights), self.classes, -1)
        total = torch.cat([matrix, residual.sum(2, keepdim=True)], 2).mT.flatten(1)
        return total / examples.counts


UNSEEN_MARGIN = 30.0
"""How far a class without examples scores below the mean of the others, for every example."""


def head_weights(rows: Tensor, seen: Tensor) -> Tensor:
    """Return a softmax head's flat weights from `rows[agents, classes, features + 1]`, bias last.

    An unseen class scores `UNSEEN_MARGIN` less than the mean of the seen ones: it never wins, and all
    numbers stay finite.
    """
    known = torch.where(seen[:, :, None], rows, 0)
    mean = known.sum(1, keepdim=True) / seen.sum(1).clamp(min=1)[:, None, None]
    mean[:, :, -1] -= UNSEEN_MARGIN
    filled = torch.where(seen[:, :, None], rows, mean)
    return filled.transpose(1, 2).flatten(1)


class ModuleModel(Model):
    """A small torch module as the agents' model, by `torch.func`.

    Parameters
    ----------
    module : nn.Module
        Maps `x[examples, …]` to scores `[examples, classes]`. Only its structure is used: its
        parameters are replaced by the agents' weights, its buffers stay as they are.
    loss : callable
        Maps scores `[examples, classes]` and labels `[examples]` to one loss per example, under
        `torch.func.vmap`. Cross-entropy by default.

    Examples
    --------
    >>> from torch import nn
    >>> from fedsurf import ModuleModel
    >>> ModuleModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).parameters
    67
    """

    def __init__(
        self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        check_kind(module, nn.Module, "module", "an nn.Module")
        self._module = module
        self._loss = cross_entropy if loss is None else loss
        # By name, in the order of the flat weights; empty parameters stay in the module.
        self.shapes = {
            name: value.shape for name, value in module.named_parameters() if value.numel()
        }
        self.parameters = sum(shape.numel() for shape in self.shapes.values())
        if self.parameters == 0:
            raise ValueError(
                f"module: got {type(module).__name__} without parameters, but it must have some to train"
            )
        for name, value in module.named_parameters():
            if name in self.shapes and not value.requires_grad:
                raise ValueError(
                    f"module: got the frozen parameter {name} (requires_grad is False), but the agents train "
                    "all parameters: make constant tensors buffers"
                )
        for part in module.modules():
            random = isinstance(part, _DropoutNd) and part.p > 0
            counting = isinstance(part, _BatchNorm) and part.track_running_stats
            if part.training and (random or counting):
                raise ValueError(
                    f"module: got a {type(part).__name__} in training mode, but a module must be a pure "
                    "function of its parameters and its input: call module.eval() first, or remove that layer"
                )

    @torch.no_grad()
    def check_takes(self, examples: Examples, classes: int) -> None:
        """Raise unless the module takes such examples and, for cross-entropy, scores all classes."""
        x = examples.x[:1]
        try:
            scores = self.logits(x.new_zeros(1, self.parameters), x)[0]
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"task: got examples of shape {list(x.shape[2:])}, but the model's module cannot take "
                f"them ({str(error).splitlines()[0]})"
            ) from error
        if scores.dim() != 2:
            raise ValueError(
                f"model: got a module whose scores of {x.shape[1]} examples have the shape "
                f"{list(scores.shape)}, but it must be [examples, classes]"
            )
        if self._loss is cross_entropy:
            _check_scores(scores.shape[1], classes)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Apply the module with each agent's weights to its examples."""
        self._check(weights)
        if x.shape[0] == 1 and len(weights) > 1:
            return vmap(self._scores, in_dims=(0, None))(weights, x[0])
        return vmap(self._scores)(weights, x)

    def representation(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the input of the module's output layer, flat for each example.

        The output layer is the submodule that is defined last among those that have parameters of their own,
        such as the last `nn.Linear` of a convolutional network.
        """
        self._check(weights)
        return vmap(self._output_layer_input)(weights, x)

    def loss(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the mean of the given loss over each agent's examples."""
        self._check(weights, examples)
        scores = self.logits(weights, examples.x)
        return examples.mean(vmap(self._losses)(scores, examples.y))

    def gradient(self, weights: Tensor, examples: Examples) -> Tensor:
        """Return the gradient of each agent's loss by `torch.func.grad`, flat."""
        self._check(weights, examples)
        real = examples.mask
        if real is None:
            real = torch.ones_like(examples.y, dtype=torch.bool)
        return cast(Tensor, vmap(grad(self._mean_loss))(weights, examples.x, examples.y, real))

    def _mean_loss(self, weights: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
        losses = self._losses(self._scores(weights, x), y)
        return torch.where(real, losses, 0).sum() / real.sum()

    def _losses(self, scores: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(scores, y)
        if losses.shape != y.shape:
            raise ValueError(
                f"loss: got losses of shape {list(losses.shape)} for {len(y)} examples, but it must return "
                f"one for each, {list(y.shape)}"
            )
        return losses

    def _output_layer_input(self, weights: Tensor, x: Tensor) -> Tensor:
        holders = [part for part in self._module.modules() if list(part.parameters(recurse=False))]
        caught: list[Tensor] = []
        hook = holders[-1].register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            self._scores(weights, x)
        finally:
            hook.remove()
        return caught[-1].flatten(1)

    def _scores(self, weights: Tensor, x: Tensor) -> Tensor:
        pieces = torch.split(weights, [shape.numel() for shape in self.shapes.values()])
        named = {
            name: piece.reshape(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }
        return cast(Tensor, functional_call(self._module, named, (x,)))


def _check_scores(scored: int, classes: int) -> None:
    if scored < classes:
        raise ValueError(f"task: got {classes} classes, but the model scores only {scored} classes")


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example, given `scores[…, classes]` and `labels[…]`."""
    return scores.logsumexp(-1) - scores.gather(-1, labels[..., None]).squeeze(-1)
