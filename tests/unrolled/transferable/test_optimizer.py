"""Runs of the transferable layer against plain loops, their symmetries, locality and costs."""

import itertools
import math

import networkx as nx
import pytest
import random_data
import torch
from running import advance, begin, calls, lopsided_graph
from transferable_runs import (
    AGENTS,
    CLASSES,
    as_drawn,
    assert_same,
    changed,
    heads,
    loop_heads,
    make,
    network,
    optimizer,
    states,
)

from fedsurf.common.streams import Streams
from fedsurf.evaluation.run import run
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import FaultConfig, Network, StaleNetwork, StarNetwork, with_faults
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.config import MAX_ROUNDS
from fedsurf.unrolled.transferable.controller import SCHEDULE_SIZE
from fedsurf.unrolled.transferable.local import FeatureRangeError
from fedsurf.unrolled.transferable.optimizer import SHARED_ROUNDS
from fedsurf.unrolled.transferable.summaries import (
    MAX_WHOLE_FEATURES,
    SERVER_SKETCH_WIDTH,
    SKETCH_WIDTH,
)

SHAPES = [(70, 6), (66, 70), (20, 6), (5, 12)]


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"ease_rare": True}, {"weigh_agents": True}, {"scaling": "features"}]
)
@pytest.mark.parametrize(("features", "examples"), SHAPES)
def test_a_run_equals_a_loop_over_agents_and_neighbours(features, examples, options, masked, star):
    task = random_data.task(3, AGENTS, examples, 5, features, CLASSES, masked=masked)
    learned, rounds = optimizer(), 7 if "scaling" in options else 5
    found = heads(task, network(star=star), rounds, learned, **options)
    expected = loop_heads(task, learned, rounds, star=star, **options)
    assert expected.abs().max() > 0.01
    assert_same(found, expected)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("features", "examples"), [(20, 6), (5, 12)])
