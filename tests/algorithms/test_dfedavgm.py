"""DFedAvgM: its relation to DGD, its bias, and quantised messages."""

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_optima import PenalisedHead, distances, heterogeneous_task
from naive_methods import combination
from random_data import real_examples, seeded, weights
from random_data import task as draw_task
from running import advance, begin, lopsided_graph, run, streams

from fedsurf.algorithms.dfedavgm import DFedAvgM, quantise
from fedsurf.common.streams import Streams
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork

HEAD = SoftmaxHead(3, 3)


def naive_training(row, batches, step_size, momentum):
    """y_{k+1} = y_k − β ∇F(y_k) + μ (y_k − y_{k−1}) at one agent, a step for each batch."""
    before = row
    for batch in batches:
        moved = combination(
            (1 + momentum, row),
            (-momentum, before),
            (-step_size, naive.gradient(row, batch, 3)),
        )
        before, row = row, moved
    return row


def test_with_one_local_step_and_no_momentum_it_is_dgd_with_mixing_after_the_step():
    task, network = draw_task(3, agents=6), Network(lopsided_graph(), "metropolis")
    method = DFedAvgM(HEAD, 0.3, local_steps=1, momentum=0.0, batch_size=None)
    state = begin(method, task, network)
    for _ in range(3):
        before, state = state, advance(method, state, task, network)
        gradient = HEAD.gradient(before.weights, task.train)
        after = network.mix(before.weights - 0.3 * gradient)
        torch.testing.assert_close(state.weights, after)
        dgd = network.mix(before.weights) - 0.3 * gradient
        assert not torch.allclose(state.weights, dgd)
        # DGD mixes the weights only; the difference is the mixing of the steps.
        torch.testing.assert_close(after - dgd, 0.3 * (gradient - network.mix(gradient)))


def test_local_steps_bias_it_and_a_smaller_step_less():
    task, model = heterogeneous_task(), PenalisedHead(2, 3)
    ends = [
        distances(
            DFedAvgM(model, step_size, momentum=0.0, batch_size=None),
            task,
            Network(nx.cycle_graph(6), "metropolis"),
            int(5 / step_size),
        )
        for step_size in (0.04, 0.02, 0.01)
    ]
    for found in ends:
        assert found[-1] == pytest.approx(found[-5], rel=1e-3)  # it has settled
    assert ends[0][-1] / ends[1][-1] == pytest.approx(2, rel=0.3)
    assert ends[1][-1] / ends[2][-1] == pytest.approx(2, rel=0.3)


# Quantised


@given(seed=st.integers(0, 1000), bits=st.integers(2, 12), dtype=st.sampled_from([32, 64]))
def test_a_quantised_number_is_one_of_the_two_nearest_multiples(seed, bits, dtype):
    kind = torch.float32 if dtype == 32 else torch.float64
    values = weights(seed, 3, 40, kind)
    values[0] = 0.0
    rounded = quantise(values, bits, Streams(seed, range(3)))
    levels = 2 ** (bits - 1) - 1
    step = values.abs().amax(1, keepdim=True) / levels
    assert rounded.dtype == kind
    assert torch.equal(rounded[0], values[0])
    assert ((rounded - values).abs() <= step * (1 + 1e-4)).all()
    multiples = rounded[1:] / step[1:]
    torch.testing.assert_close(multiples, multiples.round(), rtol=0, atol=1e-3)
    assert multiples.abs().max() <= levels * (1 + 1e-5)


def test_rounding_errors_do_not_raise_a_number_above_the_highest_level():
    assert quantise(torch.ones(1, 20000), 16, Streams(0, [0])).max() < 1 + 1e-6


def test_quantising_is_unbiased():
    values = weights(1, 2, 8)
    draws = Streams(0, range(2))
    drawn = torch.stack([quantise(values, 3, draws.at(number)) for number in range(2000)])
    step = values.abs().amax(1, keepdim=True) / 3
    assert ((drawn.mean(0) - values).abs() < 4 * step / 2 / 2000**0.5).all()
    assert (drawn.std(0) > 0.1 * step).any()


