"""Centralised training: the ceiling. All agents' examples in one place, to optimality.

Multinomial logistic regression by L-BFGS (scikit-learn), with an ℓ2 penalty whose strength is chosen
on validation tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedsurf.tasks.task import Task

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Penalties λ/2 ‖W‖² beside the mean loss, among which validation chooses."""


@dataclass(frozen=True)
class Centralised:
    """Softmax regression on the pooled training examples with penalty `strength`."""

    strength: float = 1e-3

    def accuracy(self, task: Task) -> float:
        """Train on the pooled training examples; return the accuracy on the pooled test examples."""
        train, test = task.train.pooled(), task.test.pooled()
        x, y = train.x[0].double().numpy(), train.y[0].numpy()
        if len(np.unique(y)) == 1:
            return float((test.y[0].numpy() == y[0]).mean())
        inverse = 1 / (self.strength * len(y))
        head = LogisticRegression(C=inverse, max_iter=1000, tol=1e-5)
        head.fit(x, y)
        return float(head.score(test.x[0].double().numpy(), test.y[0].numpy()))

    @staticmethod
    def tuned(tasks: Sequence[Task], strengths: Sequence[float] = STRENGTHS) -> "Centralised":
        """Choose the penalty with the best mean accuracy over validation tasks."""
        candidates = [Centralised(strength) for strength in strengths]
        return max(candidates, key=lambda one: sum(one.accuracy(task) for task in tasks))
