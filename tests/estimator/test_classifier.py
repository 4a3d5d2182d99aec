"""The classifier: scikit-learn's own checks, the federation behind it, and errors."""

import datetime
import pickle
import warnings
from uuid import UUID

import naive
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from odd_federations import ODD_CASES
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine, make_classification
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedsurf
from fedsurf.common.randomness import generator
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.federations import deal, default_agents, family, federation_network
from fedsurf.network import Network, StarNetwork
from fedsurf.network.engines.memory import run_parts
from fedsurf.tasks.task import Examples, Task

FAMILIES = ("regular", "ring", "erdos-renyi", "complete", "torus", "small-world", "star")


@pytest.fixture(scope="module")
def iris():
    """Flowers, by the names of their kinds, and five growers of unequal numbers of them."""
    data = load_iris()
    order = np.random.default_rng(0).permutation(150)
    growers = np.array(["anna", "ben", "carl", "dora", "emil"])[np.arange(150) % 9 % 5]
    return data.data[order], data.target_names[data.target[order]], growers


@parametrize_with_checks(
    [
        FederatedClassifier(),
        FederatedClassifier(n_agents=3, graph="star", rounds=8),
        FederatedClassifier(n_agents=3, graph="star", reporting=1, rounds=8),
        FederatedClassifier(n_agents=2, rounds=5, standardize=False, batch_size=10),
    ]
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


def test_agents_with_ids_learn_together(iris):
    x, y, growers = iris
    model = FederatedClassifier(graph="ring").fit(x[:100], y[:100], agents=growers[:100])
    assert model.score(x[100:], y[100:]) > 0.85
    assert model.agents_.tolist() == ["anna", "ben", "carl", "dora", "emil"]
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert sorted(map(sorted, model.graph_.edges)) == [
        ["anna", "ben"], ["anna", "emil"], ["ben", "carl"], ["carl", "dora"], ["dora", "emil"],
    ]  # fmt: skip
    assert model.n_rounds_ == 20
    assert model.floats_ == model.trajectory_["floats"][-1] > 0
    assert model.bytes_ == model.trajectory_["bytes"][-1] > 4 * model.floats_


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_messages_in_fewer_bytes_cost_little_accuracy(graph):
    x, y = load_wine(return_X_y=True)  # features of very different units
    found = {
        wire: FederatedClassifier(graph=graph, n_agents=5, wire=wire).fit(x, y)
        for wire in ("float32", "float16", "int8")
    }
    sizes = [model.bytes_ for model in found.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 0.7 * sizes[0]
    assert min(model.score(x, y) for model in found.values()) > 0.97
    assert len({model.floats_ for model in found.values()}) == 1


def test_the_consensus_is_the_average_of_the_agents_heads(iris):
    x, y, growers = iris
    model = FederatedClassifier(rounds=7).fit(x, y, agents=growers)
    assert model.agent_coef_.shape == (5, 3, 4)
    np.testing.assert_allclose(model.coef_, model.agent_coef_.mean(0), rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, model.agent_intercept_.mean(0), rtol=1e-9)
    flat = np.concatenate([model.agent_coef_[1].T, model.agent_intercept_[1][None]]).flatten()
    for features, found in zip(x[:5], model.predict_proba(x[:5], agent="ben"), strict=True):
        expected = naive.probabilities(flat.tolist(), features.tolist(), 3)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    best = model.decision_function(x, agent="ben").argmax(1)
    assert (model.predict(x, agent="ben") == model.classes_[best]).all()
    with pytest.raises(
        ValueError, match="agent: got 'zoe', but it must be one of agents_: 'anna', 'ben'"
    ):
        model.predict(x, agent="zoe")
    with pytest.raises(
        ValueError, match=r"(?s)agent: got array\(.*, but it must be one of agents_: "
    ):
        model.predict(x, agent=growers)


@pytest.mark.parametrize("kind", ["ring", "star"])
def test_training_is_a_run_of_the_optimizer_on_the_same_task(iris, kind):
    x, y, growers = iris
    model = FederatedClassifier(graph=kind, reporting=2 if kind == "star" else None, rounds=9)
    model.fit(x, y, agents=growers)
    labels = np.unique(y, return_inverse=True)[1]
    own = [growers == one for one in np.unique(growers)]
    examples = Examples.pad(
        [torch.tensor(x[rows]) for rows in own], [torch.tensor(labels[rows]) for rows in own]
    )
    if kind == "star":
        network = StarNetwork(5, 2, fedsurf.generator(0, "graph"), calling="in-turn")
    else:
        network = Network(nx.cycle_graph(5), shift="metropolis")
    algorithm = fedsurf.load().on(
        fedsurf.SoftmaxHead(4, 3), rounds=9, scaling="auto", ease_rare=True, weigh_agents=True
    )
    run = fedsurf.run(algorithm, Task(examples, examples, 3), network, algorithm.steps)
    for name in ("rounds", "floats", "disagreement"):
        np.testing.assert_allclose(model.trajectory_[name], getattr(run, name), rtol=1e-5)
    np.testing.assert_allclose(model.trajectory_["agent_accuracy"], run.accuracy, rtol=1e-5)


def test_a_server_that_calls_in_turn_is_better_in_few_rounds_than_one_that_calls_at_random():
    x, y = load_digits(return_X_y=True)
    scores = {}
    for calling in ("in-turn", "random"):
        model = FederatedClassifier(graph="star", reporting=2, rounds=5, calling=calling)
        model.fit(x[:1000], y[:1000], agents=y[:1000])  # an agent for each digit
        scores[calling] = model.score(x[1000:], y[1000:])
    assert FederatedClassifier().calling == "in-turn"
    assert scores["in-turn"] > scores["random"] + 0.05


def test_calling_does_not_matter_if_all_agents_report(iris):
    x, y, growers = iris
    one, two = (
        FederatedClassifier(graph="star", rounds=6, calling=calling).fit(x, y, agents=growers)
        for calling in ("in-turn", "random")
    )
    assert np.array_equal(one.coef_, two.coef_)


@pytest.mark.parametrize("graph", ["complete", "star"])
def test_agents_with_a_single_row_do_not_ruin_the_model_of_a_large_one(graph):
    x, y = make_classification(4000, 20, n_informative=8, n_classes=3, random_state=1)
    alone = FederatedClassifier(n_agents=1).fit(x[:2000], y[:2000]).score(x[2000:], y[2000:])
    ids = np.maximum(
        0, np.arange(2000) - 1994
    )  # one agent with all rows but five, and five with one
    model = FederatedClassifier(graph=graph).fit(x[:2000], y[:2000], agents=ids)
    assert model.score(x[2000:], y[2000:]) > alone - 0.02 > 0.7


def test_the_trajectory_is_that_of_the_consensus_model(iris):
    x, y, growers = iris
    called = []
    model = FederatedClassifier().fit(
        x, y, agents=growers, on_layer=lambda: called.append(len(called))
    )
    seen = model.trajectory_
    assert seen["rounds"].tolist() == list(range(0, 21, 2))
    assert len(called) == len(seen["rounds"]) - 1
    assert (np.diff(seen["floats"]) > 0).all()
    assert seen["accuracy"][-1] == model.score(x, y)
    assert seen["loss"][0] == pytest.approx(np.log(3))
    assert seen["loss"][-1] == pytest.approx(log_loss(y, model.predict_proba(x)))
    own = [
        np.mean(model.predict(x[growers == one], agent=one) == y[growers == one])
        for one in model.agents_
    ]
    assert seen["agent_accuracy"][-1] == pytest.approx(np.mean(own))
    staged = list(model.staged_predict(x))
    assert [np.mean(labels == y) for labels in staged] == seen["accuracy"].tolist()
    assert (staged[-1] == model.predict(x)).all()


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_an_agents_own_head_is_scored_as_it_predicts(iris, graph):
    x, y, growers = iris
    model = FederatedClassifier(graph=graph, rounds=2).fit(x, y, agents=growers)
    weights = np.arange(150.0)
    for one in model.agents_:
        right = model.predict(x, agent=one) == y
        assert model.score(x, y, agent=one) == right.mean()
        assert model.score(x, y, weights, agent=one) == np.average(right, weights=weights)
    unlike = len({model.score(x, y, agent=one) for one in model.agents_})
    assert unlike > 1 if graph == "ring" else unlike == 1
    assert model.score(x, y) == np.mean(model.predict(x) == y)
    assert model.score(x, y, weights) == np.average(model.predict(x) == y, weights=weights)
    with pytest.raises(ValueError, match="agent: got 'zoe', but it must be one of agents_: "):
        model.score(x, y, agent="zoe")


def test_a_subclass_is_scored_by_its_own_predictions(iris):
    class Stubborn(FederatedClassifier):
        def predict(self, X):  # noqa: N803
            return np.full(len(X), "setosa")

    x, y, growers = iris
    assert Stubborn(rounds=2).fit(x, y, agents=growers).score(x, y) == np.mean(y == "setosa")


def test_mini_batches_are_random_unless_they_hold_all_rows(iris):
    x, y, growers = iris
    options = [(None, 0), (1000, 0), (10, 0), (10, 0), (10, 1)]
    whole, every, some, again, other = (
        FederatedClassifier(graph="ring", batch_size=size, random_state=seed)
        .fit(x, y, agents=growers)
        .predict_proba(x)
        for size, seed in options
    )
    np.testing.assert_allclose(every, whole, atol=1e-8)
    np.testing.assert_array_equal(some, again)
    assert np.abs(some - whole).max() > 1e-3
    assert np.abs(some - other).max() > 1e-3
    assert np.mean(some.argmax(1) == whole.argmax(1)) > 0.9
    with pytest.raises(ValueError, match=r"^batch_size: got -1, but it must be at least 1"):
        FederatedClassifier(batch_size=-1).fit(x, y)


def test_without_standardisation_all_rounds_are_layers(iris):
    x, y, _ = iris
    model = FederatedClassifier(standardize=False, rounds=5).fit(x, y)
    assert model.trajectory_["rounds"].tolist() == [0, 2, 4, 5]


UNIT, ORIGIN = np.array([1e-6, 1.0, 1e4, 10.0]), np.array([1.0, -2e5, 1e8, 0.0])


def test_units_and_origins_of_standardised_features_do_not_matter(iris):
    x, y, growers = iris
    model = FederatedClassifier(standardize=True).fit(x, y, agents=growers)
    other = FederatedClassifier(standardize=True).fit(x * UNIT + ORIGIN, y, agents=growers)
    np.testing.assert_allclose(
        model.predict_proba(x), other.predict_proba(x * UNIT + ORIGIN), atol=1e-4
    )


def test_auto_standardises_only_features_of_different_units(iris):
    x, y, growers = iris

    def chances(standardize, unit, origin=0.0):
        model = FederatedClassifier(standardize=standardize)
        return model.fit(x * unit + origin, y, agents=growers).predict_proba(x * unit + origin)

    alike = chances("auto", 1.0)
    np.testing.assert_allclose(alike, chances("auto", 1e3, 7.0), atol=1e-4)
    assert abs(alike - chances(True, 1.0)).max() > 0.02
    np.testing.assert_allclose(chances("auto", UNIT, ORIGIN), chances(True, 1.0), atol=1e-4)


@pytest.mark.parametrize("graph", ["complete", "star"])
def test_the_estimated_units_are_an_attribute(iris, graph):
    x, y, _ = iris

    def units(standardize, unit=1.0):
        model = FederatedClassifier(standardize=standardize, graph=graph, n_agents=4, rounds=6)
        return model.fit(x * unit, y).units_

    np.testing.assert_array_equal(units(False), np.ones(4))
    np.testing.assert_allclose(units(True), x.std(0), rtol=0.05)
    np.testing.assert_allclose(units("auto"), np.sort(x.std(0))[2], rtol=0.05)
    np.testing.assert_allclose(units("auto", UNIT), (x * UNIT).std(0), rtol=0.05)


@pytest.mark.parametrize(("case", "better"), [("components", False), ("wine", True)])
def test_auto_suits_real_features(case, better):
    x, y = (load_digits if case == "components" else load_wine)(return_X_y=True)
    if case == "components":
        x = PCA(32, random_state=0).fit_transform(x)
    right = {True: [], False: [], "auto": []}
    for seed in range(4):
        x_train, x_test, y_train, y_test = train_test_split(
            x, y, train_size=min(500, len(y) // 2), random_state=seed
        )
        for standardize, found in right.items():
            model = FederatedClassifier(standardize=standardize, n_agents=8)
            found.append(model.fit(x_train, y_train).score(x_test, y_test))
    best, other, auto = (np.mean(right[key]) for key in (better, not better, "auto"))
    assert best > other + 0.01
    assert auto > best - 0.01


def test_the_order_of_rows_and_the_names_of_agents_do_not_matter(iris):
    x, y, growers = iris
    model = FederatedClassifier(graph="complete").fit(x, y, agents=growers)
    order = np.random.default_rng(1).permutation(len(x))
    other = FederatedClassifier(graph="complete").fit(x[order], y[order], agents=growers[order])
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-6)
    numbers = {"anna": 40, "ben": 30, "carl": 20, "dora": 10, "emil": 0}
    renamed = np.array([numbers[one] for one in growers])
    other = FederatedClassifier(graph="complete").fit(x, y, agents=renamed)
    assert other.agents_.tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(model.agent_coef_, other.agent_coef_[::-1], rtol=1e-6)


def test_the_same_call_has_the_same_result_and_leaves_the_global_generators_alone(iris):
    x, y, _ = iris
    optimizer = fedsurf.load()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (FederatedClassifier(optimizer, n_agents=6).fit(x, y) for _ in range(2))
    assert (first.agent_coef_ == second.agent_coef_).all()
    other = FederatedClassifier(optimizer, n_agents=6, random_state=1).fit(x, y)
    assert (first.agent_coef_ != other.agent_coef_).any()
    drawn = FederatedClassifier(optimizer, random_state=np.random.RandomState(3)).fit(x, y)
    again = FederatedClassifier(optimizer, random_state=np.random.RandomState(3)).fit(x, y)
    assert (drawn.coef_ == again.coef_).all()
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize(
    ("change", "usual", "other"),
    [
        (torch.set_default_dtype, torch.float32, torch.float64),
        (torch.set_default_dtype, torch.float32, torch.bfloat16),
        (torch.set_default_device, None, "meta"),  # as a GPU would be
    ],
)
def test_torchs_defaults_do_not_matter(iris, batch_size, change, usual, other):
    x, y, growers = iris
    model = FederatedClassifier(rounds=6, batch_size=batch_size, graph="ring")
    expected = model.fit(x, y, agents=growers).coef_
    change(other)
    try:
        found = clone(model).fit(x, y, agents=growers).coef_
    finally:
        change(usual)
    # Shares of whole numbers have torch's default precision.
    np.testing.assert_allclose(found, expected, atol=1e-3 if other == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize(("n_jobs", "wanted"), [(None, 1), (2, 2)])
def test_n_jobs_threads_are_used_while_it_trains(iris, monkeypatch, n_jobs, wanted):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    x, y, _ = iris
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        model = FederatedClassifier(rounds=4, n_jobs=n_jobs)
        model.fit(x, y, on_layer=lambda: seen.append(torch.get_num_threads()))
        assert seen == [wanted, wanted]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_rows_are_dealt_evenly():
    assert [default_agents(rows) for rows in (1, 39, 40, 150, 200, 10**6)] == [1, 1, 2, 7, 10, 10]
    owner = deal(23, 5, fedsurf.generator(0))
    assert sorted(np.bincount(owner)) == [4, 4, 5, 5, 5]
    assert owner.tolist() != sorted(owner.tolist())


def test_a_family_that_does_not_exist_is_replaced_by_the_nearest():
    def nearest(*asked):
        found = family(*asked)
        return found.kind, found.degree

    assert nearest("regular", 10, 3) == ("regular", 3)
    assert nearest("regular", 9, 3) == ("regular", 4)
    assert nearest("regular", 4, 3) == ("regular", 3)
    assert nearest("regular", 3, 3)[0] == "complete"
    assert nearest("regular", 9, 2)[0] == "ring"
    assert nearest("small-world", 9, 3) == ("small-world", 4)
    assert nearest("small-world", 4, 3)[0] == "complete"
    assert nearest("torus", 12)[0] == "torus"
    assert nearest("torus", 13)[0] == "ring"
    assert family("erdos-renyi", 10).probability == pytest.approx(0.46, abs=0.01)
    assert family("erdos-renyi", 10, 3, 0.3).probability == 0.3
    assert family("erdos-renyi", 1000).probability == 0.1
    assert family("small-world", 20).probability == 0.1
    assert family("small-world", 20, 4, 0.5).probability == 0.5


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_works_for_every_number_of_agents(iris, kind):
    x, y, _ = iris
    for agents in (1, 2, 3, 5, 7):
        model = FederatedClassifier(graph=kind, n_agents=agents, rounds=5).fit(x, y)
        assert len(model.agents_) == agents
        assert np.isfinite(model.agent_coef_).all()
        assert model.score(x, y) > 0.6
        assert (model.graph_ is None) == (kind == "star")


def test_a_custom_graph_has_ids_or_numbers_as_nodes(iris):
    x, y, growers = iris
    by_name = nx.Graph([("emil", "anna"), ("anna", "ben"), ("ben", "carl"), ("carl", "dora")])
    by_number = nx.Graph([(4, 0), (0, 1), (1, 2), (2, 3)])
    models = [
        FederatedClassifier(graph=graph).fit(x, y, agents=growers) for graph in (by_name, by_number)
    ]
    assert (models[0].agent_coef_ == models[1].agent_coef_).all()
    assert nx.utils.graphs_equal(models[0].graph_, models[1].graph_)
    assert set(models[0].graph_["anna"]) == {"emil", "ben"}
    dealt = FederatedClassifier(graph=by_name).fit(x, y)
    assert dealt.agents_.tolist() == list(by_name)
    assert nx.utils.graphs_equal(dealt.graph_, by_name)
    mixed = FederatedClassifier(graph=nx.path_graph([0, "one", (2, 2)])).fit(x, y)
    assert mixed.predict(x, agent=(2, 2)).shape == (150,)


def test_nodes_as_text_are_the_agents_of_these_numbers(iris):
    x, y, _ = iris
    ids = np.arange(len(y)) % 12 + 3
    links = [(str(node), str(node + 1)) for node in range(3, 14)]
    model = FederatedClassifier(graph=nx.Graph(links), rounds=4).fit(x, y, agents=ids)
    assert {frozenset(map(str, link)) for link in model.graph_.edges} == set(map(frozenset, links))
    assert set(model.graph_) == set(ids.tolist())
    links.append((14, "14"))  # two nodes of one text
    with pytest.raises(ValueError, match=r"graph: got 13 nodes for 12 agents"):
        FederatedClassifier(graph=nx.Graph(links), rounds=4).fit(x, y, agents=ids)


def test_numbers_as_text_are_the_nodes_of_these_numbers(iris):
    x, y, _ = iris
    ids = np.arange(len(y)) % 12
    for first in (0, 1):  # in the order of text, 10 is before 2
        chain = nx.path_graph(range(first, first + 12))
        model = FederatedClassifier(graph=chain, rounds=4).fit(
            x, y, agents=(ids + first).astype(str)
        )
        assert {frozenset(map(int, link)) for link in model.graph_.edges} == set(
            map(frozenset, chain.edges)
        )


@pytest.mark.parametrize("unit", ["s", "D"])
def test_dates_are_ids(iris, unit):
    x, y, _ = iris
    days = np.array(["2020-01-01", "2020-01-03", "2020-01-02"], dtype=f"datetime64[{unit}]")
    model = FederatedClassifier(rounds=6).fit(x, y, agents=np.tile(days, 50))
    assert (model.agents_ == np.sort(days)).all()
    for number, agent in enumerate(model.agents_.tolist()):
        assert agent in list(model.graph_)
        scores = x @ model.agent_coef_[number].T + model.agent_intercept_[number]
        assert (model.decision_function(x, agent=agent) == scores).all()
    again = FederatedClassifier(rounds=6, graph=model.graph_).fit(x, y, agents=np.tile(days, 50))
    assert set(again.graph_) == set(model.graph_)


def test_tuples_and_other_values_with_an_order_are_ids(iris):
    x, y, _ = iris
    for ids in (((2, "b"), (1, "a"), (1, "b")), tuple(map(UUID, ("1" * 32, "3" * 32, "2" * 32)))):
        model = FederatedClassifier(rounds=6, n_agents=3).fit(x, y, agents=objects(*ids))
        assert model.agents_.tolist() == sorted(ids)
        assert model.predict(x, agent=ids[0]).shape == (150,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph": "spider"}, "graph: got 'spider', but it must be a networkx graph or one of"),
        ({"graph": np.eye(5)}, r"(?s)^graph: got array\(.*, but it must be a networkx graph"),
        ({"graph": nx.path_graph(4)}, "graph: got 4 nodes for 5 agents"),
        ({"graph": nx.empty_graph(5)}, "graph: got 5 components"),
        ({"graph": nx.DiGraph([(0, 1)])}, "graph: got a directed"),
        ({"reporting": 2}, "reporting: got 2 with the graph 'regular', but only"),
        (
            {"reporting": 2, "graph": nx.path_graph(5)},
            "reporting: got 2 with a custom graph, but only",
        ),
        ({"reporting": 9, "graph": "star"}, "reporting: got 9, but it must be between 1 and 5"),
        ({"calling": "by name"}, "calling: got 'by name', but it must be 'random' or 'in-turn'"),
        ({"calling": None, "graph": "star"}, "calling: got None, but it must be"),
        ({"degree": 0}, "degree: got 0"),
        ({"probability": 5}, "probability: got 5, but it must be between 0 and 1"),
        ({"probability": -0.1, "graph": nx.path_graph(5)}, "probability: got -0.1, but it must"),
        ({"n_agents": 3}, "n_agents: got 3, but agents says whose each row is, and has 5 ids"),
        ({"rounds": 0}, "rounds: got 0, but it must be between 1 and 200"),
        ({"optimizer": "sgd"}, "optimizer: got 'sgd'"),
        ({"n_jobs": 0}, "n_jobs: got 0, but it must be at least 1, below 0 or None"),
    ],
)
def test_wrong_settings_are_named(iris, settings, message):
    x, y, growers = iris
    with pytest.raises(ValueError, match=message):
        FederatedClassifier(**settings).fit(x, y, agents=growers)


def objects(*values):
    """Return 150 of these in turn, as NumPy would not make them of lists."""
    found = np.empty(150, dtype=object)
    found[:] = [values[row % len(values)] for row in range(150)]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ["a"] * 149}, r"agents: got shape \[149\], but it must be \[150\]"),
        ({"agents": [["a", "b"]] * 150}, r"agents: got shape \[150, 2\]"),
        ({"agents": [None, *["a"] * 149]}, "agents: got no id for row 0"),
        ({"agents": [1.0, np.nan, *[2.0] * 148]}, "agents: got no id for row 1"),
        ({"agents": np.array([1, *["a"] * 149], dtype=object)}, "agents: got ids without an order"),
        ({"agents": [1, *["a"] * 149]}, "agents: got ids without an order"),
        ({"agents": ["a", np.nan, *["b"] * 148]}, "agents: got no id for row 1"),
        ({"y": np.array(["a", None, "b"] * 50, dtype=object)}, "y: got no label for row 1 .50 in"),
        ({"y": ["a", np.nan, "b"] * 50}, "y: got no label for row 1 .50 in"),
        ({"y": [1, None, 2] * 50}, "y: got no label for row 1 .50 in"),
        ({"y": np.array([1.0, np.nan, 2.0] * 50)}, "y: got no label for row 1 .50 in"),
        (
            {"y": np.array(["a", 1, "b"] * 50, dtype=object)},
            "y: got labels of the type int and str, but",
        ),
        (
            {"y": np.array([b"a", b"b"] * 75)},
            "^y: got labels of the type bytes_, but they must be all numbers or all text",
        ),
        ({"y": ["same"] * 150}, r"y: got one class only \('same'\)"),
        ({"X": csr_array(np.eye(150))}, "[Ss]parse data was passed"),
        ({"X": np.full((150, 2), np.nan)}, "NaN"),
        (
            {"X": np.full((150, 2), np.datetime64("2020-01-01"))},
            "X: got features of type datetime64",
        ),
        ({"X": np.full((150, 2), np.timedelta64(1, "D"))}, "X: got features of type timedelta64"),
    ],
)
def test_wrong_data_are_named(iris, change, message):
    given = {"X": iris[0], "y": iris[1], **change}
    with pytest.raises((ValueError, TypeError), match=message):
        FederatedClassifier().fit(**given)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.path_graph(151), "graph: got 151 nodes for 150 rows, but each agent needs a row"),
        (nx.Graph(), "graph: got one without nodes"),
    ],
)
def test_a_graph_with_more_nodes_than_rows_or_none_is_refused(iris, graph, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        FederatedClassifier(graph=graph).fit(*iris[:2])


def test_too_many_agents_are_refused(iris):
    x, y, _ = iris
    with pytest.raises(ValueError, match="n_agents: got 151, but it must be between 1 and 150"):
        FederatedClassifier(n_agents=151).fit(x, y)
    with pytest.raises(ValueError, match="n_agents: got 4, but the graph has 5 nodes"):
        FederatedClassifier(n_agents=4, graph=nx.path_graph(5)).fit(x, y)


def test_it_works_in_pipelines_searches_and_cross_validation(iris):
    x, y, growers = iris
    folds = StratifiedKFold(3)
    pipeline = make_pipeline(StandardScaler(), FederatedClassifier(standardize=False, rounds=6))
    assert cross_val_score(pipeline, x, y, cv=folds).mean() > 0.8
    found = cross_val_score(
        FederatedClassifier(rounds=6), x, y, cv=folds, params={"agents": growers}
    )
    assert found.mean() > 0.8
    pipeline.fit(x, y, federatedclassifier__agents=growers)
    assert pipeline[-1].agents_.tolist() == sorted(set(growers))
    search = GridSearchCV(FederatedClassifier(n_agents=5), {"rounds": [4, 8]}, cv=folds)
    assert search.fit(x, y).best_score_ > 0.8


def test_agents_are_routed_where_scikit_learn_routes_metadata(iris):
    x, y, growers = iris
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedClassifier(rounds=6, standardize=False).set_fit_request(agents=True)
        pipeline = make_pipeline(StandardScaler(), model)
        found = cross_val_score(pipeline, x, y, cv=3, params={"agents": growers})
        assert found.mean() > 0.8
        assert pipeline.fit(x, y, agents=growers)[-1].agents_.tolist() == sorted(set(growers))


@pytest.mark.parametrize("kind", ["object", "string", "category"])
def test_rows_of_data_frames_are_taken_by_position_and_columns_by_name(iris, kind):
    x, y, growers = iris
    index = np.arange(150)[::-1]
    frame = pd.DataFrame(x, index=index, columns=["a", "b", "c", "d"])
    ids = pd.Series(growers, dtype=kind)
    model = FederatedClassifier().fit(frame, pd.Series(y, index=index, dtype=kind), agents=ids)
    plain = FederatedClassifier().fit(x, y, agents=growers)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert np.array_equal(model.coef_, plain.coef_)
    assert model.agents_.tolist() == plain.agents_.tolist()
    assert np.array_equal(model.predict(frame), plain.predict(x))
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[["d", "c", "b", "a"]])
    unknown = pd.Series([None, *y[1:]], dtype=kind)
    with pytest.raises(ValueError, match=r"y: got no label for row 0 \(1 in all"):
        FederatedClassifier().fit(frame, unknown, agents=ids)


