"""Networks with faults against loops over agents and links, their counts, and methods on them."""

import json
from dataclasses import replace

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import links_of, mix_with_losses
from random_data import seeded, weights
from random_data import task as draw_task
from running import begin
from running import calls as drawn

from fedsurf.algorithms import DFedAvgM, Start
from fedsurf.common.configuration import from_dict, to_dict
from fedsurf.evaluation.methods import METHODS
from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import (
    FaultConfig,
    FaultyNetwork,
    GraphConfig,
    LeavingNetwork,
    LossyNetwork,
    Network,
    NetworkConfig,
    StaleNetwork,
    StarNetwork,
    make_graph,
    make_network,
)
from fedsurf.network.network import Called
from fedsurf.network.operators import NOTHING_LOST

RULES = ["renormalised", "kept-by-receiver"]
RULED_SHIFTS = [
    ("adjacency", "renormalised"),
    ("adjacency", "kept-by-receiver"),
    ("metropolis", "renormalised"),
    ("metropolis", "kept-by-receiver"),
    ("laplacian", "kept-by-receiver"),
]
FAULTS = {
    "stale": lambda inner: StaleNetwork(inner, min(2, inner.agents), seeded(1)),
    "lossy": lambda inner: LossyNetwork(inner, 0.3, seeded(1)),
    "lossy, kept": lambda inner: LossyNetwork(inner, 0.3, seeded(1), "kept-by-receiver"),
    "leaving": lambda inner: LeavingNetwork(inner, 0.3, 0.4, seeded(1)),
    "all": lambda inner: LeavingNetwork(
        LossyNetwork(StaleNetwork(inner, 1, seeded(1)), 0.2, seeded(1)), 0.2, 0.5, seeded(1)
    ),
}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
on_graphs_and_stars = pytest.mark.parametrize("star", [False, True])
HEAD = SoftmaxHead(3, 3)


class Recorded:
    """Keeps the lost messages of every round in `history`."""

    def reset(self, generator=None):
        super().reset(generator)
        self.history = []

    def exchange(self, values, sent, lost, floats):
        self.history.append(lost)
        return super().exchange(values, sent, lost, floats)

    def call(self, lost=NOTHING_LOST):
        self.history.append(lost)
        return super().call(lost)

    @property
    def lost(self):
        return self.history[-1]


class RecordedNetwork(Recorded, Network):
    pass


class RecordedStar(Recorded, StarNetwork):
    pass


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def random_graph(agents, seed):
    return make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))


def sparse_network(shift="metropolis"):
    network = Network(make_graph(GraphConfig("regular"), 100, seeded(0)), shift)
    assert network.operator(torch.float64).is_sparse
    return network


@every_fault
@on_graphs_and_stars
def test_the_parts_of_a_message_share_its_faults(fault, star):
    whole, parted = (
        fault(StarNetwork(7, 3, seeded(4)) if star else Network(random_graph(8, 3), "metropolis"))
        for _ in range(2)
    )
    for network in (whole, parted):
        network.reset(seeded(5))
    for number in range(6):
        values = weights(number, 8, 6)
        parts = [values[:, :2], values[:, 2:4], values[:, 4:].reshape(8, 2, 1)]
        found = parted.mix_parts(*parts)
        assert [part.shape for part in found] == [part.shape for part in parts]
        close(torch.cat([part.flatten(1) for part in found], 1), whole.mix(values))
    assert parted.rounds == whole.rounds == 6
    assert torch.equal(parted.link_floats, whole.link_floats)


# Stale agents


