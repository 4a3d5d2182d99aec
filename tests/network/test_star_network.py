"""The star: a server that hears a sample of the agents."""

from itertools import chain

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import seeded, weights

from fedsurf.network import StaleNetwork, StarNetwork

SHIFTS = ["adjacency", "metropolis", "laplacian"]


@pytest.mark.parametrize("shift", SHIFTS)
@given(agents=st.integers(1, 8), seed=st.integers(0, 1000), everybody=st.booleans())
def test_with_all_agents_reporting_a_round_is_a_product_with_s(shift, agents, seed, everybody):
    network = StarNetwork(agents, agents if everybody else None, seeded(seed), shift)
    values = weights(seed, agents + 1, 3)
    expected = naive.mix(nx.star_graph(agents), values.tolist(), shift)
    torch.testing.assert_close(
        network.mix(values), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-13
    )


def heard_by_server(network, seed):
    """Mix the identity: row 0 of the result is the server's row of S in that round."""
    network.reset(seeded(seed))
    mixed = network.mix(torch.eye(network.nodes, dtype=torch.float64))
    return mixed, mixed[0, 1:].nonzero().flatten() + 1


@pytest.mark.parametrize("shift", SHIFTS)
def test_ten_of_a_hundred_carry_the_weight_of_all(shift):
    network = StarNetwork(100, 10, seeded(0), shift)
    full = network.operator(torch.float64).to_dense()
    mixed, reporters = heard_by_server(network, 1)
    assert len(reporters) == 10
    torch.testing.assert_close(mixed[0].sum(), full[0].sum())
    torch.testing.assert_close(mixed[0, 0], full[0, 0])
    torch.testing.assert_close(mixed[0, reporters], full[0, 1] * 10 * torch.ones(10).double())
    torch.testing.assert_close(mixed[1:], full[1:])  # the agents' own rows are as ever


def test_only_reporters_matter_to_the_server():
    network = StarNetwork(20, 4, seeded(0))
    _, reporters = heard_by_server(network, 2)
    values = weights(3, 21, 2)
    network.reset(seeded(2))
    before = network.mix(values)
    silent = [agent for agent in range(1, 21) if agent not in reporters.tolist()]
    changed = values.clone()
    changed[silent] = float("nan")
    network.reset(seeded(2))
    torch.testing.assert_close(network.mix(changed)[0], before[0])


def test_in_expectation_the_server_hears_everybody():
    network = StarNetwork(20, 4, seeded(0))
    values = weights(4, 21, 2)
    exact = StarNetwork(20, None, seeded(0)).mix(values)[0]
    rounds = torch.stack([network.mix(values)[0] for _ in range(4000)])
    error = (rounds.mean(0) - exact) / (rounds.std(0) / 4000**0.5)
    assert rounds.std(0).min() > 0.05
    assert error.abs().max() < 4


def test_every_agent_reports_equally_often():
    network = StarNetwork(10, 3, seeded(1))
    for _ in range(2000):
        network.mix(torch.zeros(11, 1))
    up = network.link_floats[network.links[1] == 0].double()
    assert up.sum() == 6000
    assert (up - 600).abs().max() < 4 * (2000 * 0.3 * 0.7) ** 0.5


def test_floats_are_counted_on_used_links_only():
    network = StarNetwork(100, 10, seeded(0))
    _, reporters = heard_by_server(network, 5)
    network.reset(seeded(5))
    network.mix(torch.zeros(101, 7))
    used = {
        (source, target): floats
        for source, target, floats in zip(
            *network.links.tolist(), network.link_floats.tolist(), strict=True
        )
        if floats
    }
    down = {(0, agent): 7 for agent in range(1, 101)}
    up = {(agent, 0): 7 for agent in reporters.tolist()}
    assert used == down | up
    assert network.floats == 7 * 110
    assert network.rounds == 1


def test_resetting_with_a_generator_repeats_the_rounds():
    network, values = StarNetwork(30, 3, seeded(0)), weights(6, 31, 2)

    def rounds(seed):
        network.reset(seeded(seed))
        return torch.stack([network.mix(values) for _ in range(3)])

    first, again, other = rounds(1), rounds(1), rounds(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])  # each round asks others


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
    assert mixed.shape == (5, 2, 3)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed.flatten(1), network.mix(values.flatten(1)))


def test_a_large_star_equals_the_product_too():
    network, values = StarNetwork(600, None, seeded(0)), weights(8, 601, 2)
    expected = torch.sparse.mm(network.operator(torch.float64), values)
    torch.testing.assert_close(network.mix(values), expected)