def test_clones_and_pickles_are_the_same(iris):
    x, y, growers = iris
    optimizer = fedsurf.load()
    model = FederatedClassifier(optimizer, graph=nx.path_graph(5), rounds=6)
    copy = clone(model)
    assert copy.get_params()["rounds"] == 6
    model.fit(x, y, agents=growers)
    copy.fit(x, y, agents=growers)
    assert (copy.coef_ == model.coef_).all()
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    assert (FederatedClassifier(graph=nx.path_graph(5), rounds=6).fit(x, y, growers).coef_
            == model.coef_).all()  # fmt: skip


def test_float32_stays_float32(iris):
    x, y, growers = iris
    model = FederatedClassifier().fit(x.astype(np.float32), y, agents=growers)
    assert model.coef_.dtype == model.predict_proba(x.astype(np.float32)).dtype == np.float32
    assert model.score(x.astype(np.float32), y) > 0.85


@pytest.mark.parametrize("name", ODD_CASES)
def test_odd_federations_are_learned(name):
    task, network = ODD_CASES[name](fedsurf.generator(0, name))
    owner = np.repeat(np.arange(task.agents), task.train.counts)
    train, test = task.train.pooled(), task.test.pooled()
    x, y = train.x[0].numpy(), train.y[0].numpy()
    model = FederatedClassifier(graph=network.graph).fit(x, y, agents=owner)
    central = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(x, y)
    given = test.x[0].numpy(), test.y[0].numpy()
    assert np.isfinite(model.agent_coef_).all()
    assert np.isfinite(model.predict_proba(given[0])).all()
    # Most of the way from guessing to all data in one place.
    guess, ceiling = 1 / task.classes, central.score(*given)
    assert model.score(*given) > guess + 0.6 * (ceiling - guess)
    own = [model.predict(given[0], agent=agent) for agent in (0, task.agents - 1)]
    assert min(np.mean(found == given[1]) for found in own) > guess + 0.4 * (ceiling - guess)