@pytest.mark.parametrize("shift", ["adjacency", "metropolis", "laplacian"])
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_the_neighbours_of_a_stale_agent_use_its_last_message(shift, agents, seed, share):
    inner = RecordedNetwork(random_graph(agents, seed), shift)
    network = StaleNetwork(inner, round(share * agents), seeded(seed))
    stale = network.stale_agents
    assert len(set(stale.tolist())) == round(share * agents)
    before = weights(seed, agents, 2)
    for number in range(4):
        values = weights(seed + number, agents, 2)
        sent = values.clone()
        sent[stale] = before[stale]
        expected = mix_with_losses(inner, values.tolist(), sent.tolist(), NOTHING_LOST)
        close(network.mix(values), expected)
        before = values
    assert network.rounds == 4
    assert network.link_floats.tolist() == [8] * inner.links.shape[1]


def test_stale_agents_are_drawn_uniformly_in_every_run():
    network = StaleNetwork(Network(nx.cycle_graph(10)), 3, seeded(0))
    counts = torch.zeros(10)
    for seed in range(600):
        network.reset(seeded(seed))
        assert len(set(network.stale_agents.tolist())) == 3
        counts[network.stale_agents] += 1
    assert (counts - 180).abs().max() < 4 * (600 * 0.3 * 0.7) ** 0.5


def test_a_late_message_is_the_last_one_of_the_same_shape_and_type():
    inner = Network(nx.path_graph(3))
    network = StaleNetwork(inner, 3, seeded(0))
    small, large, newer = weights(0, 3, 2), weights(1, 3, 4), weights(2, 3, 2)
    close(network.mix(small), inner.mix(small))
    close(network.mix(large), inner.mix(large))
    own = inner.operator(torch.float64).diagonal()[:, None]
    close(network.mix(newer), inner.mix(small) + own * (newer - small))
    close(network.mix(newer.float()).double(), inner.mix(newer.float()).double())


def test_a_stale_agent_uploads_its_result_of_the_last_call():
    network = StaleNetwork(StarNetwork(6, 3, seeded(0)), 3, seeded(1))
    stale, last = set(network.stale_agents.tolist()), {}
    for number in range(12):
        called, values = network.call(), weights(number, 3, 2)
        received = network.upload(values, called)
        for place, agent in enumerate(called.agents.tolist()):
            expected = last.get(agent, values[place]) if agent in stale else values[place]
            assert torch.equal(received[place], expected)
            last[agent] = values[place]
    assert network.floats == 12 * 3 * 2
    network.reset()
    called, values = Called.of(torch.arange(6), torch.arange(6)), weights(99, 6, 2)
    assert torch.equal(network.upload(values, called), values)


# Lost messages


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), loss=st.floats(0.01, 0.99))
def test_a_round_with_lost_messages_equals_a_loop_over_links(shift, rule, agents, seed, loss):
    inner = RecordedNetwork(random_graph(agents, seed), shift)
    network = LossyNetwork(inner, loss, seeded(seed), rule)
    for number in range(3):
        values = weights(seed + number, agents, 2)
        mixed = network.mix(values)
        close(mixed, mix_with_losses(inner, values.tolist(), values.tolist(), inner.lost))


def test_links_lose_messages_independently_and_with_the_given_probability():
    network = LossyNetwork(RecordedNetwork(nx.cycle_graph(6)), 0.3, seeded(0))
    for _ in range(2000):
        network.mix(torch.zeros(6, 1))
    lost = torch.stack([lost.renormalised.double() for lost in network.inner.history])
    assert (lost.mean(0) - 0.3).abs().max() < 4 * (0.21 / 2000) ** 0.5
    assert (torch.corrcoef(lost.T) - torch.eye(12)).abs().max() < 5 / 2000**0.5


def test_lost_messages_count_because_they_were_sent():
    network = LossyNetwork(Network(nx.cycle_graph(6)), 0.9, seeded(0))
    network.mix(torch.zeros(6, 5))
    network.mix(torch.zeros(6, 5), floats=2)
    assert network.link_floats.tolist() == [7] * 12
    assert (network.rounds, network.floats) == (2, 84)