def test_a_run_with_mini_batches_equals_a_loop_over_their_examples(
    features, examples, masked, star
):
    task = random_data.task(3, AGENTS, examples, 5, features, CLASSES, masked=masked)
    learned, size = optimizer(), 4
    called = calls(AGENTS, 3, 4, 5) if star else [range(AGENTS)] * 5
    real = torch.ones(AGENTS, examples, dtype=torch.bool) if not masked else task.train.mask
    batches = []
    for number, agents in enumerate(called):
        keys = Streams(0, agents, "step", number // 2, "round", number).bits(examples)
        keys = [row[real[agent]].tolist() for agent, row in zip(agents, keys, strict=True)]
        batches.append([sorted(range(len(row)), key=row.__getitem__)[:size] for row in keys])
    found = heads(task, network(star=star), 5, learned, batch_size=size)
    assert_same(found, loop_heads(task, learned, 5, star=star, batches=batches))
    whole = heads(task, network(star=star), 5, learned)
    assert not torch.allclose(found, whole, rtol=0.01)
    # Batches of all examples are all examples, in another order.
    assert_same(heads(task, network(star=star), 5, learned, batch_size=examples), whole)


@pytest.mark.parametrize("star", [False, True])
def test_no_control_is_idle_at_the_parameters_of_these_tests(star):
    """Otherwise the loops above would agree whatever the control did."""
    task, learned = random_data.task(3, AGENTS, 6, 5, 20, CLASSES), optimizer()
    before = heads(task, network(star=star), 5, learned)
    controller = learned.server if star else learned.graph
    # κ is used over graphs only.
    idle = {7} if star else set()
    for place in range(14):
        controller.round_out.bias[place] += 0.1
        after = heads(task, network(star=star), 5, learned)
        controller.round_out.bias[place] -= 0.1
        moved = float((after - before).abs().max() / before.abs().max())
        assert moved < 1e-12 if place in idle else moved > 1e-5


def test_an_untrained_optimizer_learns_and_more_rounds_help():
    task = random_data.task(5, AGENTS, 10, 50, 12, CLASSES)
    learned = as_drawn()
    head = SoftmaxHead(12, CLASSES)
    for star in (False, True):
        loss = [
            float(
                head.pooled_loss(heads(task, network(star=star), rounds, learned), task.test).mean()
            )
            for rounds in (1, 5, 20)
        ]
        assert math.log(CLASSES) > loss[0] > loss[1] > loss[2]
        assert loss[2] < 0.5


@pytest.mark.parametrize("rounds", [1, 2, 5, 20, 40])
@pytest.mark.parametrize("features", [5, 32, 33, 65])
def test_a_run_takes_its_rounds_and_the_floats_of_its_messages(rounds, features):
    task = random_data.task(7, AGENTS, 6, 3, features, CLASSES)
    head, sums, progress = (features + 1) * CLASSES, CLASSES + 7, CLASSES + 4

    def moments(width):
        half = features * (features + 1) // 2
        return features + (
            features * width if features > max(MAX_WHOLE_FEATURES, 2 * width) else half
        )

    over = network()
    weights = heads(task, over, rounds, optimizer(size=0.0))
    assert over.rounds == rounds
    assert weights.isfinite().all()
    each = rounds * (head + sums + progress) + min(rounds, SHARED_ROUNDS) * moments(SKETCH_WIDTH)
    assert over.link_floats.tolist() == [each] * (2 * lopsided_graph().number_of_edges())
    server = network(star=True)
    weights = heads(task, server, rounds, optimizer(size=0.0))
    assert server.rounds == rounds
    assert weights.isfinite().all()
    # Three agents are called in a round; a message goes down to each and up again, with a, b and e.
    message = head + sums + progress + moments(SERVER_SKETCH_WIDTH)
    assert server.floats == rounds * 3 * (2 * message + 3)


@pytest.mark.parametrize(("rounds", "layers"), [(1, 1), (2, 1), (5, 3), (20, 10), (21, 11)])
def test_a_layer_has_two_rounds_and_the_last_one_the_rest(rounds, layers):
    task, over = random_data.task(8, AGENTS), network()
    algorithm = make(task, rounds)
    assert algorithm.steps == layers
    after = [state.rounds for state in states(algorithm, task, over)]
    assert after == [*range(0, rounds, 2), rounds]
    last = states(algorithm, task, over)[-1]
    assert last.steps == layers
    with pytest.raises(ValueError, match=rf"^state: got one after {rounds} rounds"):
        advance(algorithm, last, task, over)


class Listening(Network):
    """A network that records all messages."""

    def __init__(self, graph):
        super().__init__(graph, "metropolis")
        self.sent = []

    def exchange(self, values, sent, losses, floats):
        self.sent.append(torch.cat([part.flatten(1) for part in sent], 1))
        return super().exchange(values, sent, losses, floats)


def other_data_at(task, agent):
    """Return the task with other features and labels at one agent."""

    def change(x, y, mask):
        x, y = x.clone(), y.clone()
        x[agent] = -2 * x[agent] + 1
        y[agent] = (y[agent] + 1) % CLASSES
        return x, y, mask

    return changed(task, change)


@pytest.mark.parametrize(("features", "examples"), [(20, 6), (5, 12)])
def test_data_influence_other_agents_no_sooner_than_messages_arrive(features, examples):
    graph, rounds = nx.path_graph(AGENTS), 7
    task = random_data.task(9, AGENTS, examples, 3, features, CLASSES)
    learned = optimizer()
    sent = []
    for one in (task, other_data_at(task, 1)):
        over = Listening(graph)
        heads(one, over, rounds, learned)
        sent.append(over.sent)
    assert len(sent[0]) == rounds
    for count, (message, other) in enumerate(zip(*sent, strict=True)):
        for agent in range(AGENTS):
            # A message of round `count` knows what was sent in the rounds before it.
            heard = nx.shortest_path_length(graph, 1, agent) <= count
            assert torch.equal(message[agent], other[agent]) == (not heard), (count, agent)


@pytest.mark.parametrize("options", [{}, {"weigh_agents": True}])
def test_heads_of_stale_agents_are_those_of_the_round_before(options):
    """Heads stay aligned although messages get shorter after the first rounds."""
    task, sent = random_data.task(14, AGENTS, 6, 3, features=16, classes=2), []

    class Watched(Network):
        def exchange(self, values, late, losses, floats):
            sent.append((values, late))
            return super().exchange(values, late, losses, floats)

    over = StaleNetwork(Watched(lopsided_graph(), "metropolis"), 2, random_data.seeded(5))
    states(optimizer().on(SoftmaxHead(16, 2), 9, "features", **options), task, over)
    assert len({len(values) for values, _ in sent}) == 1, "a head has one place in all messages"
    stale = over.stale_agents
    for (before, _), (_, late) in itertools.pairwise(sent):
        torch.testing.assert_close(late[0][stale], before[0][stale])


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("features", "examples"), [(20, 6), (5, 12)])
def test_permuting_classes_permutes_the_heads(features, examples, star):
    order = torch.tensor([2, 0, 1])  # class c is now called order[c]
    task = random_data.task(2, AGENTS, examples, 3, features, CLASSES, masked=True)
    renamed = changed(task, lambda x, y, mask: (x, order[y] * mask, mask))
    one, other = (
        heads(each, network(star=star)).reshape(AGENTS, features + 1, CLASSES)
        for each in (task, renamed)
    )
    assert not torch.allclose(one, other)
    torch.testing.assert_close(one, other[:, :, order])


