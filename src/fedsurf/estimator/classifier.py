"""A scikit-learn classifier that agents train together, with a pretrained optimizer.

Every agent keeps its rows. Agents send each other heads of a softmax layer and a few sums, through a
network that counts rounds and floats. The communication is simulated in this process, unless the classifier
is given a network of real machines.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import networkx as nx
import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from fedsurf.algorithms.algorithm import on_device
from fedsurf.common.checks import check_kind, check_option, check_share, check_whole
from fedsurf.common.devices import device_named
from fedsurf.common.files import FileError
from fedsurf.common.randomness import generator
from fedsurf.common.streams import Streams
from fedsurf.common.text import listed
from fedsurf.common.threads import threads
from fedsurf.estimator.agreement import Columns, agreed_columns, columns_from
from fedsurf.estimator.federations import (
    Array,
    assign_rows,
    check_features,
    check_label_types,
    check_labels,
    examples_of,
    federation_network,
    own_rows,
    training_errors,
)
from fedsurf.estimator.training import StateFile, Training, matrix
from fedsurf.models import SoftmaxHead
from fedsurf.network import Calling, Network, Wire
from fedsurf.pretrained import load
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable
from fedsurf.unrolled.config import MAX_LEARNED_ROUNDS, Scaling
from fedsurf.unrolled.transferable.optimizer import TransferableAlgorithm

SCALINGS: dict[Any, Scaling] = {"auto": "auto", True: "features", False: "whole"}
"""The optimizer's name of each value of `standardize`."""


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier, trained by agents that do not share their data.

    Parameters
    ----------
    optimizer : str, Path or Transferable
        The pretrained optimizer: its name, a file that `fedsurf pretrain` wrote, or the optimizer.
    n_agents : int or None
        Number of agents that the rows are dealt to, at random, if `fit` is not given `agents`. By
        default 10, fewer if an agent would have less than 20 rows, or the number of nodes of a
        networkx graph.
    graph : str or networkx.Graph
        Which agents communicate: "regular", "ring", "erdos-renyi", "complete", "torus",
        "small-world", "star" (through a server), or a connected graph whose nodes are the agents' ids,
        or 0, 1, … in the order of the sorted ids. Weights of its links are ignored. If a family does
        not exist for the number of agents, the nearest one does: see
        `fedsurf.estimator.federations.family`.
    degree : int
        Neighbours of each agent in a regular graph or a small world.
    probability : float or None
        Probability of a link in an Erdős–Rényi graph (by default high enough for it to be connected),
        or of rewiring one in a small world (by default 0.1).
    reporting : int or None
        Number of agents that the server of a star calls in a round; by default all.
    calling : {"in-turn", "random"}
        How the server of a star calls agents: in turn, in a random order, every agent once before any
        is called again; or drawn at random in each round. Ignored for other graphs.
    wire : {"float32", "float16", "int8"}
        The numbers of messages as they travel: rounded, if not float32.
    rounds : int
        Communication rounds of training. The optimizer learned with up to 40; more give a warning.
    standardize : bool or "auto"
        Standardise features by their means and standard deviations in the federation, which the agents
        estimate together in the first rounds. "auto" leaves features alone that differ so little that
        they seem to share one unit, such as pixels or embeddings. The heads are always those of the
        raw features.
    batch_size : int or None
        Rows that an agent draws in every round. By default all, which is more accurate.
    random_state : int, numpy.random.RandomState or None
        Seed of dealing the rows, the graph, the server's calls and mini-batches. None is 0.
    network : Network or None
        A network on which this process holds some agents' rows, such as `fedsurf.join` returns: the
        others hold theirs, and all call `fit` with the same settings, the server `serve`. By default all
        agents' rows are here, and the network is simulated. It has its own graph and wire.
    n_jobs : int or None
        Number of threads; None is one, unless joblib is configured otherwise, and -1 is all cores. More
        than one pays only with many rows and features, on an idle machine.
    device : str
        Where to train: "auto", "cpu", "cuda", "cuda:1" or "mps". The heads are on the CPU afterwards.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.
    coef_, intercept_ : ndarray
        The consensus model, the average of the agents' heads, `[classes, features]` and `[classes]`,
        with two rows for two classes.
    agents_ : ndarray
        The ids of the agents.
    owner_ : ndarray
        The agent of each training example, as a place in `agents_`.
    agent_coef_, agent_intercept_ : ndarray
        Each agent's own head, `[agents, classes, features]` and `[agents, classes]`.
    graph_ : networkx.Graph or None
        The graph of the agents' ids; None through a server.
    n_rounds_, floats_, bytes_ : int
        The rounds of training, and the floats that crossed any link in them; the bytes of their messages.
    units_ : ndarray
        The unit that agents found for each feature, averaged over the agents, `[features]`.
    trajectory_ : dict of str to ndarray
        Values at the start and after every layer (of two rounds): rounds; floats; bytes; loss and accuracy of
        the consensus model on all training examples; agent_accuracy, of each agent's head on its own
        training examples, averaged over agents; disagreement, the root mean square distance of the
        agents' heads from their average.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fedsurf import FederatedClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(graph="ring").fit(x, y, agents=[f"site {row % 5}" for row in range(150)])
    >>> model.agents_.tolist()
    ['site 0', 'site 1', 'site 2', 'site 3', 'site 4']
    >>> bool(model.score(x, y) > 0.9)
    True
    """

    def __init__(
        self,
        optimizer: str | Path | Transferable = "softmax-head",
        *,
        n_agents: int | None = None,
        graph: str | nx.Graph = "regular",
        degree: int = 3,
        probability: float | None = None,
        reporting: int | None = None,
        calling: Calling = "in-turn",
        wire: Wire = "float32",
        rounds: int = 20,
        standardize: bool | Literal["auto"] = "auto",
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        network: Network | None = None,
        n_jobs: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.optimizer = optimizer
        self.n_agents = n_agents
        self.graph = graph
        self.degree = degree
        self.probability = probability
        self.reporting = reporting
        self.calling = calling
        self.wire = wire
        self.rounds = rounds
        self.standardize = standardize
        self.batch_size = batch_size
        self.random_state = random_state
        self.network = network
        self.n_jobs = n_jobs
        self.device = device

    def fit(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: Any,
        agents: Any = None,
        *,
        classes: Any = None,
        state_file: str | Path | None = None,
        on_layer: Callable[[], None] | None = None,
    ) -> "FederatedClassifier":
        """Train the classifier.

        Parameters
        ----------
        X : array-like
            Features, `[rows, features]`.
        y : array-like
            Labels, `[rows]`: numbers or text.
        agents : array-like or None
            The id of each row's agent, `[rows]`: numbers or text. Without it, rows are dealt.
        classes : array-like or None
            The classes of the federation; by default all that occur in its labels.
        state_file : str, Path or None
            A file that holds the training after each round. If it exists, training goes on from it, with
            the same rows and settings.
        on_layer : callable or None
            Called after every layer, for a progress bar.
        """
        check_features(X)
        check_labels(y)
        x, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_label_types(y)
        self._check_settings()
        known = np.unique(y) if classes is None else _given_classes(classes, y)
        own = Columns.of(x, known, getattr(self, "feature_names_in_", None))
        columns = self._agreed(own, state_file)
        seed = _seed(self.random_state)
        ids, owner, network = self._federation(agents, len(x), seed)
        found = known
        if self.network is not None:
            found = columns.found()
            found = found.astype(known.dtype) if columns.labels == "numbers" else found
        labels = np.searchsorted(found, y)
        self.classes_ = found
        with training_errors(network):
            examples = examples_of(x, labels, owner, len(ids))
            task = Task(examples, examples, len(found))
        self._train(task, columns, network, seed, state_file, on_layer)
        self.agents_, self.owner_ = ids, owner
        names = {} if self.network is not None else dict(enumerate(ids.tolist()))
        self.graph_ = None if network.server else nx.relabel_nodes(network.graph, names)
        return self

    def serve(
        self,
        *,
        state_file: str | Path | None = None,
        on_layer: Callable[[], None] | None = None,
    ) -> "FederatedClassifier":
        """Take part as the server of `network`, which holds no rows, while the agents call `fit`.

        Parameters
        ----------
        state_file, on_layer
            As in `fit`.
        """
        self._check_settings()
        if self.network is None or len(self.network.ids) != self.network.servers:
            raise ValueError("network: got one with agents in this process, or none: call fit")
        columns = self._agreed(None, state_file)
        kind = torch.float32 if columns.single else torch.float64
        task = Task.without_agents(columns.count, len(columns.classes), kind)
        self._train(task, columns, self.network, _seed(self.random_state), state_file, on_layer)
        self.classes_, self.n_features_in_ = columns.found(), columns.count
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)
        self.agents_ = self.owner_ = np.zeros(0, dtype=np.int64)
        self.graph_ = None
        return self

    def _agreed(self, own: Columns | None, state_file: str | Path | None) -> Columns:
        """Return the columns of the federation: those here, those in a file, or what all processes have."""
        saved = None if state_file is None else StateFile(Path(state_file)).read_notes()
        if saved is not None:
            columns = _saved_columns(saved, own, Path(state_file or ""))
        elif self.network is not None:
            columns = agreed_columns(self.network, own)
        else:
            columns = own or Columns(0, None, "text", ())
        if len(columns.classes) < 2:
            raise ValueError(
                f"y: got one class only ({columns.classes[0]!r}), but there must be at least two"
            )
        return columns

    def _federation(self, agents: Any, rows: int, seed: int) -> tuple[Array, Array, Network]:
        """Return the ids of the agents that live here, each row's place among them, and the network."""
        if self.network is not None:
            own = self.network.agent_rows(self.network.ids).numpy()
            return own, own_rows(agents, own, rows), self.network
        ids, owner = assign_rows(agents, self.n_agents, self.graph, rows, generator(seed, "agents"))
        network = federation_network(
            self.graph,
            ids.tolist(),
            generator(seed, "graph"),
            degree=self.degree,
            probability=self.probability,
            reporting=self.reporting,
            calling=self.calling,
            wire=self.wire,
        )
        return ids, owner, network

    def decision_function(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Return the scores of every class, `[rows, classes]`; of two classes, their difference.

        With `agent`, an id, the scores are those of that agent's own head.
        """
        scores = self._scores(X, agent)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Return the probability of every class, `[rows, classes]`, by the consensus or an agent's head."""
        return softmax(self._scores(X, agent), axis=1)  # type: ignore[no-any-return]

    def predict(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Return the most probable label, `[rows]`, by the consensus model or an agent's head."""
        chosen = self._scores(X, agent).argmax(1)
        return self.classes_[chosen]  # type: ignore[no-any-return]

    def staged_predict(self, X: Any) -> Iterator[Array]:  # noqa: N803
        """Return the consensus model's labels at the start, then after every layer."""
        x = self._checked(X)
        for head in self._staged:
            yield self.classes_[(x @ head[:, :-1].T + head[:, -1]).argmax(1)]

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        agent: Hashable = None,
    ) -> float:
        """Return the accuracy of the consensus model or an agent's head; `sample_weight` weighs rows."""
        if agent is None:  # as scikit-learn does it, also in subclasses
            return float(super().score(X, y, sample_weight))
        return float(accuracy_score(y, self.predict(X, agent), sample_weight=sample_weight))

    def _checked(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self)
        check_features(X)
        x: Array = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return x

    def _scores(self, X: Any, agent: Hashable) -> Array:  # noqa: N803
        x = self._checked(X)
        coef, intercept = self.coef_, self.intercept_
        if agent is not None:
            known = self.agents_.tolist()
            if not isinstance(agent, Hashable) or agent not in known:
                raise ValueError(
                    f"agent: got {repr(agent)[:60]}, but it must be one of agents_: {listed(map(repr, known))}"
                )
            place = known.index(agent)
            coef, intercept = self.agent_coef_[place], self.agent_intercept_[place]
        scores: Array = x @ coef.T + intercept
        return scores

    def _check_settings(self) -> None:
        """Validate the types of the settings."""
        if self.standardize not in (True, False, "auto"):
            raise TypeError(
                f"standardize: got {self.standardize!r}, but it must be True, False or 'auto'"
            )
        check_option(self.calling, Calling, "calling")
        check_option(self.wire, Wire, "wire")
        for name in ("degree", "rounds"):
            check_whole(getattr(self, name), name)
        for name in ("n_agents", "reporting", "n_jobs"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, " or None")
        if self.n_jobs == 0:
            raise ValueError("n_jobs: got 0, but it must be at least 1, below 0 or None")
        if self.probability is not None:
            check_share(self.probability, "probability")
        check_kind(
            self.optimizer,
            str | Path | Transferable,
            "optimizer",
            "the name or the file of a pretrained optimizer of heads, or what fedsurf.load() returns",
        )

    def _run_digest(self, task: Task, network: Network) -> str:
        """Return a hash of what a run that goes on from a file must have in common with the one before."""
        own = {
            name: str(value)
            for name, value in self.get_params(deep=False).items()
            if name not in ("network", "n_jobs", "device")
        }
        found = hashlib.sha256(json.dumps([own, network.links.tolist()]).encode())
        stored = task.train.stored()
        for part in (network.ids, stored.x, stored.y):
            found.update(part.contiguous().cpu().numpy().tobytes())
        return found.hexdigest()

    @torch.no_grad()
    def _train(
        self,
        task: Task,
        columns: Columns,
        network: Network,
        seed: int,
        state_file: str | Path | None,
        on_layer: Callable[[], None] | None,
    ) -> None:
        """Run the optimizer, and keep the heads, the trajectory and the units of the features."""
        given = self.optimizer
        optimizer = given if isinstance(given, Transferable) else load(given, argument="optimizer")
        head, device = SoftmaxHead(task.features, task.classes), device_named(self.device)
        chosen = optimizer.on(
            head,
            self.rounds,
            SCALINGS[self.standardize],
            self.batch_size,
            ease_rare=True,
            weigh_agents=True,
        )
        if self.rounds > MAX_LEARNED_ROUNDS:
            warnings.warn(
                f"rounds: got {self.rounds}, but the optimizer was meta-trained with up to "
                f"{MAX_LEARNED_ROUNDS}; the result may be worse than with fewer rounds",
                stacklevel=4,  # the line that called fit: torch.no_grad is a caller, too
            )
        network.reset(generator(seed, "network"))
        with training_errors(network), threads(self.n_jobs):
            chosen.check(task)
            algorithm, task = on_device(chosen, device), task.to(device=device)
            training = Training(
                cast(TransferableAlgorithm, algorithm),
                task,
                network,
                Streams(seed, network.ids, "fit"),
            )
            notes = {"columns": asdict(columns), "run": self._run_digest(task, network)}
            file = None if state_file is None else StateFile(Path(state_file), notes)
            state, weights = training.run(file, on_layer)
        heads, records = matrix(weights, head), training.records
        self._staged = list(matrix(torch.stack(training.heads), head))
        self.agent_coef_, self.agent_intercept_ = heads[:, :, :-1], heads[:, :, -1]
        self.coef_, self.intercept_ = self._staged[-1][:, :-1], self._staged[-1][:, -1]
        self.trajectory_ = {name: np.array([row[name] for row in records]) for name in records[0]}
        unit = state.unit.double().mean(0).cpu().numpy()
        self.units_ = unit if len(unit) and len(heads) else np.ones(task.features)
        self.n_rounds_, self.floats_ = network.rounds, int(records[-1]["floats"])
        self.bytes_ = int(records[-1]["bytes"])


def _given_classes(classes: Any, y: Array) -> Array:
    """Return the classes that a user gives, sorted; raise if a label is not among them."""
    known = np.unique(np.asarray(classes))
    other = sorted(set(y.tolist()) - set(known.tolist()))
    if other:
        raise ValueError(f"y: got the label {other[0]!r}, but classes are {listed(known.tolist())}")
    return known


def _saved_columns(notes: dict[str, Any], own: Columns | None, path: Path) -> Columns:
    """Return the columns in the notes of a state file; raise if those here are others."""
    try:
        columns = columns_from(notes.get("columns"))
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path}: damaged, it does not name features and classes") from error
    difference = None if own is None else columns.difference(own)
    if own is not None and difference is None and not set(own.classes) <= set(columns.classes):
        difference = f"the classes {listed(own.classes)}"
    if difference:
        raise ValueError(f"X, y: got {difference}, but {path} is of a run with other columns")
    return columns


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_whole(random_state, "random_state", " a RandomState, or None")
    return int(random_state)