# Agents that leave and return


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), leave=st.floats(0.05, 1))
def test_a_round_with_absent_agents_equals_a_loop_over_links(shift, rule, agents, seed, leave):
    inner = RecordedNetwork(random_graph(agents, seed), shift)
    network = LeavingNetwork(inner, leave, 0.5, seeded(seed), rule)
    counted = torch.zeros(inner.links.shape[1], dtype=torch.int64)
    for number in range(4):
        values = weights(seed + number, agents, 2)
        mixed = network.mix(values)
        lost = network.away[inner.links].any(0)
        assert torch.equal(inner.lost.links, lost)
        assert torch.equal(mixed[network.away], values[network.away])
        close(mixed, mix_with_losses(inner, values.tolist(), values.tolist(), inner.lost))
        counted += 2 * ~lost
    assert torch.equal(network.link_floats, counted)


def test_agents_leave_and_return_with_the_given_probabilities():
    network = LeavingNetwork(Network(nx.cycle_graph(50)), 0.2, 0.6, seeded(0))
    history = [network.away.clone()]
    for _ in range(1000):
        network.mix(torch.zeros(50, 1))
        history.append(network.away.clone())
    assert not history[0].any()
    before, after = torch.stack(history[:-1]), torch.stack(history[1:])
    left, returned = after[~before].double(), (~after[before]).double()
    assert abs(float(left.mean()) - 0.2) < 4 * (0.16 / len(left)) ** 0.5
    assert abs(float(returned.mean()) - 0.6) < 4 * (0.24 / len(returned)) ** 0.5
    assert float(after[50:].double().mean()) == pytest.approx(0.25, abs=0.01)


# All of them


@pytest.mark.parametrize("rule", RULES)
def test_faults_around_faults_equal_a_loop_over_links(rule):
    inner = RecordedNetwork(random_graph(8, 3), "metropolis")
    stale = StaleNetwork(inner, 3, seeded(0))
    other = RULES[1 - RULES.index(rule)]
    network = LossyNetwork(LeavingNetwork(stale, 0.2, 0.5, seeded(1), other), 0.3, seeded(2), rule)
    before = weights(0, 8, 2)
    for number in range(6):
        values = weights(number, 8, 2)
        sent = values.clone()
        sent[stale.stale_agents] = before[stale.stale_agents]
        mixed = network.mix(values)
        assert inner.lost.kept is not None
        assert inner.lost.renormalised is not None
        close(mixed, mix_with_losses(inner, values.tolist(), sent.tolist(), inner.lost))
        before = values
    assert network.rounds == 6


def test_the_order_of_faults_does_not_matter():
    graph = random_graph(8, 4)
    faults = [
        lambda inner: StaleNetwork(inner, 3, seeded(0)),
        lambda inner: LossyNetwork(inner, 0.3, seeded(0)),
        lambda inner: LeavingNetwork(inner, 0.3, 0.5, seeded(0), "kept-by-receiver"),
    ]
    one = faults[0](faults[1](faults[2](Network(graph))))
    two = faults[2](faults[1](faults[0](Network(graph))))
    for number in range(4):
        one.reset(seeded(number)), two.reset(seeded(number))
        for step in range(3):
            values = weights(10 * number + step, 8, 2)
            assert torch.equal(one.mix(values), two.mix(values))


def test_two_faults_of_one_kind_draw_independently():
    complete = RecordedNetwork(nx.complete_graph(40))
    network = LossyNetwork(LossyNetwork(complete, 0.5, seeded(0)), 0.5, seeded(0))
    network.reset(seeded(1))
    network.mix(torch.zeros(40, 1))
    share = float(complete.lost.links.double().mean())
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 1560) ** 0.5
    both = StaleNetwork(StaleNetwork(Network(nx.path_graph(2)), 2, seeded(0)), 2, seeded(0))
    rounds = [weights(number, 2, 1) for number in range(3)]
    mixed = [both.mix(values) for values in rounds][-1]
    close(mixed, (rounds[2] + rounds[0].flip(0)) / 2)  # late by two rounds


