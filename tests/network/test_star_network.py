"""The star: a server that hears a sample of the agents, at random or in turn."""

from dataclasses import replace
from itertools import chain

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded, weights

from fedsurf.common.randomness import next_seed
from fedsurf.common.streams import SHARED, Streams
from fedsurf.network import StaleNetwork, StarNetwork
from fedsurf.network.network import Called

SHIFTS = ["adjacency", "metropolis", "laplacian"]


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shift", SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), everyone=st.booleans())
def test_a_round_in_which_all_agents_report_is_a_product_with_s(shift, agents, seed, everyone):
    network = StarNetwork(agents, agents if everyone else None, seeded(seed), shift)
    values = weights(seed, agents + 1, 3)
    expected = naive.mix(nx.star_graph(agents), values.tolist(), shift)
    close(network.mix(values), torch.tensor(expected, dtype=torch.float64))


def rows_of_s(network, seed):
    """Mix the identity: return S of that round, and the agents' nodes that report."""
    network.reset(seeded(seed))
    mixed = network.mix(torch.eye(network.nodes, dtype=torch.float64))
    return mixed, mixed[0, 1:].nonzero().flatten() + 1


@pytest.mark.parametrize("shift", SHIFTS)
def test_ten_reporting_agents_have_the_weight_of_a_hundred(shift):
    network = StarNetwork(100, 10, seeded(0), shift)
    full = network.operator(torch.float64).to_dense()
    mixed, reporters = rows_of_s(network, 1)
    assert len(reporters) == 10
    close(mixed[0].sum(), full[0].sum())
    close(mixed[0, 0], full[0, 0])
    close(mixed[0, reporters], full[0, 1] * 10 * torch.ones(10).double())
    close(mixed[1:], full[1:])  # the agents' own rows are the same


def test_the_server_hears_all_agents_equally_in_expectation():
    network, values = StarNetwork(20, 4, seeded(0)), weights(4, 21, 2)
    exact = StarNetwork(20, None, seeded(0)).mix(values)[0]
    rounds = torch.stack([network.mix(values)[0] for _ in range(4000)])
    assert rounds.std(0).min() > 0.05
    assert ((rounds.mean(0) - exact) / (rounds.std(0) / 4000**0.5)).abs().max() < 4
    up = network.link_floats[network.links[1] == 0].double() / 2
    assert up.sum() == 16000
    assert (up - 800).abs().max() < 4 * (4000 * 0.2 * 0.8) ** 0.5


def used_links(network):
    """Return the floats of every link on which there were any."""
    links = map(tuple, network.links.T.tolist())
    counted = zip(links, network.link_floats.tolist(), strict=True)
    return {link: floats for link, floats in counted if floats}


def test_floats_are_counted_on_used_links_only():
    network = StarNetwork(100, 10, seeded(0))
    _, reporters = rows_of_s(network, 5)
    network.reset(seeded(5))
    network.mix(torch.zeros(101, 7))
    down = {(0, agent): 7 for agent in range(1, 101)}
    assert used_links(network) == down | {(agent, 0): 7 for agent in reporters.tolist()}
    assert (network.rounds, network.floats) == (1, 7 * 110)


def test_derivatives_flow_through_a_round():
    network, values = StarNetwork(5, 2, seeded(0)), weights(7, 6, 2).requires_grad_()

    def one_round(inputs):
        network.reset(seeded(1))
        return network.mix(inputs)

    assert torch.autograd.gradcheck(one_round, values)


def test_trailing_dimensions_and_single_precision_are_kept():
    network = StarNetwork(4, None, seeded(0))
    values = torch.randn(5, 2, 3, generator=seeded(1))
    mixed = network.mix(values)
    assert (mixed.shape, mixed.dtype) == ((5, 2, 3), torch.float32)
    torch.testing.assert_close(mixed.flatten(1), network.mix(values.flatten(1)))


def test_called_agents_download_and_upload():
    network = StarNetwork(20, 4, seeded(0))
    called = network.call()
    assert (network.rounds, network.floats) == (1, 0)
    assert len(called) == len(set(called.agents.tolist())) == 4
    assert set(called.agents.tolist()) <= set(range(20))
    model, results = torch.arange(6.0).reshape(1, 2, 3), torch.arange(8.0).reshape(4, 2)
    assert torch.equal(network.download(model, called), model.expand(4, 2, 3))
    assert torch.equal(network.upload(results, called), results)
    assert network.rounds == 1
    nodes = (1 + called.agents).tolist()
    expected = {(0, node): 6 for node in nodes} | {(node, 0): 2 for node in nodes}
    assert used_links(network) == expected


