"""The wire format: what was sent arrives, and everything else is refused without making memory for it."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.network.engines.arrivals import AHEAD, MAX_ANSWER_SLOTS, MAX_STORED, Arrivals
from fedsurf.network.engines.messages import (
    HEADER_BYTES,
    Kind,
    Message,
    RefusedError,
    Slot,
    decoded,
    federation_digest,
)
from fedsurf.network.wire import Form, Sections

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
    here.receive("b", rows(5000))
    here.receive("c", rows(1, sender=2))
    assert not here.left_behind()
    here.receive("c", rows(3, sender=2))
    assert here.left_behind()


LAYOUT = [Sections(1, 40), Sections(3, 1), Sections(2, 2, interleaved=True)]
WIDE = np.full((2, 47), 3.0, np.float32)


def rounded(wire, values=WIDE, layout=LAYOUT):
    return Message(Kind.ROWS, 1, Slot(0, 0), values, form=Form(wire, layout)).encoded(DIGEST)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_rounded_numbers_arrive_as_they_were_sent(wire):
    found = decoded(rounded(wire), DIGEST, wire)
    np.testing.assert_array_equal(found.values, WIDE)
    assert list(found.form.layout) == LAYOUT
    here = Arrivals(["a", "b", "c"], [1], DIGEST, 10_000, wire=wire)
    here.receive("b", rounded(wire))
    np.testing.assert_array_equal(here.take(1, Kind.ROWS, Slot(0, 0), WIDE.shape), WIDE)
    assert here.round_bytes_received == here.bytes_received == {"b": len(rounded(wire))}
    answer = Message(Kind.ANSWER, 1, Slot(0, 0), WIDE).encoded(DIGEST)
    here.receive("b", answer)
    assert here.bytes_received["b"] - here.round_bytes_received["b"] == len(answer)


@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
def test_a_message_of_another_wire_is_refused(wire):
    for other in {"float16", "int8"} - {wire}:
        with pytest.raises(RefusedError, match="another wire"):
            decoded(rounded(other), DIGEST, wire)
    raw = bytearray(rounded("int8"))
    raw[5] = Kind.ANSWER
    with pytest.raises(RefusedError, match="unknown kind or type"):
        decoded(bytes(raw), DIGEST, "int8")


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 41, 46])
def test_rounded_numbers_that_are_not_finite_are_refused(wire, wrong, place):
    values = WIDE.copy()
    values[1, place] = wrong
    with pytest.raises(RefusedError, match="NaN or infinite"):
        decoded(rounded(wire, values), DIGEST, wire)


@pytest.mark.parametrize("exponent", [-128, 127])
def test_an_exponent_that_makes_numbers_infinite_is_refused(exponent):
    raw = bytearray(rounded("int8", layout=[Sections(1, 47)]))
    raw[HEADER_BYTES + 9] = exponent % 256
    with pytest.raises(RefusedError, match="NaN or infinite"):
        decoded(bytes(raw), DIGEST, "int8")


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize(
    "claims", [(2**31, 2**31), (2**32 - 1, 1), (0, 2**32 - 1), (2**32 - 1, 0), (47, 1), (1, 2**20)]
)
def test_no_memory_is_made_for_sections_that_a_message_claims(wire, claims):
    raw = rounded(wire, layout=[Sections(1, 47)])
    for rows_and_columns in ((2, 47), (2**32 - 1, 2**32 - 1), (1, claims[0] * claims[1] % 2**32)):
        table = struct.pack("<II?", *claims, False)
        forged = raw[: HEADER_BYTES - 8] + struct.pack("<II", *rows_and_columns) + table
        tracemalloc.start()
        with pytest.raises(RefusedError):
            decoded(forged + raw[HEADER_BYTES + 9 :], DIGEST, wire)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


@given(st.binary(max_size=200), st.integers(0, 110))
def test_noise_in_place_of_rounded_numbers_is_refused_or_finite(noise, kept):
    try:
        found = decoded(rounded("int8")[:kept] + noise, DIGEST, "int8")
    except RefusedError:
        return
    assert np.isfinite(found.values).all()


def test_a_message_has_at_most_255_kinds_of_sections():
    with pytest.raises(ValueError, match=r"^layout: got 300 entries"):
        rounded("int8", np.zeros((1, 600), np.float32), [Sections(1, 2)] * 300)
