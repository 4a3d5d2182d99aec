"""Parts of a network that only exchange messages: rounds, floats, sums and what everybody learns."""

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_data import seeded, weights

from fedsurf.network import (
    FaultConfig,
    GraphConfig,
    Network,
    StarNetwork,
    TimeVaryingNetwork,
    make_graph,
    with_faults,
)
from fedsurf.network.engines import memory
from fedsurf.network.engines.memory import run_parts
from fedsurf.network.network import Called

AGENTS = 6
OWNERS = {
    "one": torch.zeros(AGENTS, dtype=torch.int64),
    "halves": torch.arange(AGENTS) // 3,
    "mixed": torch.tensor([1, 0, 2, 1, 0, 2]),
    "each": torch.arange(AGENTS),
}
every_layout = pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS.keys())


def with_server(owners, process):
    """Let the server of a star live in a process, perhaps in one of its own."""
    return torch.cat([torch.tensor([process]), owners])


def placed(parts):
    """Put the rows of all parts, given as (ids, rows), in the order of their ids."""
    ids, rows = (torch.cat(list(each)) for each in zip(*parts, strict=True))
    return rows[ids.argsort()]


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def graph(seed=0):
    return make_graph(GraphConfig("erdos-renyi", probability=0.5), AGENTS, seeded(seed))


def changing():
    return TimeVaryingNetwork([nx.path_graph(AGENTS), nx.cycle_graph(AGENTS)], "metropolis")


WHOLE = {
    "graph": lambda: Network(graph(), "metropolis"),
    "laplacian": lambda: Network(graph(), "laplacian"),
    "changing links": changing,
    "star": lambda: StarNetwork(AGENTS, 3, seeded(0), "metropolis"),
    "star, in turn": lambda: StarNetwork(AGENTS, 4, seeded(0), calling="in-turn"),
}
FAULTS = FaultConfig(stale=2, loss=0.2, leave=0.2)
every_network = pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE.keys())


@every_layout
@every_network
@pytest.mark.parametrize("faults", [False, True])
def test_rounds_mix_as_in_one_process_and_floats_add_up(make, owners, faults):
    def rounds(network):
        if faults and network.shift != "laplacian":
            network = with_faults(network, FAULTS, seeded(4))
        network.reset(seeded(5))
        found = []
        for number in range(5):
            rows = network.ids + int(network.server)
            values = weights(number, network.nodes, 5)[rows]
            parts = network.mix_parts(values[:, :2], values[:, 2:].reshape(-1, 3, 1))
            found += [part.flatten(1) for part in parts]
        found.append(network.mix(found[0], floats=1))
        return network.ids, torch.cat(found, 1), network.rounds, network.link_floats

    _, expected, count, floats = rounds(make())
    owners = with_server(owners, 0) if make().server else owners
    parts = run_parts(make(), owners, rounds)
    close(placed([part[:2] for part in parts]), expected)
    assert all(part[2] == count == 6 for part in parts)
    assert torch.equal(sum(part[3] for part in parts), floats)
    links = make().links
    for process, part in enumerate(parts):  # each counts what it sent
        assert not part[3][owners[links[0]] != process].any()


@every_layout
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("calling", ["random", "in-turn"])
def test_calls_downloads_and_uploads_are_those_of_one_process(owners, alone, faults, calling):
    def rounds(network):
        if faults:
            network = with_faults(network, FAULTS, seeded(4))
        network.reset(seeded(5))
        sent, received, called_agents = [], [], []
        for number in range(6):
            called = network.call()
            called_agents.append(called.agents.tolist())
            agents = network.agent_rows(network.ids)[called.here]
            model = weights(number, 1, 3)[: network.servers]
            got = network.download(model, called)
            close(got, weights(number, 1, 3).expand(len(agents), 3))
            uploaded = network.upload(weights(50 + number, AGENTS, 2)[agents], called)
            received.append(uploaded)
            sent.append(len(agents))
        return received, sent, called_agents, network.link_floats, network.servers

    def star():
        return StarNetwork(AGENTS, 4, seeded(0), calling=calling)

    expected, _, called_agents, floats, _ = rounds(star())
    process = int(owners.max()) + 1 if alone else 0
    parts = run_parts(star(), with_server(owners, process), rounds)
    for number, part in enumerate(parts):
        assert part[2] == called_agents
        assert part[4] == (number == process)
        if part[4]:
            close(torch.cat(part[0]), torch.cat(expected))
        else:
            assert all(len(rows) == 0 for rows in part[0])
    assert torch.equal(sum(part[3] for part in parts), floats)
    assert [sum(each) for each in zip(*(part[1] for part in parts), strict=True)] == [
        len(agents) for agents in called_agents
    ]