@pytest.mark.parametrize("stale", [0, 2])
def test_messages_of_agents_that_cannot_have_been_called_raise_and_are_not_counted(stale):
    network = StaleNetwork(StarNetwork(5, 2, seeded(0)), stale, seeded(1))
    called = network.call()
    with pytest.raises(ValueError, match=r"^values: got 5 rows, but .* for each of 2 agents"):
        network.upload(torch.zeros(5, 3), called)
    for agents in (torch.tensor([1, 5]), torch.tensor([True, False]), called.agents - 9):
        wrong = replace(called, agents=agents)
        with pytest.raises(ValueError, match=r"^called: got \[.*\], but .* int64 from 0 to 4"):
            network.download(torch.zeros(1, 3), wrong)
        with pytest.raises(ValueError, match=r"^called: got \[.*\], but .* int64 from 0 to 4"):
            network.upload(torch.ones(2, 3), wrong)
    assert network.floats == 0
    assert not network.upload(torch.zeros(2, 3), called).any()  # invalid uploads are not stored


@pytest.mark.parametrize(
    ("agents", "reporting", "calling", "message"),
    [
        (0, None, "random", "agents: got 0"),
        (5, 0, "random", "reporting: got 0, .* between 1 and 5"),
        (5, 6, "random", "reporting: got 6, .* between 1 and 5"),
        (5, 2, "by name", "calling: got 'by name', but it must be 'random' or 'in-turn'"),
    ],
)
def test_invalid_arguments_raise(agents, reporting, calling, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        StarNetwork(agents, reporting, seeded(0), calling=calling)


# The order of calls


def calls(network, rounds, seed=0):
    """Return the agents that the server calls, round by round."""
    network.reset(seeded(seed))
    return [network.call().agents.tolist() for _ in range(rounds)]


def joined(rounds):
    return list(chain.from_iterable(rounds))


def in_turn(agents, reporting, seed=0):
    return StarNetwork(agents, reporting, seeded(seed), calling="in-turn")


stars = st.integers(1, 12).flatmap(
    lambda agents: st.tuples(st.just(agents), st.integers(1, agents))
)


def permutations(agents, count, seed):
    """Return the orders of all agents from which calls are taken."""
    seed = next_seed(seeded(seed))
    draws = (Streams(seed, [SHARED], "call", number) for number in range(count))
    return [one.choose(agents, agents)[0].tolist() for one in draws]


def naive_turns(agents, reporting, rounds, seed):
    """Call in turn with lists."""
    orders, waiting, found = iter(permutations(agents, rounds, seed)), [], []
    for _ in range(rounds):
        called = []
        while waiting and len(called) < reporting:
            called.append(waiting.pop(0))
        if len(called) < reporting:
            waiting = next(orders)
            for agent in list(waiting):
                if agent not in called and len(called) < reporting:
                    called.append(agent)
                    waiting.remove(agent)
        found.append(sorted(called))
    return found


@given(star=stars, seed=st.integers(0, 1000))
def test_calls_in_turn_equal_a_loop_over_lists(star, seed):
    assert calls(in_turn(*star), 15, seed) == naive_turns(*star, 15, seed)


@given(star=stars, rounds=st.integers(1, 40), seed=st.integers(0, 1000), first=st.integers(0, 39))
def test_in_turn_all_agents_are_called_equally_often(star, rounds, seed, first):
    agents, reporting = star
    found = calls(in_turn(agents, reporting), rounds, seed)
    assert all(len(set(one)) == len(one) == reporting for one in found)

    def counts(some):
        return torch.bincount(torch.tensor(joined(some), dtype=torch.int64), minlength=agents)

    whole, later = counts(found), counts(found[first:])
    mean = rounds * reporting / agents
    assert int(whole.min()) >= int(mean)
    assert int(whole.max()) <= -int(-mean // 1)
    assert int(later.max() - later.min()) <= 2


def test_in_turn_all_of_a_hundred_are_called_in_ten_rounds_and_at_random_a_third_is_not():
    assert len(set(joined(calls(in_turn(100, 10), 10)))) == 100
    assert 55 < len(set(joined(calls(StarNetwork(100, 10, seeded(0)), 10)))) < 75


def test_every_pass_in_turn_has_a_new_order_in_which_any_agent_may_be_first():
    found = calls(in_turn(12, 4), 9)
    passes = [joined(found[start : start + 3]) for start in (0, 3, 6)]
    assert len({tuple(one) for one in passes}) == 3
    assert all(sorted(one) == list(range(12)) for one in passes)
    network, firsts = in_turn(5, 2), torch.zeros(5)
    for seed in range(2000):
        firsts[calls(network, 1, seed)[0]] += 1
    assert (firsts - 800).abs().max() < 4 * (2000 * 0.4 * 0.6) ** 0.5


@given(star=stars, seed=st.integers(0, 1000))
def test_calls_at_random_are_the_beginnings_of_permutations(star, seed):
    agents, reporting = star
    network = StarNetwork(agents, reporting, seeded(0))
    expected = [sorted(order[:reporting]) for order in permutations(agents, 5, seed)]
    assert all(sorted(order) == [*range(agents)] for order in permutations(agents, 5, seed))
    assert calls(network, 5, seed) == expected
    network.reset(seeded(seed))
    received = [network.mix(torch.eye(agents + 1))[0, 1:].nonzero().flatten() for _ in expected]
    assert expected == [one.tolist() for one in received]


def test_if_all_agents_report_both_ways_of_calling_give_the_same_bits():
    values = weights(0, 8, 3)
    one, two = StarNetwork(7, None, seeded(0)), in_turn(7, None)
    for _ in range(4):
        assert torch.equal(one.mix(values), two.mix(values))
        assert torch.equal(one.call().agents, two.call().agents)


def test_mixing_and_calling_take_from_the_same_pass():
    network = in_turn(6, 2)
    network.reset(seeded(1))
    received = network.mix(torch.eye(7))[0, 1:].nonzero().flatten().tolist()
    received += network.call().agents.tolist()
    received += network.mix(torch.eye(7))[0, 1:].nonzero().flatten().tolist()
    assert sorted(received) == list(range(6))
    assert network.rounds == 3


@pytest.mark.parametrize("calling", ["random", "in-turn"])
def test_a_reset_begins_a_new_pass_and_repeats_the_calls_of_its_generator(calling):
    network = StarNetwork(30, 4, seeded(0), calling=calling)
    first, again, other = (calls(network, 5, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[0] != first[1]
    network.reset()  # begins again, with a pass from its beginning
    fresh = joined(network.call().agents.tolist() for _ in range(7))
    assert calling == "random" or len(set(fresh)) == 28


# Called agents, and runs that go on


@given(
    agents=st.lists(st.integers(0, 20), max_size=8, unique=True),
    ids=st.lists(st.integers(0, 20), max_size=8, unique=True).map(sorted),
    kept=st.integers(0, 2**21 - 1),
)
def test_called_agents_know_which_of_them_live_here_and_in_which_row(agents, ids, kept):
    def rows(some):
        return [ids.index(agent) for agent in some if agent in ids]

    here = torch.tensor(ids, dtype=torch.int64)
    called = Called.of(torch.tensor(agents, dtype=torch.int64), here)
    assert len(called) == len(agents)
    assert called.agents.tolist() == agents
    assert called.here.tolist() == rows(agents)
    mask = torch.tensor([bool(kept >> agent & 1) for agent in range(21)])
    some = [agent for agent in agents if mask[agent]]
    assert called.only(mask, here).agents.tolist() == some
    assert called.only(mask, here).here.tolist() == rows(some)


def test_a_message_among_some_agents_is_counted_on_their_links_only():
    network = StarNetwork(6, 4, seeded(0))
    called = network.call()
    among = torch.zeros(6, dtype=torch.bool)
    among[called.agents[:3]] = True
    some = called.only(among, network.agent_rows(network.ids))
    assert network.download(torch.zeros(1, 5), some, among).shape == (3, 5)
    network.upload(torch.zeros(3, 2), some, among)
    nodes = (1 + called.agents[:3]).tolist()
    assert used_links(network) == {(0, n): 5 for n in nodes} | {(n, 0): 2 for n in nodes}


def test_calls_do_not_depend_on_earlier_ones_unless_they_are_in_turn():
    early, late = StarNetwork(20, 5, seeded(0)), StarNetwork(20, 5, seeded(0))
    found = calls(early, 8, 3)
    late.reset(seeded(3))
    for _ in range(7):
        late.count_round(0)
    assert late.call().agents.tolist() == found[7]


@pytest.mark.parametrize("calling", ["random", "in-turn"])
@given(
    agents=st.integers(1, 9), seed=st.integers(0, 1000), before=st.integers(0, 7), data=st.data()
)
def test_a_star_goes_on_from_its_state_with_the_same_rounds(calling, agents, seed, before, data):
    reporting = data.draw(st.integers(1, agents))
    first, again = (StarNetwork(agents, reporting, seeded(0), calling=calling) for _ in range(2))
    first.reset(seeded(seed)), again.reset(seeded(seed))
    for number in range(before):
        first.mix(weights(number, agents + 1, 2)) if number % 3 else first.call()
    stored = {name: value.clone() for name, value in first.state().items()}
    values, found = weights(9, agents + 1, 2), []
    again.mix(values)  # what it did before does not matter
    for network in (first, again):
        if network is again:
            again.restore(stored)
        assert network.rounds == before
        rounds = [network.call().agents.tolist(), network.mix(values).tolist()]
        rounds += [network.call().agents.tolist() for _ in range(2 * agents)]
        found.append((rounds, network.rounds, network.link_floats.tolist()))
    assert found[0] == found[1]
