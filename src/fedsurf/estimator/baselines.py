"""What the same data give without federation: every agent alone, and all data in one place."""

import numpy as np
import torch
from torch import Tensor

from fedsurf.algorithms.local import local_optimum
from fedsurf.estimator.federations import Array, examples_of
from fedsurf.models import SoftmaxHead
from fedsurf.tasks.cohorts import divided, join, parts_of

AT_ONCE = 20_000_000
"""About how many scores are computed at a time."""


def centralised_accuracy(x: Array, y: Array, test_x: Array, test_y: Array) -> float:
    """Return the test accuracy of scikit-learn's logistic regression on all examples, standardised."""
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(model.fit(x, y).score(test_x, test_y))


def alone_accuracy(x: Array, y: Array, owner: Array, test_x: Array, test_y: Array) -> float:
    """Return the test accuracy of agents who train on their own examples only, averaged over them.

    A logistic regression each, with the penalty that scikit-learn gives one of that many examples
    on average. Features are standardised by all examples, which is more than an agent alone knows.
    """
    from sklearn.preprocessing import StandardScaler  # slow to import

    scaler = StandardScaler().fit(x)
    classes, labels = np.unique(y, return_inverse=True)
    agents = int(owner.max()) + 1
    examples = examples_of(scaler.transform(x), labels, owner, agents)
    head = SoftmaxHead(x.shape[1], len(classes))
    members, penalty = divided(examples), agents / len(y)
    found = [
        local_optimum(head, part.x.new_zeros(part.agents, head.parameters), part, penalty)
        for part in parts_of(examples, members)
    ]
    trained = join(found, members)
    heads = trained.reshape(agents, head.features + 1, head.classes).mT
    return heads_accuracy(heads, classes, scaler.transform(test_x), test_y)


def heads_accuracy(heads: Tensor, classes: Array, x: Array, y: Array) -> float:
    """Return the accuracy of heads `[heads, classes, features + 1]`, averaged over them."""
    given = torch.tensor(x).to(heads.dtype)
    # Labels that nobody learned are never right.
    places = {label: place for place, label in enumerate(classes.tolist())}
    labels = torch.tensor([places.get(label, -1) for label in y.tolist()])
    batch = max(1, AT_ONCE // (len(x) * len(classes)))
    hits = 0
    for some in heads.split(batch):  # type: ignore[no-untyped-call]
        scores = given @ some[:, :, :-1].mT + some[:, None, :, -1]
        hits += int((scores.argmax(2) == labels).sum())
    return hits / (len(heads) * len(labels))
