"""Both sides of Flower's engine: the simulator's numbers, whatever is lost, and nothing from strangers."""

import numpy as np
import pytest
import torch
from couriers import LocalCourier
from random_data import seeded
from test_rows_anywhere import AGENTS, ROUNDS, SUBJECTS, Subject, task

from fedsurf.algorithms.algorithm import ServerState
from fedsurf.common.streams import Streams
from fedsurf.evaluation.measures import consensus
from fedsurf.network.engines.flower.agent import AgentSide, PausedError
from fedsurf.network.engines.flower.parcels import Item, Parcel, packed, packed_text, unpacked
from fedsurf.network.engines.flower.server import ServerSide
from fedsurf.network.engines.messages import RefusedError

STARS = [one for one in SUBJECTS if one.star and not one.faults]


def work(subject, network, dtype):
    """Train, and return the model of all agents."""
    own = task(dtype).of(network.agent_rows(network.ids))
    algorithm, streams = subject.algorithm(dtype), Streams(9, network.ids)
    network.reset(seeded(7))
    state = algorithm.init(own, network, streams.at("start"))
    for step in range(getattr(algorithm, "steps", ROUNDS)):
        state = algorithm.step(state, own, network, streams.at("step", step))
    if isinstance(state, ServerState) and network.servers:
        network.publish(state.weights)
        return state.weights
    return consensus(state.agent_weights(network), network)


class Agent:
    """An agent without a memory but for what it received: for every message it starts from the beginning."""

    def __init__(self, subject, number, dtype, wire):
        self.make = lambda want: AgentSide(subject.network(), number, self.received, want, wire)
        self.work = lambda side: work(subject, side, dtype)
        self.received = {}

    def __call__(self, parcel):
        self.received |= parcel.items
        side, note = self.make(parcel.want), ""
        try:
            self.work(side)
        except PausedError as pause:
            note = str(pause)
        items = {parcel.want: side.given[parcel.want]} if parcel.want in side.given else {}
        return Parcel(items, parcel.want, note)


def both_sides(subject, dtype=torch.float64, lost=None, change=None, **options):
    """Train through a server and agents that only exchange parcels; return the model and the server's side."""
    wire = str(dtype).removeprefix("torch.")
    agents = [Agent(subject, number, dtype, wire) for number in range(AGENTS)]
    if change is not None:
        agents = change(agents)
    network = ServerSide(subject.network(), LocalCourier(agents, lost), kind=wire, **options)
    with torch.no_grad():
        return work(subject, network, dtype), network


def simulated(subject, dtype=torch.float64):
    network = subject.network()
    with torch.no_grad():
        return work(subject, network, dtype)[:1], network


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("subject", STARS, ids=str)
def test_a_server_and_its_agents_give_the_simulators_numbers(subject, dtype):
    wanted, star = simulated(subject, dtype)
    found, server = both_sides(subject, dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    size = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * size)
    assert torch.equal(server.whole.link_floats, star.link_floats)
    assert server.missing == []


SCAFFOLD = Subject("scaffold", star=True, faults=False)
FEDAVG = Subject("fedavg", star=True, faults=False)
UDGD = Subject("U-DGD", star=True, faults=False)


@pytest.mark.parametrize("subject", [SCAFFOLD, UDGD], ids=str)
def test_a_round_goes_on_without_a_lost_message_and_names_its_agent(subject):
    found, server = both_sides(
        subject, lost=lambda agent, n: "parcel" if (agent, n) == (3, 2) else None
    )
    ((round_, name, why),) = server.missing
    assert (name, why) == ("site-3", "late")
    assert 0 < round_ <= ROUNDS
    assert found.isfinite().all()


def test_a_lost_reply_and_a_lost_message_are_the_same_to_the_others():
    one, _ = both_sides(SCAFFOLD, lost=lambda agent, n: "parcel" if (agent, n) == (3, 2) else None)
    other, _ = both_sides(SCAFFOLD, lost=lambda agent, n: "reply" if (agent, n) == (3, 2) else None)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_an_agent_that_dies_is_left_out_in_every_later_round():
    found, server = both_sides(FEDAVG, lost=lambda agent, n: "parcel" if agent == 3 and n else None)
    assert {name for _, name, _ in server.missing} == {"site-3"}
    assert found.isfinite().all()


def test_the_server_waits_where_no_called_agent_answers():
    tries = iter(range(2 * 5))
    found, server = both_sides(
        FEDAVG, lost=lambda _, n: "parcel" if n and next(tries, None) is not None else None
    )
    assert server.missing == []
    torch.testing.assert_close(found, simulated(FEDAVG)[0], rtol=1e-10, atol=1e-10)


