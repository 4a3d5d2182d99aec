"""Networks with faults against loops over agents and links, what they count, and who runs on them."""

from dataclasses import replace

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import links_of, mix_with_losses
from random_data import seeded, weights
from random_data import task as draw_task

from fedsurf.algorithms import DFedAvgM, Start
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


class Watching:
    """Notes what was lost in every round."""

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
    def seen(self):
        return self.history[-1]


class Watched(Watching, Network):
    pass


class WatchedStar(Watching, StarNetwork):
    pass


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def random_graph(agents, seed):
    return make_graph(GraphConfig("erdos-renyi", probability=0.5), agents, seeded(seed))


def sparse_network(kind=Network, shift="metropolis"):
    network = kind(make_graph(GraphConfig("regular"), 100, seeded(0)), shift)
    assert network.operator(torch.float64).is_sparse
    return network


# Messages of several parts


@every_fault
@pytest.mark.parametrize("star", [False, True])
def test_the_parts_of_a_message_share_its_faults(fault, star):
    def make():
        inner = StarNetwork(7, 3, seeded(4)) if star else Network(random_graph(8, 3), "metropolis")
        return fault(inner)

    whole, parted = make(), make()
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


def test_a_part_of_the_wrong_shape_is_refused_and_not_counted():
    network = Network(nx.path_graph(3))
    with pytest.raises(ValueError, match=r"^values: got shape \[2, 2\], .* 3 nodes"):
        network.mix_parts(torch.zeros(3, 2), torch.zeros(2, 2))
    assert network.rounds == 0


# Stale agents


@pytest.mark.parametrize("shift", ["adjacency", "metropolis", "laplacian"])
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_the_neighbours_of_a_stale_agent_use_what_it_sent_before(shift, agents, seed, share):
    inner = Network(random_graph(agents, seed), shift)
    network = StaleNetwork(inner, round(share * agents), seeded(seed))
    stale = set(network.stale_agents.tolist())
    assert len(stale) == round(share * agents)
    rounds = [weights(seed + number, agents, 2) for number in range(4)]
    before = rounds[0]
    for values in rounds:
        sent = [(before if j in stale else values)[j].tolist() for j in range(agents)]
        expected = [
            [
                sum(
                    naive.shift_entry(inner.graph, i, j, shift)
                    * (values[i][place] if i == j else sent[j][place])
                    for j in range(agents)
                )
                for place in range(2)
            ]
            for i in range(agents)
        ]
        close(network.mix(values), torch.tensor(expected, dtype=torch.float64))
        before = values
    assert network.rounds == 4
    assert network.link_floats.tolist() == [8] * inner.links.shape[1]


def test_in_the_first_round_a_stale_agent_sends_what_it_has():
    network = StaleNetwork(Network(nx.cycle_graph(5)), 5, seeded(0))
    values = weights(0, 5, 2)
    close(network.mix(values), network.inner.mix(values))


def test_who_is_stale_is_drawn_anew_in_every_run_and_evenly():
    network = StaleNetwork(Network(nx.cycle_graph(10)), 3, seeded(0))
    counts = torch.zeros(10)
    for seed in range(600):
        network.reset(seeded(seed))
        assert len(set(network.stale_agents.tolist())) == 3
        counts[network.stale_agents] += 1
    assert (counts - 180).abs().max() < 4 * (600 * 0.3 * 0.7) ** 0.5


def test_messages_of_different_shapes_are_remembered_apart():
    inner = Network(nx.path_graph(3))
    network = StaleNetwork(inner, 3, seeded(0))
    small, large = weights(0, 3, 2), weights(1, 3, 4)
    close(network.mix(small), inner.mix(small))
    close(network.mix(large), inner.mix(large))  # nothing of this shape was sent before
    newer = weights(2, 3, 2)
    own = inner.operator(torch.float64).diagonal()[:, None]
    close(network.mix(newer), inner.mix(small) + own * (newer - small))
    close(network.mix(newer.float()).double(), inner.mix(newer.float()).double())


def test_a_stale_agent_uploads_what_it_would_have_sent_when_last_called():
    network = StaleNetwork(StarNetwork(6, 3, seeded(0)), 3, seeded(1))
    stale, last = set(network.stale_agents.tolist()), {}
    for number in range(12):
        called, values = network.call(), weights(number, 3, 2)
        received = network.upload(values, called)
        for place, agent in enumerate(called.tolist()):
            expected = last.get(agent, values[place]) if agent in stale else values[place]
            assert torch.equal(received[place], expected)
            last[agent] = values[place]
    assert network.floats == 12 * 3 * 2
    network.reset()
    called, values = torch.arange(6), weights(99, 6, 2)
    assert torch.equal(network.upload(values, called), values)