def test_a_server_calls_different_agents_downloads_to_and_uploads_from_them():
    network = StarNetwork(20, 4, seeded(0))
    called = network.call()
    assert network.rounds == 1
    assert network.floats == 0
    assert len(set(called.tolist())) == 4
    assert set(called.tolist()) <= set(range(20))
    received = network.download(torch.arange(6.0).reshape(2, 3), called)
    assert received.shape == (4, 2, 3)
    assert torch.equal(received[3], torch.arange(6.0).reshape(2, 3))
    sent = torch.arange(8.0).reshape(4, 2)
    assert torch.equal(network.upload(sent, called), sent)
    assert network.rounds == 1
    nodes = (1 + called).tolist()
    used = dict(
        zip(map(tuple, network.links.T.tolist()), network.link_floats.tolist(), strict=True)
    )
    expected = {(0, node): 6 for node in nodes} | {(node, 0): 2 for node in nodes}
    assert {link: floats for link, floats in used.items() if floats} == expected


def test_whom_a_server_calls_follows_the_generator_and_changes_from_round_to_round():
    network = StarNetwork(30, 5, seeded(0))

    def calls(seed):
        network.reset(seeded(seed))
        return [network.call().tolist() for _ in range(3)]

    first, again, other = calls(1), calls(1), calls(2)
    assert first == again
    assert first != other
    assert first[0] != first[1]


@pytest.mark.parametrize("stale", [0, 2])
def test_only_called_agents_send_and_each_a_row(stale):
    network = StaleNetwork(StarNetwork(5, 2, seeded(0)), stale, seeded(1))
    called = network.call()
    with pytest.raises(ValueError, match=r"^values: got 5 rows, but .* for each of 2 agents"):
        network.upload(torch.zeros(5, 3), called)
    wrong = {"nodes": torch.tensor([1, 5]), "a mask": torch.tensor([True, False]), "-1": called - 9}
    for agents in wrong.values():
        with pytest.raises(ValueError, match=r"^agents: got \[.*\], but .* int64 from 0 to 4"):
            network.download(torch.zeros(3), agents)
        with pytest.raises(ValueError, match=r"^agents: got \[.*\], but .* int64 from 0 to 4"):
            network.upload(torch.ones(len(agents), 3), agents)
    assert network.floats == 0
    assert not network.upload(torch.zeros(2, 3), called).any()  # what was refused is not remembered


@pytest.mark.parametrize("reporting", [0, -1, 6])
def test_the_number_of_reporting_agents_must_be_possible(reporting):
    with pytest.raises(ValueError, match=rf"^reporting: got {reporting}, .* between 1 and 5"):
        StarNetwork(5, reporting, seeded(0))


def test_a_star_needs_agents():
    with pytest.raises(ValueError, match=r"^agents: got 0"):
        StarNetwork(0, None, seeded(0))


# In turn


def calls(network, rounds, seed=0):
    """Return whom the server calls, round by round."""
    network.reset(seeded(seed))
    return [network.call().tolist() for _ in range(rounds)]


def joined(rounds):
    return list(chain.from_iterable(rounds))


def in_turn(agents, reporting, seed=0):
    return StarNetwork(agents, reporting, seeded(seed), calling="in-turn")


stars = st.integers(1, 12).flatmap(
    lambda agents: st.tuples(st.just(agents), st.integers(1, agents))
)


@given(star=stars, rounds=st.integers(1, 40), seed=st.integers(0, 1000))
def test_in_turn_nobody_is_called_again_before_all_others_were_called(star, rounds, seed):
    agents, reporting = star
    found = calls(in_turn(agents, reporting), rounds, seed)
    assert all(len(set(one)) == len(one) == reporting for one in found)
    sequence = joined(found)
    for start in range(0, len(sequence), agents):
        one_pass = sequence[start : start + agents]
        assert len(set(one_pass)) == len(one_pass)
    assert set(sequence) <= set(range(agents))


