"""The star: a server that hears a sample of the agents."""

import naive
import networkx as nx
import pytest
import torch
from drawn import seeded, weights
from hypothesis import given
from hypothesis import strategies as st

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
    with pytest.raises(ValueError, match=r"^values: got 5 rows of 2 agents that upload, but there"):
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