@every_fault
def test_sparse_networks_have_the_faults_of_dense_ones(fault):
    sparse, dense = sparse_network(), sparse_network()
    dense._sparse, dense._operators = False, {}
    one, two = fault(sparse), fault(dense)
    for number in range(4):
        values = weights(number, 100, 6).reshape(100, 2, 3)
        ours, theirs = (values.clone().requires_grad_() for _ in range(2))
        left, right = one.mix(ours), two.mix(theirs)
        close(left, right)
        upstream = weights(9, 100, 6).reshape(100, 2, 3)
        pairs = ((left, ours), (right, theirs))
        close(*(torch.autograd.grad(*pair, upstream)[0] for pair in pairs))
    single = one.mix(values.float())
    assert (single.dtype, single.shape) == (torch.float32, (100, 2, 3))


@every_fault
@on_graphs_and_stars
def test_derivatives_flow_through_rounds_with_faults(fault, star):
    network = fault(StarNetwork(4, 3, seeded(0)) if star else Network(nx.cycle_graph(5)))

    def rounds(values, factor):
        network.reset(seeded(5))
        for _ in range(3):  # late messages are functions of the inputs, too
            values = network.mix(values * factor)
        return values

    inputs = weights(0, 5, 2).requires_grad_(), torch.tensor(0.9).double().requires_grad_()
    assert torch.autograd.gradcheck(rounds, inputs)


def test_derivatives_flow_through_late_uploads():
    network = StaleNetwork(StarNetwork(3, 3, seeded(0)), 2, seeded(0))

    def rounds(values):
        network.reset(seeded(5))
        return sum(
            (number + 1) * network.upload(values * number, network.call()) for number in range(3)
        )

    assert torch.autograd.gradcheck(rounds, weights(0, 3, 2).requires_grad_())


@every_fault
@pytest.mark.parametrize("calling", [None, "random", "in-turn"])
def test_a_reset_with_a_generator_repeats_the_faults(fault, calling):
    star = calling is not None
    network = fault(
        StarNetwork(9, 3, seeded(0), calling=calling) if star else Network(nx.cycle_graph(10))
    )
    values = [weights(number, 10, 2) for number in range(4)]

    def rounds(generator):
        network.reset(generator)
        assert (network.rounds, network.floats) == (0, 0)
        called = [network.call().agents.tolist() for _ in range(4 if star else 0)]
        mixed = torch.stack([network.mix(one) for one in values]).tolist()
        return mixed, called, network.link_floats.tolist()

    first, again = rounds(seeded(1)), rounds(seeded(1))
    assert first == again
    assert any(rounds(seeded(seed))[0] != first[0] for seed in (2, 3))
    assert rounds(None) == rounds(None)  # without a generator, the last run's seed
    generator = seeded(7)
    assert rounds(generator)[0] != rounds(generator)[0]  # takes another number of it


@every_fault
@pytest.mark.parametrize("calling", [None, "random", "in-turn"])
def test_a_network_with_faults_goes_on_from_its_state_with_the_same_rounds(fault, calling):
    first, again = (
        fault(
            Network(nx.cycle_graph(8))
            if calling is None
            else StarNetwork(7, 3, seeded(0), calling=calling)
        )
        for _ in range(2)
    )
    first.reset(seeded(3)), again.reset(seeded(3))

    def one_round(network, number):
        mixed = network.mix_parts(weights(number, 8, 2), weights(number + 100, 8, 3))
        if calling is None:
            return torch.cat(mixed, 1).tolist()
        called = network.call()
        model = network.download(weights(number, 1, 2), called)
        received = network.upload(weights(number, len(called), 2), called)
        return torch.cat(mixed, 1).tolist(), called.agents.tolist(), (model + received).tolist()

    for number in range(5):
        one_round(first, number)
    stored = {name: value.clone() for name, value in first.state().items()}
    expected = [one_round(first, number) for number in range(5, 12)]
    for number in range(3):  # what it did before does not matter
        one_round(again, 50 + number)
    again.restore(stored)
    assert [one_round(again, number) for number in range(5, 12)] == expected
    assert again.rounds == first.rounds
    assert torch.equal(again.link_floats, first.link_floats)