@every_layout
@pytest.mark.parametrize("star", [False, True])
def test_everybody_learns_sums_all_rows_and_the_servers_value_and_nothing_is_counted(owners, star):
    network = WHOLE["star" if star else "graph"]()
    owners = with_server(owners, 1 if int(owners.max()) else 0) if star else owners
    values = weights(0, AGENTS, 3)

    def learn(part):
        mine = values[part.agent_rows(part.ids)]
        published = part.publish(values[: part.servers]) if star else None
        total = part.total(mine)
        return total, part.collect(mine), published, (part.rounds, part.floats), len(mine)

    for total, every, published, counts, rows in run_parts(network, owners, learn):
        close(total, values.sum(0))
        assert torch.equal(every, values)
        assert counts == (0, 0)
        if star:
            assert torch.equal(published, values[:1].expand(rows, 3))
    assert torch.equal(network.collect(values), values)
    close(network.total(values), values.sum(0))


def test_a_process_may_give_no_rows_to_a_sum():
    def work(part):
        return part.total(torch.ones(1 if part.servers else 0, 2))

    owners = torch.tensor([1, 0, 0])
    found = run_parts(StarNetwork(2, None, seeded(0)), owners, work)
    assert [one.tolist() for one in found] == [[1, 1], [1, 1]]


@every_layout
@every_network
def test_facts_are_those_of_the_whole_and_degrees_of_the_own_rows(make, owners):
    owners = with_server(owners, 0) if make().server else owners
    whole = make().facts

    def facts(part):
        assert part.agents == AGENTS
        return part.ids, part.facts

    for ids, found in run_parts(make(), owners, facts):
        assert torch.equal(found.degrees, whole.degrees[ids + int(make().server)])
        for name in ("agents", "shift", "reporting", "reliable"):
            assert getattr(found, name) == getattr(whole, name)
        for name in ("averages", "keeps_average", "lowest_eigenvalue"):
            assert getattr(found.spectrum, name) == getattr(whole.spectrum, name)


@settings(max_examples=10)
@given(
    owners=st.lists(st.integers(0, 3), min_size=AGENTS, max_size=AGENTS), seed=st.integers(0, 99)
)
def test_rows_may_live_anywhere(owners, seed):
    numbers = torch.tensor(owners).unique(return_inverse=True)[1]
    values, network = weights(seed, AGENTS, 2), Network(graph(seed), "metropolis")
    parts = run_parts(network, numbers, lambda part: (part.ids, part.mix(values[part.ids])))
    close(placed(parts), network.mix(values))


def test_a_part_goes_on_from_its_state():
    owners, values = OWNERS["halves"], weights(0, AGENTS, 2)

    def rounds(network, *, stop):
        network = with_faults(network, FAULTS, seeded(4))
        network.reset(seeded(5))
        mine = values[network.ids]
        for number in range(6):
            mine = network.mix(mine)
            if stop and number == 2:
                stored = network.state()
                network.mix(mine), network.mix(mine)
                network.restore(stored)
        return network.ids, mine, network.rounds, network.floats

    network = WHOLE["graph"]()
    runs = [
        run_parts(network, owners, lambda part, stop=stop: rounds(part, stop=stop))
        for stop in (False, True)
    ]
    for one, two in zip(*runs, strict=True):
        assert torch.equal(one[1], two[1])
        assert one[2:] == two[2:]


def test_the_error_of_a_process_is_raised_and_not_the_waiting_of_the_others(monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE", 0.2)

    def work(part):
        if 0 in part.ids:
            raise ValueError("a defect")
        return part.mix(torch.zeros(len(part.ids), 1))

    with pytest.raises(ValueError, match="a defect"):
        run_parts(Network(nx.cycle_graph(4)), torch.tensor([0, 0, 1, 1]), work)


def test_without_a_server_a_part_calls_nobody():
    def work(part):
        none = Called.of(torch.arange(0), part.ids)
        for use in (
            part.call,
            lambda: part.download(torch.zeros(0, 1), none),
            lambda: part.upload(torch.zeros(0, 1), none),
        ):
            with pytest.raises(ValueError, match=r"^network: got a \w+ without a server"):
                use()

    run_parts(Network(nx.path_graph(2)), torch.tensor([0, 0]), work)


@every_network
def test_parts_mix_on_the_device_of_their_rows(make):
    network = make()
    parts = run_parts(
        network,
        torch.arange(network.nodes) // 3,
        lambda part: part.mix(torch.ones(len(part.ids), 2, device="meta")),
    )
    assert all(part.is_meta for part in parts)
