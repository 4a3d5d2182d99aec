"""The wire format: what was sent arrives, and everything else is refused without making memory for it."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.network.engines.arrivals import AHEAD, MAX_ANSWER_SLOTS, MAX_STORED, Arrivals
from fedsurf.network.engines.messages import (
    Kind,
    Message,
    RefusedError,
    Slot,
    decoded,
    federation_digest,
)

DIGEST = federation_digest("clinics", "1")
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


def arrivals(max_bytes=10_000):
    return Arrivals(["a", "b", "c"], [1], DIGEST, max_bytes)


def rows(round_, values=ROW, sender=1, kind=Kind.ROWS):
    return Message(kind, sender, Slot(0, round_), values).encoded(DIGEST)


@given(
    kind=st.sampled_from(Kind),
    numbers=st.tuples(*[st.integers(0, 2**16 - 1)] * 4),
    gone=st.frozensets(st.integers(0, 100)),
)
def test_a_message_arrives_as_it_was_sent(kind, numbers, gone):
    sender, run, round_, part = numbers
    sent = Message(kind, sender, Slot(run, round_, part), ROW, gone)
    found = decoded(sent.encoded(DIGEST), DIGEST)
    assert (found.kind, found.sender, found.slot, found.gone) == (kind, sender, sent.slot, gone)
    np.testing.assert_array_equal(found.values, ROW)


def test_an_answer_keeps_double_precision():
    values = np.array([[1 + 1e-12]])
    found = decoded(Message(Kind.ANSWER, 0, Slot(0, 0), values).encoded(DIGEST), DIGEST)
    assert found.values[0, 0] == values[0, 0]


@given(st.binary(max_size=200), st.integers(0, 80))
def test_bytes_of_others_are_refused(noise, kept):
    raw = rows(0)[:kept] + noise
    if raw[: len(rows(0))] != rows(0):
        with pytest.raises(RefusedError):
            decoded(raw, DIGEST)


def test_no_memory_is_made_for_what_a_header_claims():
    claim = rows(0, ROW[:0])[:-8] + struct.pack("<II", 2**14, 2**14)
    tracemalloc.start()
    with pytest.raises(RefusedError, match="size differs"):
        decoded(claim, DIGEST)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("sender", "raw", "reason"),
    [
        ("b", b"", "not a message"),
        ("b", rows(0, np.full((1, 1), np.inf, np.float32)), "NaN or infinite"),
        ("b", rows(0, sender=0), "another's name"),
        ("c", rows(0, sender=2), "not a neighbour"),
        ("b", rows(AHEAD + 1), "round too far ahead"),
        ("b", rows(0)[:-4], "size differs from its header"),
        ("b", None, "larger than agreed"),
        ("b", bytes(10_001), "larger than agreed"),
    ],
)
def test_what_is_refused_is_counted_by_sender_and_reason(sender, raw, reason):
    here = arrivals()
    here.receive(sender, raw)
    assert here.refused == {sender: {reason: 1}}
    assert here.take(1, Kind.ROWS, Slot(0, 0), ROW.shape) is None


def test_names_that_nobody_has_are_counted_together():
    here = arrivals()
    for number in range(100):
        here.receive(f"stranger-{number}", b"")
    assert here.refused == {"unknown": {"not a neighbour": 100}}


def test_a_row_of_another_shape_does_not_hide_the_right_one():
    here = arrivals()
    for raw in (rows(0, ROW[:1]), rows(0, ROW), rows(0, -ROW)):
        here.receive("b", raw)
    np.testing.assert_array_equal(here.take(1, Kind.ROWS, Slot(0, 0), ROW.shape), ROW)
    assert here.refused == {"b": {"another shape": 1}}


def test_what_is_kept_of_a_neighbour_is_bounded():
    here = arrivals(max_bytes=10**6)
    for number in range(1000):
        here.receive("b", rows(number % AHEAD, np.zeros((1, 1 + number), np.float32)))
        answer = Message(Kind.ANSWER, 2, Slot(0, number % AHEAD, number), ROW)
        here.receive("b", answer.encoded(DIGEST))
    assert len(here._stored[1]) == MAX_STORED
    assert len(here._answers) == MAX_ANSWER_SLOTS


def test_a_round_forgets_those_before():
    here = arrivals()
    here.receive("b", rows(0))
    here.receive("b", rows(1))
    here.advance(Slot(0, 1))
    assert here.take(1, Kind.ROWS, Slot(0, 0), ROW.shape) is None
    assert here.take(1, Kind.ROWS, Slot(0, 1), ROW.shape) is not None


def test_the_last_messages_of_a_far_round_are_used_by_who_skips_to_it():
    here = arrivals()
    for round_ in (8, 9, 10):
        here.receive("b", rows(round_))
    here.advance(Slot(0, 9))
    for round_, there in ((8, False), (9, True), (10, True)):
        found = here.take(1, Kind.ROWS, Slot(0, round_), ROW.shape)
        assert (found is not None) == there


def test_a_single_neighbour_that_claims_to_be_ahead_leaves_nobody_behind():
    here = Arrivals(["a", "b", "c"], [1, 2], DIGEST, 10_000)
    here.appeared(1)
    here.appeared(2)
    here.receive("b", rows(10**6))
    here.receive("c", rows(1, sender=2))
    assert not here.left_behind()
    here.receive("c", rows(3, sender=2))
    assert here.left_behind()