@every_fault
def test_faults_of_a_round_do_not_depend_on_what_is_sent_or_on_who_asks(fault):
    """Losses are functions of the run's seed, the round and the link; so are calls of the round."""
    histories = []
    for width in (1, 3):
        inner = RecordedStar(9, 4, seeded(0))
        network, called = fault(inner), []
        network.reset(seeded(2))
        for number in range(6):
            if width == 1 or number % 2:
                called.append(set(network.call().agents.tolist()))
            else:
                network.mix(weights(number, 10, width))
                called.append(None)
        lost = [links_of(inner, one.links) for one in inner.history]
        histories.append((lost, called))
    assert histories[0][0] == histories[1][0]
    both = zip(histories[0][1], histories[1][1], strict=True)
    assert all(one == two for one, two in both if two is not None)


@every_fault
def test_a_network_with_faults_shares_the_attributes_of_its_inner_network(fault):
    for inner in (Network(nx.cycle_graph(5), "metropolis"), StarNetwork(4, 3, seeded(0))):
        network = fault(fault(inner))
        for name in (
            "nodes",
            "agents",
            "ids",
            "server",
            "servers",
            "shift",
            "graph",
            "links",
        ):
            assert getattr(network, name) is getattr(inner, name), name
        values = weights(0, 5, 2)
        assert torch.equal(network.agent_rows(values), inner.agent_rows(values))
        assert torch.equal(network.operator(torch.float64), inner.operator(torch.float64))
        network.mix(values)
        assert (network.rounds, inner.rounds) == (1, 1)
        assert network.floats == inner.floats
        assert network.facts == replace(inner.facts, reliable=False)
        assert torch.equal(network.total(values), values.sum(0))
        assert network.collect(values) is values
        assert torch.equal(network.publish(values[:1]), inner.publish(values[:1]))
        with pytest.raises(ValueError, match=r"^values: got shape .* 5 rows"):
            network.mix(torch.zeros(4, 2))
        assert network.rounds == 1