# Lost messages


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), loss=st.floats(0.01, 0.99))
def test_a_round_with_lost_messages_equals_a_loop_over_the_links(shift, rule, agents, seed, loss):
    inner = Watched(random_graph(agents, seed), shift)
    network = LossyNetwork(inner, loss, seeded(seed), rule)
    for number in range(3):
        values = weights(seed + number, agents, 2)
        mixed = network.mix(values)
        close(mixed, mix_with_losses(inner, values.tolist(), values.tolist(), inner.seen))


@pytest.mark.parametrize("rule", RULES)
def test_rows_keep_their_sums_whatever_is_lost(rule):
    network = LossyNetwork(sparse_network(), 0.8, seeded(0), rule)
    for _ in range(5):
        matrix = network.mix(torch.eye(100, dtype=torch.float64))
        close(matrix.sum(1), torch.ones(100, dtype=torch.float64))
        assert (matrix >= 0).all()


def test_links_lose_their_messages_independently_and_as_often_as_said():
    network = LossyNetwork(Watched(nx.cycle_graph(6)), 0.3, seeded(0))
    lost = []
    for _ in range(2000):
        network.mix(torch.zeros(6, 1))
        lost.append(network.inner.seen.renormalised.double())
    frequency = torch.stack(lost).mean(0)
    assert (frequency - 0.3).abs().max() < 4 * (0.21 / 2000) ** 0.5
    together = torch.corrcoef(torch.stack(lost).T) - torch.eye(12)
    assert together.abs().max() < 5 / 2000**0.5


def test_lost_messages_count_as_they_were_sent():
    network = LossyNetwork(Network(nx.cycle_graph(6)), 0.9, seeded(0))
    network.mix(torch.zeros(6, 5))
    network.mix(torch.zeros(6, 5), floats=2)
    assert network.link_floats.tolist() == [7] * 12
    assert (network.rounds, network.floats) == (2, 84)


# Agents that leave and return


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), leave=st.floats(0.05, 1))
def test_a_round_without_the_absent_equals_a_loop_over_the_links(shift, rule, agents, seed, leave):
    inner = Watched(random_graph(agents, seed), shift)
    network = LeavingNetwork(inner, leave, 0.5, seeded(seed), rule)
    counted = torch.zeros(inner.links.shape[1], dtype=torch.int64)
    for number in range(4):
        values = weights(seed + number, agents, 2)
        mixed = network.mix(values)
        away = network.away
        lost = away[inner.links].any(0)
        found = inner.seen.kept if rule == "kept-by-receiver" else inner.seen.renormalised
        assert torch.equal(found, lost)
        assert torch.equal(mixed[away], values[away])
        close(mixed, mix_with_losses(inner, values.tolist(), values.tolist(), inner.seen))
        counted += 2 * ~lost
    assert torch.equal(network.link_floats, counted)


def test_agents_leave_and_return_as_often_as_said():
    network = LeavingNetwork(Network(nx.cycle_graph(50)), 0.2, 0.6, seeded(0))
    history = [network.away.clone()]
    for _ in range(1000):
        network.mix(torch.zeros(50, 1))
        history.append(network.away.clone())
    assert not history[0].any()  # all are there at the beginning
    before, after = torch.stack(history[:-1]), torch.stack(history[1:])
    left, returned = after[~before].double(), (~after[before]).double()
    assert abs(float(left.mean()) - 0.2) < 4 * (0.16 / len(left)) ** 0.5
    assert abs(float(returned.mean()) - 0.6) < 4 * (0.24 / len(returned)) ** 0.5
    assert float(after[50:].double().mean()) == pytest.approx(0.25, abs=0.01)


def test_who_leaves_for_good_stands_still():
    network = LeavingNetwork(Network(nx.cycle_graph(4)), 1.0, 0.0, seeded(0))
    values = weights(0, 4, 3)
    for _ in range(3):
        assert torch.equal(network.mix(values), values)
    assert (network.rounds, network.floats) == (3, 0)


# All of them