def without_padding(x, mask):
    return x if mask is None else x * mask[:, :, None]


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("features", "examples"), SHAPES)
def test_origin_and_common_unit_of_the_features_do_not_matter(features, examples, star):
    task = random_data.task(3, AGENTS, examples, 4, features, CLASSES, masked=True)
    shift = 5 * random_data.weights(0, 1, features)[0]
    other = changed(task, lambda x, y, mask: (without_padding(1e3 * x + shift, mask), y, mask))
    head = SoftmaxHead(features, CLASSES)
    one, two = (
        head.logits(heads(each, network(star=star)), each.test.x)[task.test.mask]
        for each in (task, other)
    )
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("star", [False, True])
def test_turning_features_that_are_not_sketched_turns_the_heads(star):
    task = random_data.task(4, AGENTS, 8, 4, 5, CLASSES)
    turn = torch.linalg.qr(random_data.weights(1, 5, 5)).Q
    other = changed(task, lambda x, y, mask: (x @ turn, y, mask))
    head = SoftmaxHead(5, CLASSES)
    one, two = (head.logits(heads(each, network(star=star)), each.test.x) for each in (task, other))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("features", "examples"), [(20, 6), (5, 12)])
def test_padding_does_not_matter(features, examples, star):
    task = random_data.task(5, AGENTS, examples, 3, features, CLASSES, masked=True)
    expected = heads(task, network(star=star))
    random = random_data.seeded(0)

    def filled(x, y, mask):
        noise = 100 * torch.randn(x.shape, generator=random, dtype=x.dtype)
        return torch.where(mask[:, :, None], x, noise), torch.where(mask, y, 2), mask

    torch.testing.assert_close(heads(changed(task, filled), network(star=star)), expected)

    def longer(x, y, mask):
        # Twenty more places: what had fewer examples than features has more of them now.
        return (
            torch.cat([x.new_zeros(AGENTS, 20, features), x], 1),
            torch.cat([y.new_zeros(AGENTS, 20), y], 1),
            torch.cat([mask.new_zeros(AGENTS, 20), mask], 1),
        )

    torch.testing.assert_close(heads(changed(task, longer), network(star=star)), expected)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("features", "examples"), SHAPES)