# The star


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000))
def test_a_round_of_a_star_with_faults_equals_a_loop_over_links(shift, rule, agents, seed):
    reporting = 1 + seed % agents
    inner = RecordedStar(agents, reporting, seeded(0), shift)
    stale = StaleNetwork(inner, agents // 2, seeded(0))
    network = LeavingNetwork(LossyNetwork(stale, 0.4, seeded(0), rule), 0.3, 0.5, seeded(0), rule)
    network.reset(seeded(seed))
    before, counted = weights(seed, agents + 1, 2), 0
    rows = 1 + stale.stale_agents
    for number, heard in enumerate(drawn(agents, reporting, seed, 3)):
        values = weights(seed + number, agents + 1, 2)
        sent = values.clone()
        sent[rows] = before[rows]
        mixed = network.mix(values)
        reporters = [1 + agent for agent in heard]
        lost = inner.lost
        close(mixed, mix_with_losses(inner, values.tolist(), sent.tolist(), lost, reporters))
        away = network.away.tolist()
        assert not away[0]  # a server never leaves
        counted += 2 * sum(not away[agent] for agent in range(1, agents + 1))
        counted += 2 * sum(not away[agent] for agent in reporters)
        before = values
    assert network.floats == counted


def test_a_server_works_with_the_agents_whose_messages_arrive():
    inner = RecordedStar(20, 15, seeded(0))
    network = LossyNetwork(LeavingNetwork(inner, 0.2, 0.5, seeded(0)), 0.3, seeded(0))
    network.reset(seeded(3))
    counts = dict.fromkeys(map(tuple, inner.links.T.tolist()), 0)
    fates = set()
    for agents in drawn(20, 15, 3, 30):
        called = network.call()
        assert network.download(torch.zeros(1, 3), called).shape == (len(called), 3)
        values = weights(0, len(called), 2)
        assert torch.equal(network.upload(values, called), values)
        lost, away = links_of(inner, inner.lost.links), network.inner.away.tolist()
        expected = []
        for node in (1 + agent for agent in agents):
            fate = (away[node], (0, node) in lost, (node, 0) in lost)
            fates.add(fate)
            counts[0, node] += 0 if fate[0] else 3
            counts[node, 0] += 0 if fate[0] or fate[1] else 2
            expected += [] if fate[1] or fate[2] else [node - 1]
        assert called.agents.tolist() == called.here.tolist() == expected
    assert len(fates) == 5  # away, or present with neither, either or both messages lost
    assert list(counts.values()) == network.link_floats.tolist()
    assert network.rounds == 30


@pytest.mark.parametrize(
    "network",
    [
        LeavingNetwork(StarNetwork(5, 2, seeded(0)), 1.0, 0.0, seeded(0)),
        LossyNetwork(StarNetwork(1, 1, seeded(0)), 0.99, seeded(0)),
    ],
)
def test_a_server_always_works_with_at_least_one_agent(network):
    network.reset(seeded(2))
    inner = network.inner
    for agents in drawn(inner.agents, inner.reporting, 2, 20):
        called = network.call()
        assert len(called) == 1
        assert called.agents.tolist()[0] in agents
        network.download(torch.zeros(1, 3), called)
        network.upload(torch.zeros(1, 3), called)
    assert network.floats == 20 * 2 * 3


def test_the_turn_of_an_agent_whose_messages_are_lost_is_over():
    plain, inner = (StarNetwork(12, 5, seeded(0), calling="in-turn") for _ in range(2))
    network = LossyNetwork(LeavingNetwork(inner, 0.2, 0.5, seeded(0)), 0.3, seeded(0))
    plain.reset(seeded(3)), network.reset(seeded(3))
    missed = 0
    for _ in range(20):
        planned, called = plain.call().agents.tolist(), network.call().agents.tolist()
        assert set(called) <= set(planned)
        missed += len(planned) - len(called)
    assert missed > 20


@every_fault
def test_a_network_without_a_server_calls_no_agents(fault):
    network = fault(Network(nx.path_graph(4)))
    none = Called.of(torch.empty(0, dtype=torch.int64), network.ids)
    for use in (
        network.call,
        lambda: network.download(torch.zeros(1, 2), none),
        lambda: network.upload(torch.zeros(0, 2), none),
    ):
        with pytest.raises(ValueError, match=r"^network: got a Network without a server"):
            use()


# Methods


@every_fault
@on_graphs_and_stars
def test_every_method_runs_and_learns_with_every_fault(fault, star):
    task = draw_task(0, agents=6, train=12, dtype=torch.float32)
    network = fault(
        StarNetwork(6, 3, seeded(0)) if star else Network(random_graph(6, 2), "metropolis")
    )
    for method in METHODS.values():
        if method.fits(network):
            found = run(method.make(HEAD, Start(0.0, 0.1), method.defaults), task, network, 8)
            assert found.loss.isfinite().all(), method.name
            assert float(found.pooled_accuracy.max()) > 0.4, method.name


@every_fault
def test_all_methods_meet_the_same_faults_in_the_same_rounds(fault):
    task = draw_task(0, agents=6, train=12, dtype=torch.float32)
    histories = []
    for name in ("dgd", "fedavg", "lda"):
        inner = RecordedStar(6, 3, seeded(0))
        network = fault(inner)
        run(METHODS[name].make(HEAD, Start(), {}), task, network, 6, seed=2, path=(1,))
        found = [links_of(inner, lost.links) for lost in inner.history]
        assert len(found) == 6
        while isinstance(network, FaultyNetwork):
            found.append(getattr(network, "stale_agents", torch.empty(0)).tolist())
            network = network.inner
        histories.append(found)
    assert histories[0] == histories[1] == histories[2]


def test_quantised_differences_raise_on_networks_with_faults():
    task, method = draw_task(0, agents=6), DFedAvgM(HEAD, bits=8)
    network = LossyNetwork(Network(nx.cycle_graph(6)), 0.1, seeded(0))
    with pytest.raises(ValueError, match=r"^bits: got 8 on a network with faults"):
        begin(method, task, network)
    begin(method, task, network.inner)


# Configuration


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: StaleNetwork(n, 5, seeded(0)), r"stale: got 5, .* between 0 and 4"),
        (lambda n: StaleNetwork(n, -1, seeded(0)), r"stale: got -1, .* between 0 and 4"),
        (lambda n: LossyNetwork(n, 1.0, seeded(0)), r"loss: got 1\.0, .* below 1"),
        (lambda n: LossyNetwork(n, float("nan"), seeded(0)), r"loss: got nan"),
        (lambda n: LossyNetwork(n, 0.1, seeded(0), "x"), r"weights: got 'x', .* 'renormalised'"),
        (lambda n: LeavingNetwork(n, 1.1, 0.5, seeded(0)), r"leave: got 1\.1"),
        (lambda n: LeavingNetwork(n, 0.1, -0.5, seeded(0)), r"comeback: got -0\.5"),
        (lambda n: LeavingNetwork(n, 0.1, 0.5, seeded(0), "x"), r"weights: got 'x'"),
        (
            lambda n: LossyNetwork(Network(n.graph, "laplacian"), 0.1, seeded(0)),
            r"weights: got 'renormalised' .* 'kept-by-receiver'",
        ),
    ],
)
def test_invalid_faults_raise(make, message):
    for inner in (Network(nx.path_graph(4)), StarNetwork(4, 2, seeded(0))):
        with pytest.raises(ValueError, match=f"^{message}"):
            make(inner)


