"""What a process remembers from round to round, and when a waiting thread is woken."""

import threading

import networkx as nx
import numpy as np
import torch

from fedsurf.network import Network, TimeVaryingNetwork
from fedsurf.network.engines.arrivals import Arrivals
from fedsurf.network.engines.memory import run_parts
from fedsurf.network.engines.messages import Kind, Message, Slot
from fedsurf.network.engines.process import Latest

DIGEST = bytes(16)
ROW = np.ones((1, 3), np.float32)


def test_the_last_result_is_kept_for_the_same_tensors_only():
    calls = []
    double = Latest(lambda values, used: calls.append(used) or 2 * values)
    values = torch.ones(2)
    assert double(values, None) is double(values, None)
    torch.testing.assert_close(double(values.clone(), None), 2 * values)
    double(values, values)
    assert len(calls) == 3


def test_rounds_whose_weights_change_are_those_of_the_simulator():
    graphs = [nx.path_graph(5), nx.star_graph(4), nx.path_graph(5)]
    whole = TimeVaryingNetwork(graphs, "metropolis")
    rows = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    owners = torch.tensor([1, 0, 0, 1, 2])

    def rounds(network):
        values = rows[network.ids]
        for _ in range(5):
            values = network.mix(values)
        return values

    found = torch.empty_like(rows)
    for process, part in enumerate(run_parts(whole, owners, rounds)):
        found[owners == process] = part
    torch.testing.assert_close(found, rounds(TimeVaryingNetwork(graphs, "metropolis")))


def test_counts_of_all_links_and_of_some_add_up():
    network = Network(nx.path_graph(3), "metropolis")
    rows = torch.ones(3, 2)
    network.mix(rows)
    before, saved = network.link_floats, network.state()
    network.count_round(5, network.links[0] == 0)
    network.mix(rows)
    assert before.tolist() == [2, 2, 2, 2]
    assert sorted(network.link_floats.tolist()) == [4, 4, 4, 9]
    network.restore(saved)
    assert network.link_floats.tolist() == [2, 2, 2, 2]


def test_who_waits_is_woken_by_the_last_message_that_is_needed():
    here = Arrivals(["a", "b", "c"], [1, 2], DIGEST, 2**16)
    slot, asked = Slot(0, 0), []

    def done():
        asked.append(threading.current_thread())
        return all(here.take(one, Kind.ROWS, slot, ROW.shape) is not None for one in (1, 2))

    woken = threading.Event()

    def wait():
        with here.changed:
            here.awaited = done
            ready.set()
            here.changed.wait(20)
            woken.set()

    ready = threading.Event()
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    ready.wait(20)
    here.receive("b", Message(Kind.ROWS, 1, slot, ROW).encoded(DIGEST))
    assert not woken.wait(0.1)
    here.receive("c", Message(Kind.ROWS, 2, slot, ROW).encoded(DIGEST))
    assert woken.wait(20)
    assert set(asked) == {threading.current_thread()}