@pytest.mark.parametrize("rule", RULES)
def test_faults_around_faults_equal_a_loop_over_the_links(rule):
    inner = Watched(random_graph(8, 3), "metropolis")
    stale = StaleNetwork(inner, 3, seeded(0))
    other = RULES[1 - RULES.index(rule)]
    leaving = LeavingNetwork(stale, 0.2, 0.5, seeded(1), other)
    network = LossyNetwork(leaving, 0.3, seeded(2), rule)
    before = weights(0, 8, 2)
    for number in range(6):
        values = weights(number, 8, 2)
        sent = values.clone()
        sent[stale.stale_agents] = before[stale.stale_agents]
        mixed = network.mix(values)
        assert inner.seen.kept is not None
        assert inner.seen.renormalised is not None
        close(mixed, mix_with_losses(inner, values.tolist(), sent.tolist(), inner.seen))
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


def test_the_same_fault_twice_draws_twice():
    network = LossyNetwork(
        LossyNetwork(Watched(nx.complete_graph(40)), 0.5, seeded(0)), 0.5, seeded(0)
    )
    network.reset(seeded(1))
    network.mix(torch.zeros(40, 1))
    share = float(network.inner.inner.seen.links.double().mean())
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 1560) ** 0.5
    both = StaleNetwork(StaleNetwork(Network(nx.path_graph(2)), 2, seeded(0)), 2, seeded(0))
    rounds = [weights(number, 2, 1) for number in range(3)]
    mixed = [both.mix(values) for values in rounds][-1]
    close(mixed, (rounds[2] + rounds[0].flip(0)) / 2)  # late by two rounds


@every_fault
def test_sparse_networks_are_disturbed_like_dense_ones(fault):
    sparse, dense = sparse_network(), sparse_network()
    dense._sparse, dense._operators = False, {}
    one, two = fault(sparse), fault(dense)
    for number in range(4):
        values = weights(number, 100, 6).reshape(100, 2, 3)
        ours, theirs = (values.clone().requires_grad_() for _ in range(2))
        left, right = one.mix(ours), two.mix(theirs)
        close(left, right)
        upstream = weights(9, 100, 6).reshape(100, 2, 3)
        close(
            *(torch.autograd.grad(*pair, upstream)[0] for pair in ((left, ours), (right, theirs)))
        )
    single = one.mix(values.float())
    assert (single.dtype, single.shape) == (torch.float32, (100, 2, 3))


@every_fault
@pytest.mark.parametrize("star", [False, True])
def test_derivatives_flow_through_rounds_with_faults(fault, star):
    network = fault(StarNetwork(4, 3, seeded(0)) if star else Network(nx.cycle_graph(5)))

    def rounds(values, factor):
        network.reset(seeded(5))
        for _ in range(3):  # what was sent before is a function of the inputs, too
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
@pytest.mark.parametrize("star", [False, True])
def test_resetting_with_a_generator_repeats_the_faults(fault, star):
    network = fault(StarNetwork(9, 3, seeded(0)) if star else Network(nx.cycle_graph(10)))
    values = [weights(number, 10, 2) for number in range(4)]

    def rounds(seed):
        network.reset(seeded(seed))
        assert (network.rounds, network.floats) == (0, 0)
        mixed = torch.stack([network.mix(one) for one in values])
        return mixed, network.link_floats.clone()

    first, again, others = rounds(1), rounds(1), [rounds(seed)[0] for seed in (2, 3)]
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not all(torch.equal(first[0], other) for other in others)
    random = seeded(7)
    network.reset(random)
    one = torch.stack([network.mix(value) for value in values])
    network.reset(random)  # goes on, and does not begin again
    assert not torch.equal(one, torch.stack([network.mix(value) for value in values]))


def without_faults(inner):
    """Wrap it in all faults, each with nothing to do."""
    network = LossyNetwork(StaleNetwork(inner, 0, seeded(0)), 0.0, seeded(0))
    return LeavingNetwork(network, 0.0, 0.5, seeded(0))


