"""Rounding of messages: against a naive loop, without bias, to the same bits everywhere; and bytes."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from random_data import seeded, weights

from fedsurf.common.streams import Streams
from fedsurf.network import (
    FaultConfig,
    GraphConfig,
    Network,
    NetworkConfig,
    StarNetwork,
    TimeVaryingNetwork,
    make_network,
    with_faults,
)
from fedsurf.network.engines.messages import HEADER_BYTES, Kind, Message, Slot
from fedsurf.network.operators import shift_weights
from fedsurf.network.wire import BLOCK, LARGEST, SECTION_BYTES, Form, Parts, Sections

ROUNDED = ("float16", "int8")
both = pytest.mark.parametrize("wire", ROUNDED)
LAYOUT = [Sections(1, 70), Sections(5, 3, interleaved=True), Sections(2, 33), Sections(4, 1)]
NUMBERS = 70 + 15 + 66 + 4


def blocks_of(layout):
    """Give the places of the numbers of every block in a row."""
    start = 0
    for repeats, size, interleaved in layout:
        for section in range(repeats) if size > 1 else ():
            places = [start + section * size + n for n in range(size)]
            if interleaved:
                places = [start + n * repeats + section for n in range(size)]
            width = math.ceil(size / math.ceil(size / BLOCK))
            yield from (places[first : first + width] for first in range(0, size, width))
        start += repeats * size


def naive(row, draws, layout, wire):
    """Round a row number by number."""
    found = row.copy()
    for places in blocks_of(layout):
        largest = max(abs(row[place]) for place in places)
        if not largest:
            continue
        if wire == "int8":
            step = 2.0 ** math.ceil(math.log2(largest / 127))
        else:
            step = 2.0 ** (math.floor(math.log2(largest)) - 14)
            if float(np.float16(largest / step)) == 2.0**15:
                step *= 2
        for place in places:
            multiple = row[place] / step
            below = math.floor(multiple)
            up = draws[place] < multiple - below
            found[place] = step * (below + up if wire == "int8" else float(np.float16(multiple)))
    return found


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_that_of_a_loop(wire, dtype):
    rows = weights(0, 4, NUMBERS).float().to(dtype)
    rows[1, 3], rows[2, :70] = 1e6, 0
    streams = Streams(3, [7, 1, 5, 2], "rows", 2)
    found = Form(wire, LAYOUT).rounded(rows, streams)
    draws = streams.uniform(NUMBERS).float().double().numpy()
    for row, drawn, own in zip(rows.double().numpy(), draws, found.double().numpy(), strict=True):
        np.testing.assert_array_equal(own, naive(row, drawn, LAYOUT, wire))
    assert found.dtype == dtype
    assert torch.equal(found[:, -4:], rows[:, -4:])


def test_rounding_to_whole_multiples_has_no_bias():
    form, row = Form("int8", [Sections(1, 40)]), weights(1, 1, 40)
    many = torch.cat([form.rounded(row, Streams(0, [3], number)) for number in range(4000)])
    step = float((many[0] - many[1]).abs().max())
    assert (many - row).abs().max() <= step
    error = (many.mean(0) - row[0]).abs() / (many.std(0) / 4000**0.5).clamp(min=1e-3 * step)
    assert error.max() < 4.5


@both
@settings(max_examples=60, deadline=None)
@given(
    rows=arrays.arrays(
        np.float32, st.tuples(st.integers(0, 3), st.just(NUMBERS)), elements=st.floats(width=32)
    ),
    seed=st.integers(0, 9),
)
def test_what_is_decoded_is_what_was_rounded_bit_for_bit(wire, rows, seed):
    form = Form(wire, LAYOUT)
    sent = form.rounded(torch.from_numpy(rows), Streams(seed, range(len(rows))))
    raw = form.encoded(sent.numpy())
    assert len(raw) == len(rows) * form.row_bytes
    found = form.decoded(raw, len(rows))
    np.testing.assert_array_equal(found, sent.numpy())
    assert not np.isinf(found).any()
    finite = np.isfinite(rows).all(1)
    assert np.isfinite(found[finite]).all()
    again = form.rounded(sent, Streams(seed + 1, range(len(rows))))
    np.testing.assert_array_equal(again.numpy(), sent.numpy())


@both
def test_odd_rows(wire):
    form = Form(wire, [Sections(1, 100)])
    streams = Streams(0, [1])
    for values in (torch.zeros(1, 100), torch.full((1, 100), 3.0), torch.full((1, 100), -0.1)):
        found = form.rounded(values, streams)
        torch.testing.assert_close(found, values, rtol=1 / 64, atol=0)
        assert torch.equal(found[0, :1] == 0, values[0, :1] == 0)
    assert form.rounded(torch.zeros(0, 100), streams[:0]).shape == (0, 100)
    assert Form(wire, [Sections(1, 0)]).rounded(torch.zeros(1, 0), streams).shape == (1, 0)
    large = torch.tensor([[1e300, -1e300, 1e38, 1.0]], dtype=torch.float64)
    found = Form(wire, [Sections(1, 4)]).rounded(large, streams)
    assert found.isfinite().all()
    assert found[0, 0] == -found[0, 1] == pytest.approx(LARGEST, rel=1e-3)
    for wrong in (torch.nan, torch.inf):  # a run that diverges does so with any wire
        values = torch.ones(1, 100)
        values[0, 3] = wrong
        assert not form.rounded(values, streams).isfinite().all()


@both
def test_draws_belong_to_an_agent_and_a_message(wire):
    form, rows = Form(wire, [Sections(1, 50)]), weights(2, 3, 50).float()
    every = form.rounded(rows, Streams(0, [4, 5, 6], "rows", 1))
    assert torch.equal(form.rounded(rows[2:], Streams(0, [6], "rows", 1)), every[2:])
    other = form.rounded(rows, Streams(0, [4, 5, 6], "rows", 2))
    assert torch.equal(other, every) == (wire == "float16")


def graphs(wire):
    ring, line = nx.cycle_graph(6), nx.path_graph(6)
    yield Network(ring, "metropolis", wire=wire)
    yield TimeVaryingNetwork([ring, line], "metropolis", wire=wire)
    yield with_faults(Network(ring, wire=wire), FaultConfig(loss=1e-12, leave=1e-12), seeded(0))


@both
def test_neighbours_get_rounded_values_and_an_agent_has_its_own(wire):
    values = weights(3, 6, 80)
    for network in graphs(wire):
        network.reset(seeded(4))
        sent = network.form([values]).rounded(values, network.streams(network.ids).at("rows", 0))
        assert 0 < (sent - values).abs().max() < 0.1
        matrix = network.operator(torch.float64)
        own = matrix.diagonal()[:, None]
        torch.testing.assert_close(network.mix(values), own * values + matrix @ sent - own * sent)
        assert network.wire == wire
        # Values that their algorithm sends in fewer bits are not rounded again.
        again = network.mix(values, floats=10)
        exact = next(graphs("float32")) if not isinstance(network, TimeVaryingNetwork) else None
        if exact is not None:
            torch.testing.assert_close(again, exact.mix(values))


@both
def test_a_stale_agent_sends_what_it_sent_before(wire):
    inner = Network(nx.path_graph(2), wire=wire)
    network = with_faults(inner, FaultConfig(stale=2), seeded(0))
    network.reset(seeded(1))
    first, second = weights(5, 2, 40), weights(6, 2, 40)
    streams = network.streams(network.ids).at("rows", 0)
    sent = network.form([first]).rounded(first, streams)
    network.mix(first)
    torch.testing.assert_close(network.mix(second), (second + sent.flip(0)) / 2)


@both
def test_downloads_and_uploads_are_rounded(wire):
    star = StarNetwork(5, 3, seeded(0), wire=wire)
    model, called = weights(7, 1, 40), star.call()
    got = star.download(model, called)
    assert torch.equal(got, got[:1].expand(3, 40))
    assert 0 < (got[:1] - model).abs().max() < 0.1
    again = star.download(model, called)
    assert torch.equal(got, again) == (wire == "float16")  # another message
    replies = weights(8, 3, 40)
    sent = star.upload(replies, called)
    assert 0 < (sent - replies).abs().max() < 0.1
    form = Form(wire, [Sections(1, 40)])
    assert star.bytes == 9 * form.message_bytes
    assert star.floats == 9 * 40


def test_float32_leaves_the_values_as_they_are():
    values = weights(9, 6, 5)
    network = Network(nx.cycle_graph(6))
    own, links = shift_weights(network.links, 6, "adjacency")
    wanted = own[:, None] * values
    wanted = wanted.index_add(0, network.links[1], links[:, None] * values[network.links[0]])
    torch.testing.assert_close(network.mix(values), wanted, rtol=0, atol=1e-15)


@both
def test_derivatives_pass_as_if_nothing_was_rounded(wire):
    values = weights(10, 6, 40).requires_grad_()
    slopes = []
    for kind in ("float32", wire):
        network = Network(nx.cycle_graph(6), "metropolis", wire=kind)
        mixed = network.mix(network.mix(values))
        slopes += torch.autograd.grad((mixed * weights(11, 6, 40)).sum(), values)
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("wire", ["float32", *ROUNDED])
@pytest.mark.parametrize("shapes", [[(650,)], [(2, 65)], [(65, 1), (40,), (0,)]])
def test_bytes_of_a_round_are_those_of_encoded_messages(wire, shapes):
    network = Network(nx.cycle_graph(6), wire=wire)
    parts = [torch.randn(6, *shape) for shape in shapes]
    network.mix_parts(*parts)
    form = network.form(parts)
    row = form.rounded(torch.cat([p.flatten(1) for p in parts], 1), Streams(0, range(6)))[:1]
    raw = Message(Kind.ROWS, 0, Slot(0, 0), row.numpy(), form=form).encoded(bytes(16))
    assert network.link_bytes.tolist() == [len(raw)] * 12
    assert network.bytes == 12 * len(raw)
    network.mix(torch.zeros(6, 100), floats=7)
    assert network.link_bytes.tolist() == [len(raw) + HEADER_BYTES + 4 * 7] * 12
    state = network.state()
    again = Network(nx.cycle_graph(6), wire=wire)
    again.restore(state)
    assert torch.equal(again.link_bytes, network.link_bytes)
    network.reset()
    assert network.bytes == 0


def test_bytes_of_int8():
    form = Form("int8", [Sections(65, 10, interleaved=True), Sections(31, 1), Sections(1, 100)])
    assert form.row_bytes == 65 * 11 + 4 * 31 + 104
    assert form.message_bytes == HEADER_BYTES + 3 * SECTION_BYTES + form.row_bytes


def test_sections_hold_a_row():
    with pytest.raises(ValueError, match=r"^layout: got sections of 30 numbers, but a row has 40"):
        Parts([torch.zeros(2, 40)], [Sections(1, 30)])


def test_a_configuration_has_a_wire():
    for kind in ("ring", "star"):
        config = NetworkConfig(GraphConfig(kind), wire="int8")
        assert make_network(config, 6, seeded(0)).wire == "int8"
    with pytest.raises(ValueError, match=r"^wire: got 'int4'"):
        Network(nx.cycle_graph(3), wire="int4")