def test_the_cases_are_as_odd_as_they_say():
    drawn = {name: case(fedsurf.generator(0, name))[0] for name, case in ODD_CASES.items()}
    assert drawn["2 classes"].classes == 2
    assert drawn["100 classes"].classes == 100
    assert drawn["4 features"].features == 4
    assert drawn["2,048 features"].features == 2048
    assert drawn["2 agents"].agents == 2
    assert drawn["1,000 agents"].agents == 1000
    single = drawn["single-class agents"]
    assert all(len(set(labels.tolist())) == 1 for labels in single.train.y)
    assert len(single.train.y.unique()) == single.classes
    sizes = drawn["sizes between 1 and 500"].train.counts
    assert (int(sizes.min()), int(sizes.max())) == (1, 500)
    constant = drawn["constant features"].train.x.flatten(0, 1)
    assert int((constant.amax(0) == constant.amin(0)).sum()) == 10
    copies = drawn["duplicated features"].train.x
    assert torch.equal(copies[:, :, :15], copies[:, :, 15:])
    wild = drawn["large offsets, tiny and huge units"].train.x.flatten(0, 1)
    deviation = wild.std(0)
    assert deviation.max() / deviation.min() > 1e9
    assert (wild.mean(0).abs() / deviation).max() > 1e3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_agents": 2.5}, "n_agents: got 2.5, but it must be a whole number, or None"),
        ({"degree": 2.5}, "degree: got 2.5, but it must be a whole number"),
        ({"rounds": "3"}, "rounds: got '3', but it must be a whole number"),
        ({"rounds": 10.0}, "rounds: got 10.0"),
        ({"graph": "star", "reporting": "3"}, "reporting: got '3'"),
        ({"random_state": 1.5}, "random_state: got 1.5"),
        ({"n_jobs": 1.5}, "n_jobs: got 1.5, but it must be a whole number, or None"),
        ({"probability": "0.5"}, "probability: got '0.5', but it must be a number"),
        ({"standardize": "no"}, "standardize: got 'no', but it must be True, False or 'auto'"),
        (
            {"optimizer": torch.nn.Linear(2, 2)},
            r"optimizer: got Linear, .* fedsurf.load\(\) returns",
        ),
    ],
)
def test_settings_of_the_wrong_type_are_named(iris, settings, message):
    x, y, _ = iris
    with pytest.raises(TypeError, match=f"^{message}"):
        FederatedClassifier(**settings).fit(x, y)