@pytest.mark.parametrize("shift", ["adjacency", "metropolis", "laplacian"])
def test_without_faults_every_bit_is_that_of_the_network_itself(shift):
    for plain, other in (
        [Network(random_graph(9, 1), shift) for _ in range(2)],
        [sparse_network(shift=shift) for _ in range(2)],
        [StarNetwork(9, 4, seeded(0), shift) for _ in range(2)],
    ):
        wrapped = without_faults(other)
        for generator in (seeded(3), None):
            plain.reset(generator)
            wrapped.reset(seeded(3) if generator else None)
            for number in range(3):
                values = weights(number, plain.nodes, 3, torch.float32)
                assert torch.equal(plain.mix(values), wrapped.mix(values))
        assert torch.equal(plain.link_floats, wrapped.link_floats)
        assert plain.rounds == wrapped.rounds == 3
        assert wrapped.reliable == plain.reliable


@pytest.mark.parametrize("name", ["dgd", "fedavg", "scaffold", "ridge"])
def test_without_faults_methods_run_to_the_same_bits(name):
    task, head = draw_task(0, agents=6), SoftmaxHead(3, 3)
    method = METHODS[name].make(head, Start(), {})
    if hasattr(method, "batch_size"):
        method = replace(method, batch_size=None)
    ends = [
        run(method, task, network, 4)
        for network in (StarNetwork(6, 2, seeded(0)), without_faults(StarNetwork(6, 2, seeded(0))))
    ]
    assert torch.equal(ends[0].loss, ends[1].loss)
    assert torch.equal(ends[0].floats, ends[1].floats)


@every_fault
def test_a_network_with_faults_shows_what_the_network_in_it_shows(fault):
    for inner in (Network(nx.cycle_graph(5), "metropolis"), StarNetwork(4, 3, seeded(0))):
        network = fault(fault(inner))
        for name in ("nodes", "agents", "server", "reporting", "shift", "graph", "links"):
            assert getattr(network, name) is getattr(inner, name), name
        values = weights(0, 5, 2)
        assert torch.equal(network.agent_rows(values), inner.agent_rows(values))
        assert torch.equal(network.operator(torch.float64), inner.operator(torch.float64))
        network.mix(values)
        assert (network.rounds, inner.rounds) == (1, 1)
        assert network.floats == inner.floats
        assert not network.reliable
        with pytest.raises(ValueError, match=r"^values: got shape .* 5 nodes"):
            network.mix(torch.zeros(4, 2))
        assert network.rounds == 1


# The star


