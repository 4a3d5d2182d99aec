"""Graph families: sizes, degrees, connectedness, seeds, and errors."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.network import GraphConfig, check_graph, make_graph

FAMILIES = ["regular", "erdos-renyi", "ring", "torus", "complete", "small-world"]


def degrees(graph):
    return sorted(dict(graph.degree).values())


def draw(kind, agents, seed=0, **settings):
    return make_graph(GraphConfig(kind, **settings), agents, seeded(seed))


@given(degree=st.integers(3, 6), more=st.integers(1, 25), seed=st.integers(0, 1000))
def test_regular_graphs_are_connected_and_of_the_degree(degree, more, seed):
    agents = degree + more
    agents += agents * degree % 2
    graph = draw("regular", agents, seed, degree=degree)
    assert list(graph) == list(range(agents))
    assert degrees(graph) == [degree] * agents
    assert nx.is_connected(graph)


@given(agents=st.integers(2, 40), seed=st.integers(0, 1000))
def test_random_graphs_are_connected(agents, seed):
    graph = draw("erdos-renyi", agents, seed, probability=0.5)
    assert list(graph) == list(range(agents))
    assert nx.is_connected(graph)


def test_the_papers_graphs_of_100_agents_can_be_drawn():
    regular, random = draw("regular", 100), draw("erdos-renyi", 100)
    assert degrees(regular) == [3] * 100
    assert nx.is_connected(random)
    assert 0.08 < nx.density(random) < 0.12


@given(agents=st.integers(1, 30))
def test_stars_rings_and_complete_graphs_have_their_links(agents):
    star, complete = draw("star", agents), draw("complete", agents)
    assert {tuple(sorted(edge)) for edge in star.edges} == {(0, i + 1) for i in range(agents)}
    assert degrees(complete) == [agents - 1] * agents
    ring = draw("ring", agents)
    for agent in range(agents if agents > 2 else 0):
        assert set(ring.neighbors(agent)) == {(agent - 1) % agents, (agent + 1) % agents}


@pytest.mark.parametrize(
    ("agents", "degree"), [(9, 4), (12, 4), (25, 4), (100, 4), (4, 2), (6, 3), (10, 3)]
)
def test_a_torus_is_a_grid_without_border(agents, degree):
    graph = draw("torus", agents)
    assert sorted(graph) == list(range(agents))
    assert degrees(graph) == [degree] * agents
    assert nx.is_connected(graph)


@given(agents=st.integers(5, 30), degree=st.sampled_from([2, 4]), seed=st.integers(0, 1000))
def test_a_small_world_is_connected_and_keeps_its_average_degree(agents, degree, seed):
    graph = draw("small-world", agents, seed, degree=degree, probability=0.2)
    assert graph.number_of_edges() == agents * degree // 2
    assert nx.is_connected(graph)
    ring = draw("small-world", 10, degree=4, probability=0.0)
    assert set(ring.neighbors(0)) == {1, 2, 8, 9}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("regular", {}),
        ("erdos-renyi", {"probability": 0.3}),
        ("small-world", {"degree": 4, "probability": 0.5}),
    ],
)
def test_random_graphs_are_a_function_of_the_seed(kind, settings):
    first, again, other = (sorted(draw(kind, 20, seed, **settings).edges) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", FAMILIES)
def test_one_agent_has_no_links(kind):
    graph = draw(kind, 1)
    assert list(graph) == [0]
    assert graph.number_of_edges() == 0


@pytest.mark.parametrize("kind", ["regular", "erdos-renyi", "ring", "complete"])
def test_two_agents_are_linked(kind):
    assert list(draw(kind, 2, degree=1, probability=0.5).edges) == [(0, 1)]


@pytest.mark.parametrize(
    ("kind", "agents", "settings", "message"),
    [
        ("wheel", 10, {}, "kind: got 'wheel'"),
        ("regular", 0, {}, "agents: got 0"),
        ("star", -3, {}, "agents: got -3"),
        ("torus", 13, {}, "agents: got 13, but a torus"),
        ("regular", 5, {"degree": 3}, "degree: got 3 for 5 agents"),
        ("regular", 4, {"degree": 4}, "degree: got 4 for 4 agents"),
        ("regular", 6, {"degree": 0}, "degree: got 0 for 6 agents"),
        ("small-world", 10, {"degree": 3}, "degree: got 3 .*even"),
        ("erdos-renyi", 10, {"probability": -0.1}, "probability: got -0.1"),
        ("erdos-renyi", 10, {"probability": float("nan")}, "probability: got nan"),
        ("small-world", 10, {"degree": 2, "probability": 1.1}, "probability: got 1.1"),
        ("erdos-renyi", 50, {"probability": 0.01}, "probability: got 0.01, .* none of 100"),
        ("regular", 10, {"degree": 1}, "degree: got 1, with which none of 100"),
    ],
)
def test_invalid_settings_raise_errors_that_name_the_field(kind, agents, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        draw(kind, agents, **settings)


def test_a_custom_graph_is_numbered_in_the_order_of_its_nodes_without_loops():
    custom = nx.Graph([("c", "a"), ("a", "b"), ("a", "a")])
    assert list(custom) == ["c", "a", "b"]
    plain = check_graph(custom)
    assert list(plain) == [0, 1, 2]
    assert sorted(plain.edges) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph([(0, 1), (1, 0)]), "got a directed"),
        (nx.MultiGraph([(0, 1), (0, 1)]), ".*multigraph"),
        (nx.Graph(), "got one without nodes"),
        (nx.Graph([("x", "y"), ("y", "z"), ("c", "d")]), "got 2 components.*'c', 'd'"),
    ],
)
def test_invalid_custom_graphs_raise_errors(graph, message):
    with pytest.raises(ValueError, match=f"^graph: {message}"):
        check_graph(graph)
