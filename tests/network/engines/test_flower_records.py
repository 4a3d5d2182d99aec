"""Parcels in Flower's own messages, and the courier over a grid, without Flower's processes."""

import pickle

import numpy as np
import pytest
import torch

from fedsurf.network.engines.flower import records
from fedsurf.network.engines.flower.parcels import AWAY, Parcel, packed, packed_text
from fedsurf.network.engines.flower.records import GridCourier, from_records, to_records
from fedsurf.network.engines.messages import RefusedError

flwr = pytest.importorskip(
    "flwr.app", reason="Flower is not installed: pip install '.[flower]' to test with it"
)
serde = pytest.importorskip("flwr.common.serde")
PLACE, OTHER = "upload-0-3-0", "answer-0-3-1"


def parcel():
    numbers = packed(torch.tensor([[1.5, -2.0], [0.0, 4.0]], dtype=torch.float64))
    return Parcel({PLACE: numbers, OTHER: packed_text("zwölf")}, PLACE, "a note")


def sent(content):
    """Return the content of a message as it arrives elsewhere."""
    return serde.recorddict_from_proto(serde.recorddict_to_proto(content))


def test_a_parcel_is_the_same_after_flowers_way():
    assert from_records(sent(to_records(parcel(), 3, "clinic-3"))) == (parcel(), 3, "clinic-3")


def test_numbers_travel_as_raw_little_endian_bytes():
    array = to_records(parcel())[records.ITEMS][PLACE]
    assert array.data == np.array([[1.5, -2.0], [0.0, 4.0]], "<f8").tobytes()


class Pickled:
    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


def hostile(change):
    content = to_records(parcel(), 3, "clinic-3")
    change(content)
    return sent(content)


def arrays(content, array):
    content[records.ITEMS] = flwr.ArrayRecord({PLACE: array})


def words(content, **changes):
    content[records.WORDS] = flwr.ConfigRecord({**content[records.WORDS], **changes})


HOSTILE = {
    "NumPy's format": lambda c: arrays(c, flwr.Array(np.ones((1, 2)))),
    "pickle": lambda c: arrays(
        c, flwr.Array("object", (1,), "numpy.ndarray", pickle.dumps(Pickled()))
    ),
    "pickle as ours": lambda c: arrays(
        c, flwr.Array("object", (1, 1), records.STYPE, b"\x80\x04N.")
    ),
    "size": lambda c: arrays(c, flwr.Array("float64", (1, 2**30), records.STYPE, bytes(8))),
    "negative": lambda c: arrays(c, flwr.Array("float64", (-1, -1), records.STYPE, bytes(8))),
    "place": lambda c: c[records.ITEMS].update({"../x": c[records.ITEMS][PLACE]}),
    "want": lambda c: words(c, want="rows-0"),
    "want's type": lambda c: words(c, want=3),
    "agent": lambda c: words(c, agent="3"),
    "name": lambda c: words(c, name="../../etc"),
    "no items": lambda c: c.pop(records.ITEMS),
    "no words": lambda c: c.pop(records.WORDS),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_not_sound_is_refused_and_nothing_is_unpickled(what):
    with pytest.raises(RefusedError):
        from_records(hostile(HOSTILE[what]))


class Grid:
    """Flower's grid over functions that answer as nodes: by their ids, None for one that never answers."""

    def __init__(self, nodes):
        self.nodes, self.replies, self.pushed = nodes, {}, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message {len(self.pushed)}"
            self.pushed.append(message)
            message.metadata.__dict__["_message_id"] = number
            message.metadata.__dict__["_src_node_id"] = 1
            found = self.nodes[message.metadata.dst_node_id](sent(message.content))
            if isinstance(found, Exception):
                error = flwr.Error(2, str(found))
                self.replies[number] = flwr.Message(error, reply_to=message)
            elif found is not None:
                self.replies[number] = flwr.Message(sent(found), reply_to=message)
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        return [self.replies.pop(number) for number in list(numbers) if number in self.replies]


def node(agent, name="", reply=None):
    """A node that says who it is and replies the same parcel to everything else."""
    return lambda content: to_records(
        Parcel() if not from_records(content)[0].want else reply or parcel(), agent, name
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(records, "POLL", 0.01)
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for number in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(identity, f"_{number}", 1)


def test_parcels_reach_the_nodes_that_say_which_agents_they_are():
    grid = Grid({70: node(1, "north"), 50: node(0), 60: node(9)})
    courier = GridCourier(grid, 2)
    replies, why = courier.deliver({0: parcel(), 1: parcel()}, 5)
    assert (replies, why) == ({0: parcel(), 1: parcel()}, {})
    assert courier.names == {0: "agent 0", 1: "north"}
    assert all(message.metadata.ttl <= records.GREETING for message in grid.pushed)


def test_an_agent_without_a_node_is_not_waited_for_unless_patiently():
    courier = GridCourier(Grid({50: node(0)}), 2)
    assert courier.deliver({0: parcel(), 1: parcel()}, 30)[1] == {1: AWAY}
    assert courier.deliver({1: parcel()}, 0.1, patient=True) == ({}, {1: AWAY})


def test_late_and_failed_replies_are_named():
    grid = Grid({50: node(0), 70: node(1), 80: node(2)})
    courier = GridCourier(grid, 3)
    courier.deliver({0: parcel(), 1: parcel(), 2: parcel()}, 5)
    grid.nodes[50] = lambda _: None
    grid.nodes[70] = lambda _: OSError("out of memory")
    grid.nodes[80] = lambda _: flwr.RecordDict()
    _, why = courier.deliver({0: parcel(), 1: parcel(), 2: parcel()}, 0.2)
    reasons = {0: "late", 1: "error 2: out of memory", 2: "refused: no message of this app"}
    assert why == reasons


def test_a_restarted_node_with_another_id_takes_the_agents_place_and_a_second_one_does_not():
    grid = Grid({50: node(0, "first")})
    courier = GridCourier(grid, 1)
    courier.deliver({0: parcel()}, 5)
    grid.nodes[51] = node(0, "second")
    courier.deliver({0: parcel()}, 5)
    assert grid.pushed[-1].metadata.dst_node_id == 50
    del grid.nodes[50]
    courier = GridCourier(grid, 1)
    assert courier.deliver({0: parcel()}, 5)[0] == {0: parcel()}
    assert courier.names == {0: "second"}


def test_a_name_is_given_once():
    courier = GridCourier(Grid({50: node(0, "clinic"), 60: node(1, "clinic")}), 2)
    courier.deliver({0: parcel(), 1: parcel()}, 5)
    assert sorted(courier.names.values())[1] == "clinic"
    assert len(set(courier.names.values())) == 2