def test_a_failed_fit_keeps_the_earlier_one(iris):
    x, y, _ = iris
    model = FederatedClassifier(rounds=6).fit(x, y)
    before = model.predict(x).tolist()
    with pytest.raises(ValueError, match=r"^agents: got shape"):
        model.fit(x, np.sort(y), agents=[1])
    assert model.predict(x).tolist() == before


@pytest.mark.parametrize(
    ("scale", "settings", "message"),
    [
        (1e200, {}, r"X: got features as large as .* in float64: give them in another unit$"),
        (1e200, {"standardize": False}, r"X: got .* in float64: give them in another unit$"),
        (1e-170, {"standardize": False}, r"X: got features that differ by no more than"),
    ],
)
def test_features_out_of_range_are_called_x(iris, scale, settings, message):
    x, y, _ = iris
    with pytest.raises(ValueError, match=f"^{message}"):
        FederatedClassifier(**settings).fit(scale * x, y)


@pytest.mark.parametrize(
    ("scale", "standardize", "message"),
    [
        (5e17, False, "with which training diverged"),
        (3e18, True, "as large as 1.2e[+]19, whose squares overflow"),
    ],
)
def test_features_that_diverge_are_named(scale, standardize, message):
    x = np.random.default_rng(0).normal(size=(200, 60)).astype(np.float32) * np.float32(scale)
    with pytest.raises(ValueError, match=f"^X: got features {message}"):
        FederatedClassifier(standardize=standardize, rounds=6).fit(x, np.arange(200) % 2)