def test_a_configuration_gives_its_faults():
    plain = make_network(NetworkConfig(), 10, seeded(0))
    assert type(plain) is Network
    faults = FaultConfig(stale=2, loss=0.1, leave=0.2, comeback=0.7, weights="kept-by-receiver")
    stored = json.loads(json.dumps(to_dict(NetworkConfig(faults=faults))))
    leaving = make_network(from_dict(NetworkConfig, stored), 10, seeded(0))
    assert isinstance(leaving, LeavingNetwork)
    assert (leaving.leave, leaving.comeback) == (0.2, 0.7)
    lossy = leaving.inner
    assert isinstance(lossy, LossyNetwork)
    assert (lossy.loss, lossy.weights, leaving.weights) == (0.1, *["kept-by-receiver"] * 2)
    assert isinstance(lossy.inner, StaleNetwork)
    assert lossy.inner.stale == 2
    assert torch.equal(leaving.links, plain.links)  # the same graph as without faults
    star = NetworkConfig(GraphConfig("star"), faults=FaultConfig(loss=0.1))
    lossy = make_network(star, 5, seeded(0))
    assert (type(lossy), type(lossy.inner), lossy.server) == (LossyNetwork, StarNetwork, True)
    for bad in ({"stale": 11}, {"loss": 2.0}, {"leave": -1.0}, {"comeback": 2.0}, {"weights": "x"}):
        with pytest.raises(ValueError, match=r"got"):
            make_network(NetworkConfig(faults=FaultConfig(**bad)), 10, seeded(0))


def test_late_messages_from_a_file_go_to_the_device_of_the_next_round():
    ring = StaleNetwork(Network(nx.cycle_graph(4), "metropolis"), 2, seeded(0))
    star = StaleNetwork(StarNetwork(4, None, seeded(0)), 2, seeded(0))
    elsewhere = torch.ones(4, 3, device="meta")
    ring.mix(torch.ones(4, 3))
    ring.restore(ring.state())
    assert ring.mix(elsewhere).is_meta
    star.upload(torch.ones(4, 3), star.call())
    star.restore(star.state())
    assert star.upload(elsewhere, star.call()).is_meta