def test_quantised_it_equals_a_loop_in_which_neighbours_add_up_the_messages():
    graph, task = lopsided_graph(), draw_task(4, agents=6)
    network = Network(graph, "metropolis")
    method = DFedAvgM(HEAD, 0.2, local_steps=2, momentum=0.5, batch_size=None, bits=4)
    state = begin(method, task, network)
    rows, examples = state.weights.tolist(), real_examples(task.train)
    # copies[i][j] are the weights of agent j (or i itself) as agent i knows them.
    copies = [{j: [0.0] * 12 for j in [i, *graph.neighbors(i)]} for i in range(6)]
    for round_ in range(4):
        state = advance(method, state, task, network)
        noise = streams(network, step=round_).at("rounding").uniform(12).tolist()
        sent = []
        for i, row in enumerate(rows):
            trained = naive_training(row, [examples[i]] * 2, 0.2, 0.5)
            difference = combination((1, trained), (-1, copies[i][i]))
            step = max(map(abs, difference)) / 7
            sent.append(
                [
                    step * max(-7, min(7, (value / step + chance) // 1))
                    for value, chance in zip(difference, noise[i], strict=True)
                ]
            )
        rows = []
        for i, known in enumerate(copies):
            for j in known:
                known[j] = combination((1, known[j]), (1, sent[j]))
            shares = [naive.shift_entry(graph, i, j, "metropolis") for j in known]
            rows.append(combination(*zip(shares, known.values(), strict=True)))
    torch.testing.assert_close(state.weights, torch.tensor(rows, dtype=torch.float64))


@pytest.mark.parametrize("make", [lopsided_graph, None])
def test_with_many_bits_it_is_near_the_unquantised_one(make):
    task = draw_task(5, agents=6, train=20)
    ends = {}
    for bits in (None, 32, 12, 4):
        network = Network(make(), "metropolis") if make else StarNetwork(6, None, seeded(0))
        method = DFedAvgM(HEAD, 0.1, batch_size=None, bits=bits)
        ends[bits] = run(method, task, network, 20).weights
    apart = [float((ends[bits] - ends[None]).abs().max()) for bits in (32, 12, 4)]
    assert apart[0] < 1e-7
    assert apart[0] < apart[1] / 100 < 1e-4
    assert apart[1] < apart[2] < 0.5


@pytest.mark.parametrize(
    ("bits", "floats"), [(None, 12), (32, 13), (16, 7), (8, 4), (4, 3), (3, 3), (2, 2)]
)
def test_fewer_bits_send_fewer_floats(bits, floats):
    task, network = draw_task(6), Network(nx.cycle_graph(4))
    run(DFedAvgM(HEAD, batch_size=2, bits=bits), task, network, 3)
    assert network.rounds == 3
    assert network.link_floats.tolist() == [3 * floats] * 8


def test_in_a_star_quantising_requires_all_agents_to_report():
    task = draw_task(7)
    method, plain = DFedAvgM(HEAD, batch_size=2, bits=8), DFedAvgM(HEAD, batch_size=2)
    partly = StarNetwork(4, 3, seeded(0), "metropolis")
    with pytest.raises(ValueError, match=r"^bits: got 8 on a network with faults"):
        begin(method, task, partly)
    assert run(plain, task, partly, 2).weights.isfinite().all()
    whole = StarNetwork(4, 4, seeded(0), "metropolis")
    run(method, task, whole, 2)
    assert whole.floats == 2 * 8 * 4


def test_it_takes_six_local_steps_by_default_and_its_name_has_the_bits():
    assert DFedAvgM(HEAD).local_steps == 6
    assert DFedAvgM(HEAD).name == "DFedAvgM"
    assert DFedAvgM(HEAD, bits=8).name == "DFedAvgM (8 bits)"