@pytest.mark.parametrize(("shift", "rule"), RULED_SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000))
def test_a_round_of_a_star_with_faults_equals_a_loop_over_the_links(shift, rule, agents, seed):
    reporting = 1 + seed % agents
    inner = WatchedStar(agents, reporting, seeded(0), shift)
    stale = StaleNetwork(inner, agents // 2, seeded(0))
    network = LeavingNetwork(LossyNetwork(stale, 0.4, seeded(0), rule), 0.3, 0.5, seeded(0), rule)
    network.reset(seeded(seed))
    drawn, before = seeded(seed), weights(seed, agents + 1, 2)
    rows = 1 + stale.stale_agents
    counted = 0
    for number in range(3):
        values = weights(seed + number, agents + 1, 2)
        sent = values.clone()
        sent[rows] = before[rows]
        mixed = network.mix(values)
        reporters = (1 + torch.randperm(agents, generator=drawn)[:reporting]).tolist()
        close(mixed, mix_with_losses(inner, values.tolist(), sent.tolist(), inner.seen, reporters))
        away = network.away.tolist()
        assert not away[0]  # a server never leaves
        counted += 2 * sum(not away[agent] for agent in range(1, agents + 1))
        counted += 2 * sum(not away[agent] for agent in reporters)
        before = values
    assert network.floats == counted


def test_a_server_has_rounds_with_those_whose_messages_arrive():
    inner = WatchedStar(20, 15, seeded(0))
    network = LossyNetwork(LeavingNetwork(inner, 0.2, 0.5, seeded(0)), 0.3, seeded(0))
    network.reset(seeded(3))
    drawn, counts = seeded(3), dict.fromkeys(map(tuple, inner.links.T.tolist()), 0)
    fates = set()
    for _ in range(30):
        called = network.call()
        received = network.download(torch.arange(3.0), called)
        assert received.shape == (len(called), 3)
        values = weights(0, len(called), 2)
        assert torch.equal(network.upload(values, called), values)
        everybody = torch.randperm(20, generator=drawn)[:15].tolist()
        lost, away = links_of(inner, inner.seen.links), network.inner.away.tolist()
        expected = []
        for node in (1 + agent for agent in everybody):
            fate = (away[node], (0, node) in lost, (node, 0) in lost)
            fates.add(fate)
            counts[0, node] += 0 if fate[0] else 3
            counts[node, 0] += 0 if fate[0] or fate[1] else 2
            expected += [] if fate[1] or fate[2] else [node - 1]
        assert called.tolist() == expected
    assert len(fates) == 5  # here and both, either or neither lost; away
    assert list(counts.values()) == network.link_floats.tolist()
    assert network.rounds == 30


@pytest.mark.parametrize(
    "network",
    [
        LeavingNetwork(StarNetwork(5, 2, seeded(0)), 1.0, 0.0, seeded(0)),
        LossyNetwork(StarNetwork(1, 1, seeded(0)), 0.99, seeded(0)),
    ],
)
def test_a_server_waits_for_one_agent_at_least(network):
    network.reset(seeded(2))
    drawn = seeded(2)
    for _ in range(20):
        first = torch.randperm(network.agents, generator=drawn)[:1]
        called = network.call()
        assert torch.equal(called, first)
        network.download(torch.zeros(3), called)
        network.upload(torch.zeros(1, 3), called)
    assert network.floats == 20 * 2 * 3


def test_faults_do_not_change_whom_a_server_draws():
    plain, network = StarNetwork(20, 5, seeded(0)), FAULTS["stale"](StarNetwork(20, 5, seeded(0)))
    plain.reset(seeded(4)), network.reset(seeded(4))
    assert all(torch.equal(plain.call(), network.call()) for _ in range(5))


def test_in_turn_who_was_called_in_vain_is_not_called_again_before_the_others():
    stars = [StarNetwork(12, 5, seeded(0), calling="in-turn") for _ in range(2)]
    plain, inner = stars
    network = LossyNetwork(LeavingNetwork(inner, 0.2, 0.5, seeded(0)), 0.3, seeded(0))
    plain.reset(seeded(3)), network.reset(seeded(3))
    missed = 0
    for _ in range(20):
        everybody, called = plain.call().tolist(), network.call().tolist()
        assert set(called) <= set(everybody)
        missed += len(everybody) - len(called)
    assert missed > 20


@every_fault
def test_in_turn_resetting_repeats_the_rounds_over_every_fault(fault):
    network = fault(StarNetwork(9, 4, seeded(0), calling="in-turn"))

    def rounds(seed):
        network.reset(seeded(seed))
        return [(network.call().tolist(), network.mix(torch.eye(10)).tolist()) for _ in range(4)]

    first, again, other = rounds(1), rounds(1), rounds(2)
    assert first == again
    assert first != other


@every_fault
def test_only_a_server_calls_agents(fault):
    network = fault(Network(nx.path_graph(4)))
    nobody = torch.empty(0, dtype=torch.int64)
    for use in (
        network.call,
        lambda: network.download(torch.zeros(2), nobody),
        lambda: network.upload(torch.zeros(0, 2), nobody),
    ):
        with pytest.raises(ValueError, match=r"^network: got a Network without a server"):
            use()


# Methods


@every_fault
@pytest.mark.parametrize("star", [False, True])
def test_every_method_runs_over_every_fault(fault, star):
    task, head = draw_task(0, agents=6, train=12, dtype=torch.float32), SoftmaxHead(3, 3)
    inner = StarNetwork(6, 3, seeded(0)) if star else Network(random_graph(6, 2), "metropolis")
    network = fault(inner)
    for method in METHODS.values():
        if not method.fits(network):
            continue
        found = run(method.make(head, Start(), method.defaults), task, network, 8)
        assert found.loss.isfinite().all(), method.name
        assert float(found.pooled_accuracy.max()) > 0.4, method.name


@every_fault
def test_all_methods_meet_the_same_faults_in_the_same_rounds(fault):
    task, head = draw_task(0, agents=6, train=12, dtype=torch.float32), SoftmaxHead(3, 3)
    histories = []
    for name in ("dgd", "fedavg", "lda"):
        inner = WatchedStar(6, 3, seeded(0))
        network = fault(inner)
        run(METHODS[name].make(head, Start(), {}), task, network, 6, seed=2, path=(1,))
        found = [links_of(inner, lost.links) for lost in inner.history]
        assert len(found) == 6
        stale = [
            one.stale_agents.tolist() for one in layers(network) if hasattr(one, "stale_agents")
        ]
        histories.append((found, stale))
    assert histories[0] == histories[1] == histories[2]


def layers(network):
    """The faults around a network, from outside inwards."""
    while isinstance(network, FaultyNetwork):
        yield network
        network = network.inner


@every_fault
@pytest.mark.parametrize("star", [False, True])
def test_a_single_agent_meets_faults_unharmed(fault, star):
    inner = StarNetwork(1, None, seeded(0)) if star else Network(nx.empty_graph(1), "metropolis")
    network, values = fault(inner), weights(0, 2 if star else 1, 3)
    for _ in range(5):
        mixed = network.mix(values)
        assert mixed.isfinite().all()
        assert star or torch.equal(mixed, values)


def test_quantised_differences_are_refused_where_messages_fail():
    task, method = draw_task(0, agents=6), DFedAvgM(SoftmaxHead(3, 3), bits=8)
    network = LossyNetwork(Network(nx.cycle_graph(6)), 0.1, seeded(0))
    with pytest.raises(ValueError, match=r"^bits: got 8 on a network with faults"):
        method.init(task, network, seeded(0))
    method.init(task, without_faults(Network(nx.cycle_graph(6))), seeded(0))


# Configuration


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: StaleNetwork(n, 5, seeded(0)), r"^stale: got 5, .* between 0 and 4"),
        (lambda n: StaleNetwork(n, -1, seeded(0)), r"^stale: got -1, .* between 0 and 4"),
        (lambda n: LossyNetwork(n, 1.0, seeded(0)), r"^loss: got 1\.0, .* below 1"),
        (lambda n: LossyNetwork(n, -0.1, seeded(0)), r"^loss: got -0\.1, .* at least 0"),
        (lambda n: LossyNetwork(n, float("nan"), seeded(0)), r"^loss: got nan"),
        (
            lambda n: LossyNetwork(n, 0.1, seeded(0), "x"),
            r"^weights: got 'x', .* 'renormalised' or",
        ),
        (lambda n: LeavingNetwork(n, 1.1, 0.5, seeded(0)), r"^leave: got 1\.1"),
        (lambda n: LeavingNetwork(n, 0.1, -0.5, seeded(0)), r"^comeback: got -0\.5"),
        (lambda n: LeavingNetwork(n, 0.1, 0.5, seeded(0), "x"), r"^weights: got 'x'"),
    ],
)
def test_faults_that_cannot_be_are_refused(make, message):
    for inner in (Network(nx.path_graph(4)), StarNetwork(4, 2, seeded(0))):
        with pytest.raises(ValueError, match=message):
            make(inner)