def test_single_and_double_precision_agree(features, examples, star):
    task = random_data.task(8, AGENTS, examples, 4, features, CLASSES, masked=True)
    learned = optimizer(size=0.2, dtype=torch.float32)
    rows = [
        heads(task.to(dtype), network(star=star), 10, learned).double()
        for dtype in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(*rows, rtol=0, atol=1e-3 * float(rows[1].abs().max()))


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("examples", [1, 6])
@pytest.mark.parametrize("features", [1, 4, 20])
@pytest.mark.parametrize("star", [False, True])
def test_the_smallest_federations_run(agents, classes, examples, features, star):
    task = random_data.task(9, agents, examples, 3, features, classes)
    over = Network(nx.path_graph(agents), "metropolis")
    if star:
        over = StarNetwork(agents, 1, random_data.seeded(0))
    found = heads(task, over, 7)
    assert found.shape == (agents, (features + 1) * classes)
    assert found.isfinite().all()
    if classes == 1:
        assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("unit", [1e-16, 1e-12, 1e-8, 1e-4, 1e4, 1e8, 1e12, 1e16])
def test_features_may_have_very_small_and_very_large_units(unit, star):
    task = random_data.task(12, AGENTS, 8, 5, 20, CLASSES, dtype=torch.float32)
    other = changed(task, lambda x, y, mask: (unit * x, y, mask))
    learned, head = optimizer(dtype=torch.float32), SoftmaxHead(20, CLASSES)
    found, expected = (
        head.logits(heads(each, network(star=star), 6, learned), each.test.x)
        for each in (other, task)
    )
    assert found.isfinite().all()
    if 1e-8 <= unit <= 1e8:
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_agents_with_one_class_each_learn_all_of_them():
    classes, agents = 4, 12
    means = 3 * torch.eye(classes, 20, dtype=torch.float64)
    y = (torch.arange(agents) % classes)[:, None].expand(-1, 8)
    x = means[y] + torch.randn(agents, 8, 20, generator=random_data.seeded(0), dtype=torch.float64)
    part = Examples(x, y)
    task = Task(part, part, classes)
    over = Network(nx.circulant_graph(agents, [1, 2]), "metropolis")
    found = SoftmaxHead(20, classes).pooled_accuracy(heads(task, over, 20, as_drawn()), part)
    assert found.min() > 0.9


FAULTS = {
    "stale": FaultConfig(stale=3),
    "lossy": FaultConfig(loss=0.4),
    "lossy, kept": FaultConfig(loss=0.4, weights="kept-by-receiver"),
    "leaving": FaultConfig(leave=0.3),
    "everything": FaultConfig(stale=2, loss=0.3, leave=0.2),
}


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_survived(faults, star):
    task = random_data.task(11, AGENTS, 8, 30, 18, CLASSES, masked=True, dtype=torch.float32)
    over = with_faults(network(star=star), faults, random_data.seeded(2))
    head = SoftmaxHead(18, CLASSES)
    for rounds in (5, 40):
        over.reset(random_data.seeded(3))
        found = heads(task, over, rounds, as_drawn())
        assert over.rounds == rounds
        assert found.isfinite().all()
        assert head.pooled_loss(found, task.test).max() < math.log(CLASSES)


def loss_of(learned, task, *, star, rounds=6, **options):
    found = heads(task, network(star=star), rounds, learned, **options)
    return SoftmaxHead(task.features, CLASSES).pooled_loss(found, task.test).mean()


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_derivatives_reach_every_parameter(star, batch_size):
    task = random_data.task(12, AGENTS, 6, 5, 20, CLASSES, masked=True)
    learned = optimizer().requires_grad_()
    loss_of(learned, task, star=star, batch_size=batch_size).backward()
    used, other = (learned.server, learned.graph) if star else (learned.graph, learned.server)
    assert all(value.grad is None for value in other.parameters())
    for name, value in used.named_parameters():
        dead = value.grad == 0
        if name == "round_in.weight":
            # Without mini-batches, agents always fit to all of their examples.
            assert dead[:, -2].all() == (batch_size is None)
            dead = dead.clone()
            dead[:, -2] = False
        if name == "round_in.weight" and not star:
            # Over a graph the number of called agents is constant.
            assert dead[:, SCHEDULE_SIZE - 1].all()
            dead[:, SCHEDULE_SIZE - 1] = False
        if name.startswith("round_out") and star:
            # κ is of graphs only.
            assert dead[7].all()
            dead = dead.clone()
            dead[7] = False
        assert not dead.any(), name


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("features", "examples"), [(20, 6), (5, 12)])
def test_derivatives_are_those_of_finite_differences(features, examples, star):
    task = random_data.task(13, AGENTS, examples, 5, features, CLASSES, masked=True)
    learned = optimizer().requires_grad_()
    loss_of(learned, task, star=star).backward()
    controller = learned.server if star else learned.graph
    places = [
        (controller.round_in.weight, (2, 9)),
        (controller.round_out.bias, (0,)),
        (controller.round_out.bias, (9,)),
        (controller.class_in.weight, (1, 3)),
        (controller.class_out.bias, (1,)),
    ]
    tiny = 1e-5
    for value, place in places:
        around = []
        with torch.no_grad():
            for sign in (1, -1):
                value[place] += sign * tiny
                around.append(float(loss_of(learned, task, star=star)))
                value[place] -= sign * tiny
        slope = (around[0] - around[1]) / (2 * tiny)
        assert float(value.grad[place]) == pytest.approx(slope, rel=1e-4, abs=1e-9)


