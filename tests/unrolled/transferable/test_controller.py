"""The controller: knobs and gates against plain sums, and the start from which it is trained."""

import math

import naive_transfer
import pytest
import torch
from random_data import seeded, weights

from fedsurf.unrolled.transferable.controller import (
    CLASS_SIZE,
    CONTEXT_SIZE,
    CONTROLS,
    GRAPH_CALLS,
    LENGTHS,
    MIXING,
    SCHEDULE_SIZE,
    SHARES_SIZE,
    Controller,
    schedule,
)
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE

AGENTS, CLASSES = 4, 3
SHARE = torch.tensor([[1.0], [0.5], [0.1], [1.0]], dtype=torch.float64)
HEARD = torch.tensor([[0.1], [0.2], [1.0], [0.03]], dtype=torch.float64)


@pytest.fixture
def controller():
    return Controller(16, 12, seeded(0)).double().requires_grad_(False)


def named(lengths, mixing):
    """Each knob by its name, `[agents]`."""
    return dict(zip(CONTROLS, torch.cat([lengths, mixing], 1).unbind(1), strict=True))


@pytest.mark.parametrize(("step", "steps"), [(0, 1), (0, 20), (7, 20), (19, 20), (39, 40)])
@pytest.mark.parametrize("heard", [1, GRAPH_CALLS, 100])
def test_the_schedule_equals_its_formula(step, steps, heard):
    found = schedule(step, steps, heard, torch.zeros(1, dtype=torch.float64))
    assert found.shape == (SCHEDULE_SIZE,)
    assert found.tolist() == pytest.approx(naive_transfer.schedule(step, steps, heard), rel=1e-12)
    assert found.isfinite().all()


def test_knobs_and_gates_equal_plain_sums(controller):
    for value in controller.parameters():
        value += 0.5 * torch.randn(value.shape, generator=seeded(1), dtype=torch.float64)
    when, signals = weights(2, 1, SCHEDULE_SIZE)[0], weights(3, AGENTS, DESCRIPTION_SIZE)
    about = torch.randn(AGENTS, CLASSES, CLASS_SIZE, generator=seeded(4), dtype=torch.float64)
    lengths, mixing, context = controller.controls(when, signals, SHARE, HEARD)
    knobs = named(lengths, mixing)
    gate, offset = controller.gates(about, context)
    assert list(knobs) == list(CONTROLS)
    assert gate.shape == offset.shape == (AGENTS, CLASSES, 1)
    for agent in range(AGENTS):
        values = naive_transfer.perceptron(
            controller.round_in,
            controller.round_out,
            [
                *when.tolist(),
                *signals[agent].tolist(),
                math.log(float(SHARE[agent])) / 2,
                math.log(float(HEARD[agent])) / 3,
            ],
        )
        for name, value in zip(CONTROLS, values, strict=False):
            assert knobs[name].shape == (AGENTS,)
            assert float(knobs[name][agent]) == pytest.approx(value)
        assert context[agent].tolist() == pytest.approx(values[len(CONTROLS) :])
        for c in range(CLASSES):
            opening, weight = naive_transfer.perceptron(
                controller.class_in,
                controller.class_out,
                about[agent, c].tolist() + context[agent].tolist(),
            )
            assert float(gate[agent, c]) == pytest.approx(2 / (1 + math.exp(-opening)))
            assert float(offset[agent, c]) == pytest.approx(weight)


def test_as_drawn_it_is_close_to_its_start(controller):
    when = torch.zeros(SCHEDULE_SIZE, dtype=torch.float64)
    lengths, mixing, context = controller.controls(
        when, weights(5, AGENTS, DESCRIPTION_SIZE), torch.ones_like(SHARE), HEARD
    )
    knobs = named(lengths, mixing)
    for name, start in CONTROLS.items():
        assert (knobs[name] - start).abs().max() < 0.3, name
    about = torch.zeros(AGENTS, CLASSES, CLASS_SIZE, dtype=torch.float64)
    gate, offset = controller.gates(about, context)
    assert (gate - 1).abs().max() < 0.2
    assert (offset - 0.5).abs().max() < 0.2


def test_the_same_generator_draws_the_same_parameters_and_no_global_one_is_touched():
    before = torch.random.get_rng_state()
    one, two, other = (Controller(16, 12, seeded(seed)) for seed in (1, 1, 2))
    torch.random.set_rng_state(before)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.round_in.weight, other.round_in.weight)


def test_parameters_serve_inputs_of_any_precision(controller):
    single = Controller(16, 12, seeded(0))
    when, signals = weights(2, 1, SCHEDULE_SIZE)[0], weights(3, AGENTS, DESCRIPTION_SIZE)
    found = single.controls(when, signals, SHARE, HEARD)
    expected = controller.controls(when, signals, SHARE, HEARD)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other)


def test_its_sizes_are_those_that_it_is_made_of():
    assert len(LENGTHS) + len(MIXING) == len(CONTROLS) == 11
    made = Controller(5, 7, seeded(0))
    shapes = {name: tuple(value.shape) for name, value in made.named_parameters()}
    assert shapes == {
        "round_in.weight": (5, SCHEDULE_SIZE + DESCRIPTION_SIZE + SHARES_SIZE),
        "round_in.bias": (5,),
        "round_out.weight": (len(CONTROLS) + CONTEXT_SIZE, 5),
        "round_out.bias": (len(CONTROLS) + CONTEXT_SIZE,),
        "class_in.weight": (7, CLASS_SIZE + CONTEXT_SIZE),
        "class_in.bias": (7,),
        "class_out.weight": (2, 7),
        "class_out.bias": (2,),
    }
