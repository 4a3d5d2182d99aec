"""Centralised training on the pooled examples, to optimality. The ceiling of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsurf.algorithms.checks import check_head_fits
from fedsurf.algorithms.local import local_optimum
from fedsurf.common.checks import check_count, check_positive
from fedsurf.common.devices import CPU
from fedsurf.common.randomness import generator
from fedsurf.models import Model, SoftmaxHead, head_weights
from fedsurf.tasks.task import Examples, Task

STRENGTHS = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
"""Strengths of the penalty that validation chooses from."""

TOLERANCE, TUNING_TOLERANCE = 1e-7, 1e-5
"""Largest entry of a softmax head's gradient in the end, and while tuning."""

DEVIATION = 0.1
"""Standard deviation of the Gaussian initial weights of any other model."""


@dataclass(frozen=True)
class Centralised:
    """Training on the pooled training examples.

        minimise (1/N) Σ_i loss(x_i, y_i; w) + (strength/2) ‖w‖²

    A softmax head is trained by scikit-learn's L-BFGS in float64, from 0, until no entry of the gradient
    is above `tolerance`; its bias is free of the penalty. Any other model is trained by `local_optimum`
    with one agent that holds all examples, from random weights, and the penalty applies to all weights.

    Examples
    --------
    >>> import torch
    >>> from fedsurf import Examples, SoftmaxHead, Task
    >>> from fedsurf.algorithms import Centralised
    >>> examples = Examples(torch.tensor([[[0.0], [1.0]]] * 2), torch.tensor([[0, 1]] * 2))
    >>> Centralised().accuracy(Task(examples, examples, classes=2))
    1.0
    """

    strength: float = 1e-3
    """The penalty's strength, positive."""
    iterations: int = 2000
    """Maximum number of L-BFGS steps."""
    seed: int = 0
    """Seed of the initial weights of a model other than a softmax head."""
    tolerance: float = TOLERANCE
    """Largest entry of a softmax head's gradient in the end."""

    def __post_init__(self) -> None:
        check_positive(self.strength, "strength")
        check_count(self.iterations, "iterations")

    def weights(self, model: Model, task: Task) -> Tensor:
        """Train `model` and return its weights in the task's dtype, `[parameters]`.

        Classes without training examples never win with a softmax head: their optimal bias is −∞, and
        they get a low one instead.
        """
        pool = task.train.pooled()
        dtype = pool.x.dtype
        if isinstance(model, SoftmaxHead):
            check_head_fits(model, task)
            return self._head(model, pool.to(torch.float64)).to(dtype)
        random = generator(self.seed, "centralised")
        first = DEVIATION * torch.randn(
            1, model.parameters, generator=random, dtype=dtype, device=CPU
        )
        trained = local_optimum(model, first, pool, self.strength, iterations=self.iterations)
        return trained[0]

    def accuracy(self, task: Task, model: Model | None = None) -> float:
        """Train on the pooled training examples; return the accuracy on the pooled test examples.

        The default model is a softmax head.
        """
        if model is None:
            model = SoftmaxHead(task.features, task.classes)
        return float(model.accuracy(self.weights(model, task)[None], task.test.pooled()))

    @staticmethod
    def tuned(
        tasks: Sequence[Task],
        strengths: Sequence[float] = STRENGTHS,
        model: Model | None = None,
    ) -> "Centralised":
        """Choose the penalty with the best mean accuracy over validation tasks."""
        candidates = [Centralised(one, tolerance=TUNING_TOLERANCE) for one in strengths]
        best = max(candidates, key=lambda one: sum(one.accuracy(task, model) for task in tasks))
        return Centralised(best.strength)

    def _head(self, model: SoftmaxHead, pool: Examples) -> Tensor:
        x, y = pool.x[0].numpy(), pool.y[0].numpy()
        classes = np.unique(y)
        rows = np.zeros((model.classes, model.features + 1))
        if len(classes) > 1:
            # For two classes scikit-learn trains the difference of the scores, w = w_1 − w_0: its
            # penalty on ‖w‖² is twice the one on ‖w_0‖² + ‖w_1‖², with w_1 = −w_0 = w/2.
            two = len(classes) == 2
            from sklearn.linear_model import LogisticRegression  # slow to import

            inverse = (2 if two else 1) / (self.strength * len(y))
            head = LogisticRegression(C=inverse, max_iter=self.iterations, tol=self.tolerance)
            head.fit(x, y)
            fitted = np.concatenate([head.coef_, head.intercept_[:, None]], 1)
            rows[classes] = np.concatenate([-fitted / 2, fitted / 2]) if two else fitted
        seen = torch.zeros(1, model.classes, dtype=torch.bool, device=CPU)
        seen[0, classes] = True
        return head_weights(torch.from_numpy(rows)[None], seen)[0]