def test_invalid_arguments_are_refused():
    model, learned = SoftmaxHead(3, 3), optimizer()
    with pytest.raises(TypeError, match=r"^model: got a ModuleModel, .* trains a SoftmaxHead"):
        learned.on(ModuleModel(torch.nn.Linear(3, 3)))
    for rounds in (0, -1, MAX_ROUNDS + 1):
        with pytest.raises(ValueError, match=rf"^rounds: got {rounds}, .* and {MAX_ROUNDS}"):
            learned.on(model, rounds)
    with pytest.raises(ValueError, match=r"^scaling: got 'none'"):
        learned.on(model, 5, "none")
    with pytest.raises(ValueError, match=r"^batch_size: got 0, but it must be at least 1"):
        learned.on(model, 5, batch_size=0)


def test_tasks_and_networks_that_do_not_fit_are_refused():
    algorithm = optimizer().on(SoftmaxHead(3, 3), 5)
    task = random_data.task(0, AGENTS)
    with pytest.raises(ValueError, match=r"5 features"):
        begin(algorithm, random_data.task(0, AGENTS, features=5), network())
    with pytest.raises(ValueError, match="network: got the shift operator 'laplacian'"):
        begin(algorithm, task, Network(lopsided_graph(), "laplacian"))


@pytest.mark.parametrize("star", [False, True])
def test_a_state_consists_of_tensors_and_numbers(star):
    task, over = random_data.task(0, AGENTS), network(star=star)
    found = vars(states(make(task), task, over)[-1]).values()
    assert len(found) > 15
    assert all(isinstance(part, torch.Tensor | int) for part in found)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("scaling", ["whole", "features"])
def test_features_whose_squares_overflow_are_refused(scaling, star):
    task = random_data.task(0, AGENTS, 4, 2, 5, CLASSES, dtype=torch.float32)
    huge = changed(task, lambda x, y, mask: (x * 1e21, y, mask))
    message = r"^task: got features as large as .*e\+21, .* in float32: give them in another unit$"
    with pytest.raises(FeatureRangeError, match=message):
        run(
            make(huge, learned=optimizer(dtype=torch.float32), scaling=scaling),
            huge,
            network(star=star),
            steps=3,
        )


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float32, 1e-25), (torch.float64, 1e-160), (torch.float64, 1e-200)]
)
def test_features_whose_squares_vanish_are_refused(dtype, unit, star):
    task = random_data.task(0, AGENTS, 4, 2, 5, CLASSES, dtype=dtype)
    tiny = changed(task, lambda x, y, mask: (x * unit, y, mask))
    with pytest.raises(ValueError, match=r"^task: got features that differ by no more than .*e-"):
        run(make(tiny, learned=optimizer(dtype=dtype)), tiny, network(star=star), steps=3)
