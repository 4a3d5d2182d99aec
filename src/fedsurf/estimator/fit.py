"""Training a classifier on a table, and labelling a table, as `fedsurf fit` and `fedsurf predict` do."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedsurf.algorithms.local import local_optimum
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.text import counted
from fedsurf.common.writing import (
    TEMPORARY_PATTERN,
    check_folder,
    filled_folder,
    write_json,
    write_rows,
)
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.federations import Array, examples_of
from fedsurf.estimator.saved import FILE, SavedClassifier
from fedsurf.estimator.tables import LabelledTable, read_features, read_labelled
from fedsurf.models import SoftmaxHead
from fedsurf.tasks.groups import group_agents, join_groups, split_examples
from fedsurf.unrolled.config import MAX_LEARNED_ROUNDS, layer_count

MAX_SMALL_ROWS = 20
"""Rows of a table so small that as many classes as rows are no surprise."""


@dataclass(frozen=True, eq=False)
class FitResult:
    """A classifier trained on a table, and how good it is."""

    model: FederatedClassifier
    saved: SavedClassifier
    """The part of it that `write` stores."""
    trajectory: list[dict[Any, Any]]
    """Rounds, floats, bytes, loss, accuracies and disagreement at the start and after every layer."""
    numbers: dict[str, Any]
    """Sizes, costs and accuracies at the end; test accuracies are None without test examples."""
    notes: list[str]
    """Remarks on data and settings that may not be what the user means."""

    def to_dict(self) -> dict[str, Any]:
        """Return the columns that were found, the numbers and the trajectory, as plain data."""
        found = {name: self.saved.config[name] for name in ("label", "agent")}
        return {**found, **self.numbers, "trajectory": self.trajectory}

    def write(self, folder: str | Path, known: str | None = None) -> None:
        """Write the classifier, trajectory.csv, config.json and figure.png into a folder, all or none.

        The folder is new or of an earlier fit, and may have a file of the name `known`.
        """
        from fedsurf.evaluation import plots  # slow to import

        folder = Path(folder)
        check_model_folder(folder, known)
        with filled_folder(folder) as temporary:
            write_rows(temporary / "trajectory.csv", self.trajectory)
            figure = plots.fit_figure(self.trajectory, self.numbers)
            plots.save(figure, temporary / "figure.png")
            write_json(temporary / "config.json", {**self.saved.config, "result": self.numbers})
            self.saved.write(temporary)


def fit_table(
    data: str | Path,
    *,
    label: str | None = None,
    agent: str | None = None,
    drop: Sequence[str] = (),
    test_share: float = 0.2,
    progress: OpenBar = silent,
    n_jobs: int | None = None,
    **settings: Any,
) -> FitResult:
    r"""Train a classifier on a table, as `fedsurf fit` does, and judge it on examples that are held out.

    The table is read by `fedsurf.estimator.tables.read_labelled`; `n_jobs` and `settings` are those of
    `FederatedClassifier`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "data.csv"
    ...     rows = "\n".join(f"{row % 10},{'small' if row % 10 < 5 else 'large'}" for row in range(60))
    ...     _ = path.write_text(f"size,label\n{rows}\n")
    ...     result = fit_table(path, rounds=10)
    ...     result.write(Path(folder) / "model")
    ...     predict_table(Path(folder) / "model", path).labels[:2]
    ['small', 'small']
    """
    path = Path(data)
    table = read_labelled(path, label=label, agent=agent, drop=drop, test_share=test_share)
    agents = settings.get("n_agents")
    if agents is not None and table.agents is not None:
        raise ValueError(
            f"agents: got {agents}, but {path} has the agents of its rows: drop that column, or leave that "
            "array out"
        )
    if len(np.unique(table.y)) < 2:
        raise ValueError(
            f"{path}: label {table.label or 'y'!r}: got one class only ({table.y[0]}), "
            "but there must be at least two"
        )
    model = FederatedClassifier(**settings, n_jobs=n_jobs)
    with quiet_fit(), progress("training", layer_count(model.rounds)) as advance:
        model.fit(table.x, table.y, table.agents, on_layer=advance)
    source = {"data": path.name, "drop": list(drop), "test_share": test_share}
    return judged(model, table, source, progress)


@contextmanager
def quiet_fit() -> Iterator[None]:
    """Silence warnings of a fit that the notes of its result repeat."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rounds: got", UserWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        yield


