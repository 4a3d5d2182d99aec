"""Graph families: sizes, degrees, connectedness, seeds, and what is refused."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded

from fedsurf.network import GraphConfig, check_graph, make_graph


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
def test_a_star_has_a_server_beside_its_agents(agents):
    graph = draw("star", agents)
    assert sorted(graph) == list(range(agents + 1))
    assert {tuple(sorted(edge)) for edge in graph.edges} == {(0, i) for i in range(1, agents + 1)}


@given(agents=st.integers(3, 30))
def test_a_ring_links_each_agent_to_two(agents):
    graph = draw("ring", agents)
    for agent in range(agents):
        assert set(graph.neighbors(agent)) == {(agent - 1) % agents, (agent + 1) % agents}


@given(agents=st.integers(1, 20))
def test_a_complete_graph_links_everybody(agents):
    assert degrees(draw("complete", agents)) == [agents - 1] * agents


@pytest.mark.parametrize(
    ("agents", "degree"), [(9, 4), (12, 4), (25, 4), (100, 4), (4, 2), (6, 3), (10, 3)]
)
def test_a_torus_is_a_grid_without_border(agents, degree):
    graph = draw("torus", agents)
    assert sorted(graph) == list(range(agents))
    assert degrees(graph) == [degree] * agents
    assert nx.is_connected(graph)


@pytest.mark.parametrize("agents", [2, 3, 5, 7, 13])
def test_a_torus_of_a_prime_number_of_agents_is_refused(agents):
    with pytest.raises(ValueError, match=rf"^agents: got {agents}, but a torus"):
        draw("torus", agents)


@given(agents=st.integers(5, 30), degree=st.sampled_from([2, 4]), seed=st.integers(0, 1000))
def test_a_small_world_keeps_its_average_degree(agents, degree, seed):
    graph = draw("small-world", agents, seed, degree=degree, probability=0.2)
    assert graph.number_of_edges() == agents * degree // 2
    assert nx.is_connected(graph)


def test_a_small_world_without_rewiring_is_a_ring_of_neighbourhoods():
    graph = draw("small-world", 10, degree=4, probability=0.0)
    assert set(graph.neighbors(0)) == {1, 2, 8, 9}


@pytest.mark.parametrize("degree", [1, 3, 5])
def test_a_small_world_of_odd_degree_is_refused_instead_of_rounded(degree):
    with pytest.raises(ValueError, match=rf"^degree: got {degree} .*even"):
        draw("small-world", 10, degree=degree)


@pytest.mark.parametrize(
    "config",
    [GraphConfig("regular"), GraphConfig("erdos-renyi", probability=0.3),
     GraphConfig("small-world", degree=4, probability=0.5)],
)  # fmt: skip
def test_random_graphs_follow_the_seed(config):
    first, again, other = (sorted(make_graph(config, 20, seeded(seed)).edges) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "kind", ["regular", "erdos-renyi", "ring", "torus", "complete", "small-world"]
)
def test_a_single_agent_is_a_graph_without_links(kind):
    graph = draw(kind, 1)
    assert list(graph) == [0]
    assert graph.number_of_edges() == 0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("regular", {"degree": 1}),
        ("erdos-renyi", {"probability": 0.5}),
        ("ring", {}),
        ("complete", {}),
    ],
)
def test_two_agents_are_linked(kind, settings):
    assert list(draw(kind, 2, **settings).edges) == [(0, 1)]


@pytest.mark.parametrize("kind", ["regular", "star", "complete"])
@pytest.mark.parametrize("agents", [0, -3])
def test_a_graph_has_agents(kind, agents):
    with pytest.raises(ValueError, match=rf"^agents: got {agents}"):
        draw(kind, agents)


@pytest.mark.parametrize(("agents", "degree"), [(5, 3), (4, 4), (4, 5), (6, 0), (6, -1), (2, 3)])
def test_degrees_that_cannot_be_are_refused(agents, degree):
    with pytest.raises(ValueError, match=rf"^degree: got {degree} for {agents} agents"):
        draw("regular", agents, degree=degree)


@pytest.mark.parametrize("kind", ["erdos-renyi", "small-world"])
@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_probabilities_lie_between_0_and_1(kind, probability):
    with pytest.raises(ValueError, match=r"^probability: got"):
        draw(kind, 10, degree=2, probability=probability)


def test_families_that_are_never_connected_are_errors_that_name_the_cause():
    with pytest.raises(ValueError, match=r"^probability: got 0.01, with which none of 100"):
        draw("erdos-renyi", 50, probability=0.01)
    with pytest.raises(ValueError, match=r"^degree: got 1, with which none of 100"):
        draw("regular", 10, degree=1)


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match=r"^kind: got 'wheel'"):
        draw("wheel", 10)


def test_a_graph_of_ones_own_is_numbered_in_the_order_of_its_nodes():
    own = nx.Graph([("c", "a"), ("a", "b")])
    assert list(own) == ["c", "a", "b"]
    plain = check_graph(own)
    assert list(plain) == [0, 1, 2]
    assert sorted(plain.edges) == [(0, 1), (1, 2)]


def test_links_of_a_node_with_itself_are_dropped():
    own = nx.path_graph(3)
    own.add_edge(1, 1)
    assert sorted(check_graph(own).edges) == [(0, 1), (1, 2)]


def test_graphs_that_cannot_serve_are_refused():
    with pytest.raises(ValueError, match=r"^graph: got a directed"):
        check_graph(nx.DiGraph([(0, 1), (1, 0)]))
    with pytest.raises(ValueError, match=r"^graph: .*multigraph"):
        check_graph(nx.MultiGraph([(0, 1), (0, 1)]))
    with pytest.raises(ValueError, match=r"^graph: got one without nodes"):
        check_graph(nx.Graph())
    apart = nx.Graph([("x", "y"), ("y", "z"), ("lone", "pair")])
    with pytest.raises(ValueError, match=r"^graph: got 2 components.*'lone', 'pair'"):
        check_graph(apart)