def test_training_ends_where_nobody_answers():
    with pytest.raises(ConnectionError, match=r"no called agent answered in round 1 .*late"):
        both_sides(FEDAVG, lost=lambda _, n: "parcel" if n else None, patience=0.6)


def test_bytes_are_those_of_the_numbers_both_ways():
    _, server = both_sides(FEDAVG)
    floats = server.whole.link_floats.reshape(2, -1)
    answers = 8 + 8  # an own number of examples, and the sum of all
    received = sum(server.bytes_received.values())
    assert received == AGENTS * 8 + 8 * int(floats[1].sum())
    assert sum(server.bytes_sent.values()) <= AGENTS * answers + 8 * int(floats[0].sum())


HOSTILE = {
    "shape": (Item("float64", (1, 2), bytes(16)), "shape [1, 2] instead of"),
    "not finite": (packed(torch.full((1, 19), torch.nan, dtype=torch.float64)), "not finite"),
    "NaN in the bytes": (
        Item("float64", (1, 19), np.full(19, np.nan).tobytes()),
        "NaN or infinite",
    ),
    "text": (packed_text("0" * 19), "text instead of numbers"),
    "size": (Item("float64", (1, 2**40), bytes(8)), "size differs from its shape"),
    "type": (Item("object", (1, 1), b"\x80\x04N."), "unknown type"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_reply_that_is_not_sound_is_refused_and_its_sender_named(what):
    item, reason = HOSTILE[what]

    def change(agents):
        def hostile(parcel):
            reply = agents[3](parcel)
            return Parcel(dict.fromkeys(reply.items, item), parcel.want)

        return [*agents[:3], hostile, *agents[4:]]

    found, server = both_sides(FEDAVG, change=change)
    assert {name for _, name, _ in server.missing} == {"site-3"}
    assert all(why.startswith(reason) for _, _, why in server.missing)
    wanted, _ = both_sides(FEDAVG, lost=lambda agent, _: "parcel" if agent == 3 else None)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_an_item_of_an_unknown_place_is_refused():
    with pytest.raises(RefusedError, match="unknown place"):
        Parcel({"../../secret": packed(torch.ones(1, 1))}).check()
    with pytest.raises(RefusedError, match="unknown place"):
        Parcel(want="upload-1-2").check()


def test_an_agent_refuses_a_model_of_another_shape():
    side = AgentSide(FEDAVG.network(), 0, {}, "")
    side.reset(seeded(7))
    called = side.call()
    while not len(called.here):
        called = side.call()
    side._received = {f"download-0-{side.rounds}-0": packed(torch.ones(1, 2))}
    with pytest.raises(RefusedError, match=r"shape \[1, 2\] instead of \[1, 3\] from the server"):
        side.download(torch.empty(0, 3), called)


def test_numbers_too_large_for_the_wire_do_not_travel():
    item = packed(torch.full((1, 2), 1e300, dtype=torch.float64), "float32")
    with pytest.raises(RefusedError, match="not finite"):
        unpacked(item, (1, 2), torch.empty(0))


def test_all_sides_hear_what_all_say():
    star = FEDAVG.network

    def agent(number):
        received = {}

        def answer(parcel):
            received.update(parcel.items)
            side = AgentSide(star(), number, received, parcel.want)
            try:
                heard.append(side.gather_text(f"agent {number}"))
                side.collect(torch.tensor([[float(number)]]))
            except PausedError:
                pass
            return Parcel({parcel.want: side.given[parcel.want]}, parcel.want)

        return answer

    heard = []
    server = ServerSide(star(), LocalCourier([agent(number) for number in range(AGENTS)]))
    said = server.gather_text("server")
    assert list(said.values()) == ["server", *(f"agent {number}" for number in range(AGENTS))]
    assert server.collect(torch.empty(0, 1)).flatten().tolist() == list(range(AGENTS))
    assert heard == [said] * AGENTS


def test_what_is_kept_for_an_agent_that_never_answers_is_bounded(monkeypatch):
    monkeypatch.setattr("fedsurf.network.engines.flower.server.MAX_PENDING_BYTES", 400)
    found, server = both_sides(FEDAVG, lost=lambda agent, n: "parcel" if agent == 3 and n else None)
    assert found.isfinite().all()
    assert server._pending[3] == {}
    assert server.missing[-1][1:] == ("site-3", "left out, since it missed too much")