def test_rows_that_are_no_averages_cannot_be_renormalised():
    inner = Network(nx.path_graph(4), "laplacian")
    for make in (
        lambda: LossyNetwork(inner, 0.1, seeded(0)),
        lambda: LeavingNetwork(inner, 0.1, 0.5, seeded(0)),
    ):
        with pytest.raises(ValueError, match=r"^weights: got 'renormalised' .* 'kept-by-receiver'"):
            make()


def test_a_configuration_becomes_its_faults():
    plain = make_network(NetworkConfig(), 10, seeded(0))
    assert type(plain) is Network
    faults = FaultConfig(stale=2, loss=0.1, leave=0.2, comeback=0.7, weights="kept-by-receiver")
    leaving = make_network(NetworkConfig(faults=faults), 10, seeded(0))
    assert isinstance(leaving, LeavingNetwork)
    assert (leaving.leave, leaving.comeback) == (0.2, 0.7)
    lossy = leaving.inner
    assert isinstance(lossy, LossyNetwork)
    assert (lossy.loss, lossy.weights, leaving.weights) == (0.1, *["kept-by-receiver"] * 2)
    assert isinstance(lossy.inner, StaleNetwork)
    assert lossy.inner.stale == 2
    assert torch.equal(leaving.links, plain.links)  # the same graph as without faults
    star = make_network(
        NetworkConfig(GraphConfig("star"), faults=FaultConfig(loss=0.1)), 5, seeded(0)
    )
    assert (type(star), type(star.inner), star.server) == (LossyNetwork, StarNetwork, True)
    for bad in ({"stale": 11}, {"loss": 2.0}, {"leave": -1.0}, {"comeback": 2.0}, {"weights": "x"}):
        with pytest.raises(ValueError, match=r"got"):
            make_network(NetworkConfig(faults=FaultConfig(**bad)), 10, seeded(0))