def judged(
    model: FederatedClassifier,
    table: LabelledTable,
    source: dict[str, Any],
    progress: OpenBar = silent,
) -> FitResult:
    """Return a trained classifier with its accuracies on a table's rows, and where these are from."""
    alone = model.network is None
    with quiet_fit():
        staged = model.staged_predict(table.test_x) if len(table.test_y) else ()
        tests = [float(np.mean(labels == table.test_y)) for labels in staged]
        accuracies = _test_accuracies(model, table, progress, centralised=alone)
    columns = {**model.trajectory_, "test_accuracy": tests or None}
    trajectory = pd.DataFrame(columns).to_dict("records")
    numbers = {
        "agents": len(model.agents_),
        "examples": len(table.y),
        "test_examples": len(table.test_y),
        "features": model.n_features_in_,
        "classes": model.classes_.tolist(),
        "rounds": model.n_rounds_,
        "floats": model.floats_,
        "bytes": model.bytes_,
        "accuracy": trajectory[-1]["accuracy"],
        **accuracies,
    }
    left_out = ("n_jobs", "network")
    names = [n for n in inspect.signature(FederatedClassifier).parameters if n not in left_out]
    used = {name: getattr(model, name) for name in names}
    config = {
        **source,
        "label": table.label,
        "agent": table.agent,
        **{k: v if isinstance(v, int | float | None) else str(v) for k, v in used.items()},
    }
    features = None if table.features is None else list(table.features)
    parts = model.coef_, model.intercept_, model.classes_.tolist(), features, table.label, config
    return FitResult(model, SavedClassifier(*parts), trajectory, numbers, _notes(table, model))


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels that a classifier gives to the rows of a table."""

    labels: list[Any]
    """The most probable class of each row."""
    probabilities: Array
    """The probability of each class, `[rows, classes]`."""
    classes: list[Any]
    """The classes, in the order of the columns."""
    accuracy: float | None
    """The share of right labels among rows with a known one; None if there are none."""
    known: int
    """The number of rows with a known label."""
    unknown_labels: int | None
    """The number of known labels that are not among the classes; None if there are no labels."""

    def to_dict(self, *, table: bool = True) -> dict[str, Any]:
        """Return counts and classes as plain data, and labels and probabilities with `table`."""
        summary = {
            "examples": len(self.labels),
            "accuracy": self.accuracy,
            "unknown_labels": self.unknown_labels,
            "classes": self.classes,
        }
        if table:
            summary |= {"labels": self.labels, "probabilities": self.probabilities.tolist()}
        return summary

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows of the table that `fedsurf predict` writes."""
        names = ["label", *(f"probability_{name}" for name in self.classes)]
        for label, shares in zip(self.labels, self.probabilities.tolist(), strict=True):
            cells = [label, *(f"{share:.6g}" for share in shares)]
            yield dict(zip(names, cells, strict=True))

    def write(self, file: str | Path) -> None:
        """Write the table as CSV."""
        write_rows(Path(file), self.rows())


def predict_table(model: str | Path, data: str | Path) -> Predictions:
    """Label the rows of a table with a classifier that `fedsurf fit` wrote, as `fedsurf predict` does.

    `model` is the folder of `fedsurf fit`, or its head.safetensors; `data` a .csv or .parquet file with
    columns of the same names, in any order, or an .npz file with x.
    """
    saved = SavedClassifier.read(model)
    x, y = read_features(Path(data), saved.features, saved.weight.shape[1], saved.label)
    probabilities = saved.probabilities(x)
    labels = [saved.classes[place] for place in probabilities.argmax(1)]
    if y is None:
        return Predictions(labels, probabilities, saved.classes, None, 0, None)
    pairs = zip(map(str, labels), y.tolist(), strict=True)
    known = [(found, str(true)) for found, true in pairs if true is not None]
    accuracy = float(np.mean([found == true for found, true in known]))
    names = set(map(str, saved.classes))
    unknown = sum(true not in names for _, true in known)
    return Predictions(labels, probabilities, saved.classes, accuracy, len(known), unknown)


def check_model_folder(folder: Path, known: str | None = None) -> None:
    """Raise unless a folder is new, empty or of an earlier fit, and can be written into.

    It may have a file of the name `known`.
    """
    check_folder(folder)
    files = [f for f in folder.glob("*") if not f.match(TEMPORARY_PATTERN) and f.name != known]
    if files and not (folder / FILE).exists():
        raise ValueError(
            f"folder: got {str(folder)!r}, which holds other files, but it must be new or of an "
            "earlier `fedsurf fit`"
        )