def test_more_rounds_than_in_meta_training_give_a_warning(iris):
    x, y, _ = iris
    message = r"^rounds: got 41, but the optimizer was meta-trained"
    with pytest.warns(UserWarning, match=message) as found:
        FederatedClassifier(rounds=41).fit(x, y)
    assert [one.filename for one in found] == [__file__]  # the line that asked for them
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedClassifier(rounds=40).fit(x, y)


@pytest.mark.parametrize("standardize", ["auto", True])
def test_agents_of_two_rows_over_scale_no_feature(standardize):
    """Two rows may agree in a feature by chance, which is no sign of a small unit."""
    random = np.random.default_rng(5)
    x = random.normal(size=(3000, 10))
    y = (x @ random.normal(size=(10, 3)) + 3 * random.normal(size=(3000, 3))).argmax(1)
    agents = np.zeros(3000, dtype=int)
    agents[:100] = np.repeat(np.arange(1, 51), 2)
    for seed in (0, 2):
        model = FederatedClassifier(random_state=seed, standardize=standardize)
        assert model.fit(x, y, agents=agents).score(x, y) > 0.69
        assert model.trajectory_["loss"][-1] < 0.72


@pytest.mark.parametrize(
    ("label", "error", "kind"),
    [
        (lambda number: datetime.date(2020, 1, 1 + number), ValueError, "date"),
        (lambda number: b"abc"[number : number + 1], TypeError, "bytes"),
    ],
)
def test_labels_that_are_neither_numbers_nor_text_are_named(iris, label, error, kind):
    x, y, _ = iris
    with pytest.raises(
        error, match=f"^y: got labels of the type {kind}.* must be all numbers or all text"
    ):
        FederatedClassifier().fit(
            x, [label(int(one)) for one in np.unique(y, return_inverse=True)[1]]
        )


