"""A scikit-learn classifier that agents train together, with a pretrained optimizer.

    FederatedClassifier().fit(X, y, agents=ids).predict(X_new)

Every agent keeps its rows. What agents send each other are heads (of a softmax layer) and a few sums,
and all of it passes through a network that counts rounds and floats. The communication is simulated
in this process.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from fedsurf.algorithms.algorithm import own_state
from fedsurf.common.checks import check_number, check_option, check_whole
from fedsurf.common.randomness import generator
from fedsurf.common.text import counted
from fedsurf.common.threads import threads
from fedsurf.estimator.federations import (
    Array,
    deal,
    examples_of,
    named_network,
    names_of,
    own_network,
    owners,
    usual_agents,
)
from fedsurf.estimator.validation import (
    as_before_where_it_fails,
    check_labels,
    check_no_label_missing,
    check_not_masked,
    diverged,
    errors_of_features,
    errors_of_memory,
)
from fedsurf.models import SoftmaxHead
from fedsurf.network import Calling, Network, check_graph
from fedsurf.pretrained import load
from fedsurf.tasks.cohorts import parts_of, split
from fedsurf.tasks.task import Task
from fedsurf.unrolled import Transferable
from fedsurf.unrolled.config import MAX_LEARNED_ROUNDS, Scaling
from fedsurf.unrolled.transferable.optimizer import TransferState


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier, trained by agents who do not share their data.

    Parameters
    ----------
    optimizer : str, Path or Transferable
        The pretrained optimizer: its name, a file that `fedsurf pretrain` wrote, or the optimizer.
    n_agents : int or None
        How many agents the rows are dealt to, at random, where `fit` is not told whose they are.
        By default 10, fewer where that leaves an agent less than 20 rows, and as many as there are
        nodes where `graph` is a networkx graph.
    graph : str or networkx.Graph
        Who talks to whom: "regular", "ring", "erdos-renyi", "complete", "torus", "small-world",
        "star" (through a server), or a connected graph whose nodes are the agents' ids (7 and the
        text "7" are the same), or 0, 1, … in the order of the sorted ids; weights of its links are
        not used. Where a family does not exist for the number of agents, the nearest that does is
        taken: see `fedsurf.federations.family`.
    degree : int
        Neighbours of each agent in a regular graph or a small world.
    probability : float or None
        The chance of a link in an Erdős–Rényi graph (by default high enough for it to be
        connected), or of rewiring one in a small world (by default 0.1).
    reporting : int or None
        Of a star: how many agents the server calls in a round, all by default.
    calling : {"in-turn", "random"}
        Of a star: whom the server calls. In turn, in a random order, every agent once before any is called
        again, so that all are heard in as few rounds as can be; or drawn at random in each round, by which
        some are never heard where the rounds are few. Other graphs have no use for it.
    rounds : int
        How many rounds of communication training takes. The optimizer learned with up to 40; more are
        taken with a warning.
    standardize : bool or "auto"
        Whether agents work with standardised features, by the mean and the standard deviation of each
        in the federation, which they estimate together in the first rounds. With "auto" they leave the
        features as they are where these differ so little that they seem to have one unit, as pixels or
        embeddings do. The heads are those of the raw features all the same.
    batch_size : int or None
        How many of its rows, drawn anew in every round, an agent fits its head to: for agents with
        so many that all of them would take long. All by default, which is more accurate.
    random_state : int, numpy.random.RandomState or None
        Deals the rows, draws the graph, whom a server calls and mini-batches. None is 0: the same call has the
        same result.
    n_jobs : int or None
        How many threads train. None is one, unless joblib was told otherwise; -1 is all cores. More than one
        pays with many rows and features only, and on a machine that has nothing else to do.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.
    coef_, intercept_ : ndarray
        The consensus model, the average of the agents' heads, `[classes, features]` and `[classes]`.
        With two classes there are two rows, too.
    agents_ : ndarray
        The ids of the agents.
    owner_ : ndarray
        Whose each training example was, as a place in `agents_`.
    agent_coef_, agent_intercept_ : ndarray
        Each agent's own head, `[agents, classes, features]` and `[agents, classes]`, in their order.
    graph_ : networkx.Graph or None
        Who talked to whom, its nodes the agents' ids; None through a server.
    n_rounds_, floats_ : int
        The rounds that training took, and the floats that crossed any link in them.
    units_ : ndarray
        The unit that agents found for each feature, averaged over the agents, `[features]`: where it is the
        same for all features they were left as they are.
    trajectory_ : dict of str to ndarray
        What was seen at the start and after every layer (of two rounds): rounds, floats; loss and
        accuracy of the consensus model on all training examples; agent_accuracy, of each agent's
        head on its own training examples, averaged over the agents; disagreement, the root mean
        square distance of the agents' heads from their average.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
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
        rounds: int = 20,
        standardize: bool | Literal["auto"] = "auto",
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.n_agents = n_agents
        self.graph = graph
        self.degree = degree
        self.probability = probability
        self.reporting = reporting
        self.calling = calling
        self.rounds = rounds
        self.standardize = standardize
        self.batch_size = batch_size
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: Any,
        agents: Any = None,
        *,
        on_layer: Callable[[], None] | None = None,
    ) -> "FederatedClassifier":
        """Let the agents train.

        Parameters
        ----------
        X : array-like
            Features, `[rows, features]`.
        y : array-like
            Labels, `[rows]`: numbers or text.
        agents : array-like or None
            Whose each row is, `[rows]`: ids, numbers or text. Without it, rows are dealt.
        on_layer : callable or None
            Called after every layer, for a progress bar.
        """
        with as_before_where_it_fails(self), _on_cpu():
            check_not_masked(X=X, y=y, agents=agents)
            check_no_label_missing(y)
            x, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
            check_labels(y)
            self._check_numbers()
            if on_layer is not None and not callable(on_layer):
                raise TypeError(
                    f"on_layer: got {repr(on_layer)[:60]}, but it must be a function, or None"
                )
            classes, labels = np.unique(y, return_inverse=True)
            if len(classes) < 2:
                raise ValueError(
                    f"y: got one class only ({classes.tolist()[0]!r}), but there must be at least two"
                )
            seed = _seed(self.random_state)
            ids, owner = self._agents(agents, len(x), generator(seed, "agents"))
            network = self._network(names_of(ids), generator(seed, "graph"))
            network.reset(generator(seed, "network"))
            with errors_of_memory(owner, len(ids), x.shape[1]), threads(self.n_jobs):
                examples = examples_of(x, labels, owner, len(ids))
                task = Task(examples, examples, len(classes))
                random = generator(seed, "steps")
                heads, staged, trajectory, units = self._train(task, network, random, on_layer)
            self.classes_, self._staged, self.trajectory_ = classes, staged, trajectory
            self.agents_, self.owner_, self.units_ = ids, owner, units
            self.agent_coef_ = heads[:, :, :-1]
            self.agent_intercept_ = heads[:, :, -1]
            self.coef_, self.intercept_ = staged[-1][:, :-1], staged[-1][:, -1]
            names = dict(enumerate(names_of(ids)))
            self.graph_ = None if network.server else nx.relabel_nodes(network.graph, names)
            self.n_rounds_, self.floats_ = network.rounds, network.floats
        return self

    def decision_function(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Score every class, `[rows, classes]`; with two, how much the second exceeds the first.

        With `agent`, an id, the scores are those of that agent's own head.
        """
        scores = self._scores(X, agent)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Return the probability of every class, `[rows, classes]`, by the consensus or an agent."""
        found: Array = softmax(self._scores(X, agent), axis=1)
        return found

    def predict(self, X: Any, agent: Hashable = None) -> Array:  # noqa: N803
        """Return the most probable label, `[rows]`, by the consensus model or an agent's own."""
        chosen = self._scores(X, agent).argmax(1)
        found: Array = self.classes_[chosen]
        return found

    def staged_predict(self, X: Any) -> Iterator[Array]:  # noqa: N803
        """Return the consensus model's labels at the start, then after every layer.

        Of the agents' own heads only the last ones are kept: those of every layer would take much memory.
        """
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
        """Return the share of rows whose label is right, by the consensus model or an agent's own.

        With `sample_weight`, `[rows]`, a row counts by its weight.
        """
        if agent is None:  # as scikit-learn does it, also where a subclass predicts otherwise
            return float(super().score(X, y, sample_weight))
        return float(accuracy_score(y, self.predict(X, agent), sample_weight=sample_weight))

    def _checked(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self)
        check_not_masked(X=X)
        x: Array = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return x

    def _scores(self, X: Any, agent: Hashable) -> Array:  # noqa: N803
        x, number = self._checked(X), self._number(agent)
        coef, intercept = self.coef_, self.intercept_
        if number is not None:
            coef, intercept = self.agent_coef_[number], self.agent_intercept_[number]
        scores: Array = x @ coef.T + intercept
        return scores

    def _number(self, agent: Hashable) -> int | None:
        """Return the place of an agent in `agents_`; None, where nobody is asked for, stays None."""
        if agent is None:
            return None
        known = names_of(self.agents_)
        if not isinstance(agent, Hashable) or agent not in known:
            raise ValueError(
                f"agent: got {repr(agent)[:60]}, but it must be one of the "
                f"{counted(len(known), 'agent')} in agents_: {', '.join(map(repr, known[:3]))}"
                f"{', …' if len(known) > 3 else ''}"
            )
        return known.index(agent)

    def _check_numbers(self) -> None:
        """Raise unless all that must be numbers are, and all that must be one of some words is."""
        named = isinstance(self.standardize, str) and self.standardize == "auto"
        if not (named or isinstance(self.standardize, bool | np.bool_)):
            raise TypeError(
                f"standardize: got {self.standardize!r}, but it must be True, False or 'auto'"
            )
        check_option(self.calling, Calling, "calling")
        for name in ("degree", "rounds"):
            check_whole(getattr(self, name), name)
        for name in ("n_agents", "reporting"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, " or None")
        if self.n_jobs is not None:
            check_whole(self.n_jobs, "n_jobs", " or None")
            if self.n_jobs == 0:
                raise ValueError("n_jobs: got 0, but it must be at least 1, below 0 or None")
        if self.probability is not None:
            check_number(self.probability, "probability")
            if not 0 <= self.probability <= 1:
                raise ValueError(
                    f"probability: got {self.probability}, but it must be between 0 and 1, or None"
                )

    def _scaling(self) -> Scaling:
        if self.standardize == "auto":
            return "auto"
        return "features" if self.standardize else "whole"

    def _agents(self, given: Any, rows: int, random: torch.Generator) -> tuple[Array, Array]:
        """Return the agents' ids, and the number of each row's agent."""
        if given is not None:
            ids, owner = owners(given, rows)
            if self.n_agents not in (None, len(ids)):
                raise ValueError(
                    f"n_agents: got {self.n_agents}, but agents says whose each row is, and has "
                    f"{counted(len(ids), 'id')}"
                )
            return ids, owner
        if isinstance(self.graph, nx.Graph):
            check_graph(self.graph)
            nodes = list(self.graph)
            if len(nodes) > rows:
                raise ValueError(
                    f"graph: got {len(nodes)} nodes, but there {'is' if rows == 1 else 'are'} only "
                    f"{counted(rows, 'row')}, and each agent needs one"
                )
            if self.n_agents not in (None, len(nodes)):
                raise ValueError(
                    f"n_agents: got {self.n_agents}, but the graph has {counted(len(nodes), 'node')}"
                )
            ids = np.empty(len(nodes), dtype=object)
            ids[:] = nodes
            return ids, deal(rows, len(nodes), random)
        count = usual_agents(rows) if self.n_agents is None else self.n_agents
        return np.arange(count), deal(rows, count, random)

    def _network(self, ids: list[Hashable], random: torch.Generator) -> Network:
        if isinstance(self.graph, nx.Graph):
            if self.reporting is not None:
                raise ValueError(
                    f"reporting: got {self.reporting} with a graph of your own, but only through "
                    "a server, with graph='star', do some agents report and others not"
                )
            return own_network(self.graph, ids)
        return named_network(
            self.graph,
            len(ids),
            random,
            degree=self.degree,
            probability=self.probability,
            reporting=self.reporting,
            calling=self.calling,
        )

    @torch.no_grad()
    def _train(
        self,
        task: Task,
        network: Network,
        random: torch.Generator,
        on_layer: Callable[[], None] | None,
    ) -> tuple[Array, list[Array], dict[str, Array], Array]:
        """Run the optimizer.

        Returns the agents' heads, `[agents, classes, features + 1]`; the consensus at the start and after
        every layer; what was seen there; and the units of the features.
        """
        optimizer = self.optimizer
        if not isinstance(optimizer, str | Path | Transferable):
            raise TypeError(
                f"optimizer: got a {type(optimizer).__name__}, but it must be the name or the file of a "
                "pretrained optimizer of heads, or what fedsurf.load() returns"
            )
        if not isinstance(optimizer, Transferable):
            optimizer = load(optimizer, argument="optimizer")
        examples = task.train
        head = SoftmaxHead(task.features, task.classes)
        algorithm = optimizer.on(
            head,
            self.rounds,
            self._scaling(),
            self.batch_size,
            ease_rare=True,
            weigh_agents=True,
        )
        pool = examples.pooled()
        if self.rounds > MAX_LEARNED_ROUNDS:
            warnings.warn(
                f"rounds: got {self.rounds}, but the optimizer was meta-trained with up to "
                f"{MAX_LEARNED_ROUNDS}; the result may be worse than with fewer rounds",
                stacklevel=4,  # the line that called fit: torch.no_grad is a caller, too
            )
        staged, records = [], []
        with errors_of_features(network):
            state = algorithm.init(task, network, random)
        members = state.groups
        parts = parts_of(examples, members)
        for layer in range(algorithm.steps + 1):
            if layer:
                with errors_of_features(network):
                    state = algorithm.step(state, task, network, random)
                if on_layer is not None:
                    on_layer()
            weights = network.agent_rows(state.weights)
            if not weights.isfinite().all():
                raise diverged(network)
            mean = weights.mean(0, keepdim=True)
            own = [head.accuracy(*one) for one in zip(split(weights, members), parts, strict=True)]
            staged.append(_matrix(mean, head)[0])
            records.append(
                {
                    "rounds": network.rounds,
                    "floats": network.floats,
                    "loss": float(head.loss(mean, pool)),
                    "accuracy": float(head.accuracy(mean, pool)),
                    "agent_accuracy": float(torch.cat(own).mean()),
                    "disagreement": float((weights - mean).square().sum(1).mean().sqrt()),
                }
            )
        trajectory = {name: np.array([record[name] for record in records]) for name in records[0]}
        unit = own_state(state, TransferState).unit
        units = np.ones(task.features) if unit is None else unit.double().mean(0).numpy()
        return _matrix(weights, head), staged, trajectory, units


def _on_cpu() -> AbstractContextManager[Any]:
    """Make tensors where the rows are, also if torch was told to make them elsewhere."""
    if torch.get_default_device().type == "cpu":  # the context slows every call of torch
        return nullcontext()
    return torch.device("cpu")


def _matrix(weights: torch.Tensor, head: SoftmaxHead) -> Array:
    """Turn flat heads into `[heads, classes, features + 1]`."""
    rows = weights.reshape(-1, head.features + 1, head.classes).mT
    found: Array = rows.numpy().copy()
    return found


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_whole(random_state, "random_state", " a RandomState, or None")
    return int(random_state)