def alone_accuracy(x: Array, y: Array, owner: Array, test_x: Array, test_y: Array) -> float:
    """Return the test accuracy of agents who train on their own examples only, averaged over them.

    Each trains a logistic regression, with the penalty that scikit-learn gives to the average number of
    examples. Features are standardised by all examples, which is more than an agent alone knows.
    """
    from sklearn.preprocessing import StandardScaler  # slow to import

    scaler = StandardScaler().fit(x)
    classes, labels = np.unique(y, return_inverse=True)
    agents = int(owner.max()) + 1
    examples = examples_of(scaler.transform(x), labels, owner, agents)
    head = SoftmaxHead(x.shape[1], len(classes))
    members, penalty = group_agents(examples), agents / len(y)
    found = [
        local_optimum(head, part.x.new_zeros(part.agents, head.parameters), part, penalty)
        for part in split_examples(examples, members)
    ]
    trained = join_groups(found, members)
    heads = trained.reshape(agents, head.features + 1, head.classes).mT
    return heads_accuracy(heads, classes, scaler.transform(test_x), test_y)


def heads_accuracy(heads: torch.Tensor, classes: Array, x: Array, y: Array) -> float:
    """Return the accuracy of heads `[heads, classes, features + 1]`, averaged over them."""
    given, hits = torch.tensor(x).to(heads.dtype), 0
    for head in heads:
        scores = given @ head[:, :-1].T + head[:, -1]
        hits += int((classes[scores.argmax(1).numpy()] == y).sum())
    return hits / (len(heads) * len(y))


def centralised_accuracy(x: Array, y: Array, test_x: Array, test_y: Array) -> float:
    """Return the test accuracy of scikit-learn's logistic regression on all examples, standardised."""
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(model.fit(x, y).score(test_x, test_y))


def _test_accuracies(
    model: FederatedClassifier, table: LabelledTable, progress: OpenBar, *, centralised: bool
) -> dict[str, float | None]:
    """Return accuracies on test examples, None without any.

    They are those of the consensus model, of the agents' heads, of agents who train alone, and of
    scikit-learn on all data in one place; averaged over agents.
    """
    x, y, test_x, test_y = table.x, table.y, table.test_x, table.test_y
    heads = torch.tensor(np.concatenate([model.agent_coef_, model.agent_intercept_[:, :, None]], 2))
    works: dict[str, Callable[[], float]] = {
        "test_accuracy": lambda: float(model.score(test_x, test_y)),
        "agents_test_accuracy": lambda: heads_accuracy(heads, model.classes_, test_x, test_y),
        "alone": lambda: alone_accuracy(x, y, model.owner_, test_x, test_y),
        "centralised": lambda: centralised_accuracy(x, y, test_x, test_y),
    }
    # The rows of other processes are not here, and a site may have rows of one class only.
    unknown = {"centralised"} if not centralised else set()
    if len(np.unique(y)) < 2:
        unknown.add("alone")
    found: dict[str, float | None] = {}
    with progress("judging", len(works)) as advance:
        for name, work in works.items():
            found[name] = work() if len(test_y) and name not in unknown else None
            advance()
    return found


def _notes(table: LabelledTable, model: FederatedClassifier) -> list[str]:
    """Return remarks on data and settings that may not be what the user means."""
    notes = []
    classes, rows = len(model.classes_), len(table.y)
    if rows > MAX_SMALL_ROWS and classes > rows / 2:
        notes.append(
            f"label {table.label or 'y'!r}: {classes} classes in {rows} training examples; is it a number "
            "to be estimated, and not a class?"
        )
    if table.agents_held_out:
        every = table.agents_held_out + len(model.agents_)
        take, their = ("takes", "its") if table.agents_held_out == 1 else ("take", "their")
        notes.append(
            f"{table.agents_held_out} of {counted(every, 'agent')} {take} no part, as all {their} rows are "
            "held out as test examples; a test share of 0 holds none out"
        )
    if model.rounds > MAX_LEARNED_ROUNDS:
        notes.append(
            f"rounds: {model.rounds} are more than the {MAX_LEARNED_ROUNDS} that the optimizer was "
            "meta-trained with; the result may be worse than with fewer"
        )
    return notes