@given(star=stars, rounds=st.integers(1, 40), seed=st.integers(0, 1000), first=st.integers(0, 39))
def test_in_turn_calls_of_two_agents_differ_by_one_and_from_the_middle_by_two(
    star, rounds, seed, first
):
    agents, reporting = star
    found = calls(in_turn(agents, reporting), rounds, seed)

    def counts(some):
        return torch.bincount(torch.tensor(joined(some), dtype=torch.int64), minlength=agents)

    whole, later = counts(found), counts(found[first:])
    mean = rounds * reporting / agents
    assert int(whole.min()) >= int(mean)
    assert int(whole.max()) <= -int(-mean // 1)
    assert int(later.max() - later.min()) <= 2


def test_from_the_middle_of_a_run_calls_in_turn_do_differ_by_two():
    found = joined(calls(in_turn(3, 1), 60))
    spreads = [
        max(part.count(agent) for agent in range(3)) - min(part.count(agent) for agent in range(3))
        for start in range(60)
        for part in [found[start : start + 2]]
    ]
    assert max(spreads) == 2


def test_in_turn_ten_of_a_hundred_are_all_heard_in_ten_rounds_and_at_random_they_are_not():
    turns = calls(in_turn(100, 10), 10)
    random = calls(StarNetwork(100, 10, seeded(0)), 10)
    assert len(set(joined(turns))) == 100
    assert 55 < len(set(joined(random))) < 75


def test_every_pass_in_turn_has_a_fresh_order():
    found = calls(in_turn(12, 4), 9)
    passes = [joined(found[start : start + 3]) for start in (0, 3, 6)]
    assert len({tuple(one) for one in passes}) == 3
    assert all(sorted(one) == list(range(12)) for one in passes)


def test_in_turn_every_place_of_a_pass_is_anybodys():
    network, firsts = in_turn(5, 2), torch.zeros(5)
    for seed in range(2000):
        firsts[calls(network, 1, seed)[0]] += 1
    assert (firsts - 800).abs().max() < 4 * (2000 * 0.4 * 0.6) ** 0.5


def naive_turns(agents, reporting, rounds, seed):
    """Call in turn with lists."""
    generator, waiting, found = seeded(seed), [], []
    for _ in range(rounds):
        called = []
        while waiting and len(called) < reporting:
            called.append(waiting.pop(0))
        if len(called) < reporting:
            waiting = torch.randperm(agents, generator=generator).tolist()
            for agent in list(waiting):
                if agent not in called and len(called) < reporting:
                    called.append(agent)
                    waiting.remove(agent)
        found.append(called)
    return found


@given(star=stars, seed=st.integers(0, 1000))
def test_calls_in_turn_equal_those_of_a_loop_over_lists(star, seed):
    assert calls(in_turn(*star), 15, seed) == naive_turns(*star, 15, seed)


@given(star=stars, seed=st.integers(0, 1000))
def test_calls_at_random_are_permutations_one_after_another(star, seed):
    agents, reporting = star
    generator = seeded(seed)
    expected = [torch.randperm(agents, generator=generator)[:reporting].tolist() for _ in range(5)]
    for network in (
        StarNetwork(agents, reporting, seeded(0)),
        StarNetwork(agents, reporting, seeded(0), calling="random"),
    ):
        assert calls(network, 5, seed) == expected
        network.reset(seeded(seed))
        heard = [network.mix(torch.eye(agents + 1))[0, 1:].nonzero().flatten() for _ in expected]
        assert [sorted(one) for one in expected] == [one.tolist() for one in heard]


def test_with_all_agents_reporting_turns_change_no_bit():
    values = weights(0, 8, 3)
    one, two = StarNetwork(7, None, seeded(0)), in_turn(7, None)
    for _ in range(4):
        assert torch.equal(one.mix(values), two.mix(values))
        assert torch.equal(one.call(), two.call())


def test_mixing_and_calling_take_from_the_same_pass():
    network = in_turn(6, 2)
    network.reset(seeded(1))
    heard = network.mix(torch.eye(7))[0, 1:].nonzero().flatten().tolist()
    heard += network.call().tolist()
    heard += network.mix(torch.eye(7))[0, 1:].nonzero().flatten().tolist()
    assert sorted(heard) == list(range(6))
    assert network.rounds == 3


def test_a_round_in_turn_counts_as_one_at_random():
    turns, random = in_turn(9, 4), StarNetwork(9, 4, seeded(0))
    for network in (turns, random):
        for _ in range(3):
            network.mix(torch.zeros(10, 5))
            called = network.call()
            network.upload(torch.zeros(4, 2), called)
    assert (turns.rounds, turns.floats) == (random.rounds, random.floats)


def test_resetting_begins_a_new_pass():
    network = in_turn(7, 3)
    first = calls(network, 5, 1)
    assert first == calls(network, 5, 1)
    assert first != calls(network, 5, 2)
    network.call()
    network.reset()  # the generator goes on, the pass does not
    assert sorted(joined(network.call().tolist() for _ in range(3))[:7]) == list(range(7))


def test_agents_are_called_at_random_or_in_turn():
    assert StarNetwork(5, 2, seeded(0)).calling == "random"
    wanted = r"^calling: got 'by name', but it must be 'random' or 'in-turn'"
    with pytest.raises(ValueError, match=wanted):
        StarNetwork(5, 2, seeded(0), calling="by name")