@pytest.mark.parametrize("settings", [{}, {"standardize": True, "batch_size": 8}], ids=str)
@pytest.mark.parametrize("star", [False, True])
def test_sites_that_only_exchange_messages_get_the_heads_of_the_simulator(star, settings):
    x, y = load_digits(return_X_y=True)
    own = [(x[site:600:12], y[site:600:12]) for site in range(12)]
    own[3] = tuple(values[own[3][1] < 4] for values in own[3])  # a site without all classes
    agents = np.repeat(range(12), [len(labels) for _, labels in own])
    together = [np.concatenate(parts) for parts in zip(*own, strict=True)]
    seen = {"graph": "star", "reporting": 5} if star else {"graph": "regular"}
    model = FederatedClassifier(**seen, **settings).fit(*together, agents=agents)
    whole = federation_network(
        seen["graph"],
        range(12),
        generator(0, "graph"),
        reporting=seen.get("reporting"),
        calling="in-turn",
    )

    # The server lives with the first site.
    owners = torch.tensor([0, *range(12)]) if star else torch.arange(12)

    def live(part):
        site = int(part.agent_rows(part.ids)[0])
        return FederatedClassifier(network=part, **settings).fit(*own[site])

    for site, found in enumerate(run_parts(whole, owners, live)):
        assert found.classes_.tolist() == model.classes_.tolist()
        np.testing.assert_allclose(found.coef_, model.coef_, atol=1e-8)
        np.testing.assert_allclose(found.agent_coef_[0], model.agent_coef_[site], atol=1e-8)
        np.testing.assert_allclose(
            found.trajectory_["accuracy"], model.trajectory_["accuracy"], atol=1e-12
        )


@pytest.mark.parametrize("argument", ["X", "y", "agents"])
def test_masked_values_are_refused(argument):
    x, y = load_iris(return_X_y=True)
    given = {"X": x, "y": y, "agents": np.arange(150) % 5}
    given[argument] = np.ma.masked_equal(given[argument], given[argument].flat[0])
    with pytest.raises(ValueError, match=f"^{argument}: got .* masked values"):
        FederatedClassifier().fit(**given)
