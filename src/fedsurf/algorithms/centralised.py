"""Centralised training: the ceiling. All agents' examples in one place, to optimality.

    minimise (1/N) Σ_i loss(x_i, y_i; w) + (strength/2) ‖w‖²,

with the penalty's strength chosen on validation tasks. A softmax head is trained by scikit-learn's
L-BFGS in float64, until no entry of the gradient is above `TOLERANCE`; its bias is free of the
penalty. Any other model is trained by the L-BFGS of `local_only`, with one agent who holds everything,
and the penalty on all weights: to a local minimum if it is smooth, and as far as the iterations reach
if it has kinks, where the gradient need not vanish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsurf.algorithms.class_means import check_head_fits, head_weights
from fedsurf.algorithms.local_only import check_local_training, local_optimum
from fedsurf.common.randomness import generator
from fedsurf.models import Model, SoftmaxHead
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

STRENGTHS = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
"""Penalties λ/2 ‖W‖² beside the mean loss, among which validation chooses."""

TOLERANCE, TUNING_TOLERANCE = 1e-7, 1e-5
"""The largest entry that the gradient of a softmax head may have in the end, and while tuning."""

DEVIATION = 0.1
"""A model that is no softmax head starts at Gaussian weights with this standard deviation."""


@dataclass(frozen=True)
class Centralised:
    """Training on the pooled training examples.

    Attributes
    ----------
    strength : float
        The penalty beside the mean loss, positive.
    iterations : int
        Steps of L-BFGS at most.
    seed : int
        Draws where a model that is no softmax head starts. A softmax head starts at 0.
    tolerance : float
        The largest entry that the gradient of a softmax head may have in the end.
    """

    strength: float = 1e-3
    iterations: int = 2000
    seed: int = 0
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        check_local_training(self.strength, self.iterations)

    def weights(self, model: Model, task: Task) -> Tensor:
        """Train `model` and return its weights in the task's type, `[parameters]`.

        Classes without training examples never win with a softmax head: the loss is lowest where
        their bias is −∞, and they get a low one instead.
        """
        pool = task.train.pooled()
        dtype = pool.x.dtype
        if isinstance(model, SoftmaxHead):
            check_head_fits(model, task)
            return self._head(model, pool.to(torch.float64)).to(dtype)
        random = generator(self.seed, "centralised")
        first = DEVIATION * torch.randn(1, model.parameters, generator=random, dtype=dtype)
        trained = local_optimum(model, first, pool, self.strength, iterations=self.iterations)
        return trained[0]

    def accuracy(self, task: Task, model: Model | None = None) -> float:
        """Train on the pooled training examples; return the accuracy on the pooled test examples.

        A softmax head is trained where no model is given.
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
            # Of two classes scikit-learn trains the difference of the scores, w = w_1 − w_0: its
            # penalty on ‖w‖² is twice the one on ‖w_0‖² + ‖w_1‖², where w_1 = −w_0 = w/2.
            two = len(classes) == 2
            from sklearn.linear_model import LogisticRegression  # slow to import

            inverse = (2 if two else 1) / (self.strength * len(y))
            head = LogisticRegression(C=inverse, max_iter=self.iterations, tol=self.tolerance)
            head.fit(x, y)
            fitted = np.concatenate([head.coef_, head.intercept_[:, None]], 1)
            rows[classes] = np.concatenate([-fitted / 2, fitted / 2]) if two else fitted
        seen = torch.zeros(1, model.classes, dtype=torch.bool)
        seen[0, classes] = True
        return head_weights(torch.from_numpy(rows)[None], seen)[0]
