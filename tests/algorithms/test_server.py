"""What holds for every method through a server."""

from dataclasses import fields

import networkx as nx
import pytest
import torch
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from served import calls, rounds
from torch import nn

from fedsurf.algorithms.algorithm import Start
from fedsurf.algorithms.fedadam import FedAdam
from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedavgm import FedAvgM
from fedsurf.algorithms.feddyn import FedDyn
from fedsurf.algorithms.fedprox import FedProx
from fedsurf.algorithms.moon import MOON
from fedsurf.algorithms.scaffold import SCAFFOLD
from fedsurf.evaluation.run import run
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import Task

METHODS = [FedAvg, FedProx, SCAFFOLD, MOON, FedDyn, FedAvgM, FedAdam]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


@every_method
def test_it_is_called_by_its_name_and_has_the_common_defaults(method):
    made = method(SoftmaxHead(3, 3))
    assert made.name == method.__name__
    assert (made.local_steps, made.batch_size, made.weighting) == (6, 10, "uniform")


@every_method
def test_the_first_model_is_the_servers_row_of_the_common_start(method):
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = method(head, batch_size=None, start=Start(1.0, 0.5)).init(task, network, seeded(5))
    drawn = Start(1.0, 0.5).draw(network, head, seeded(5), torch.float64)
    assert torch.equal(state.weights, drawn[:1].expand(5, -1))
    assert (network.rounds, network.floats, state.steps) == (0, 0, 0)


@every_method
def test_a_round_is_one_download_and_one_upload_on_the_called_agents_links(method):
    task, network, head = draw_task(1, agents=9), StarNetwork(9, 3, seeded(2)), SoftmaxHead(3, 3)
    rounds(method(head, batch_size=None), task, network, 1)
    size = 2 * 12 if method is SCAFFOLD else 12
    (called,) = calls(9, 3, 2, 1)
    expected = {(0, 1 + agent): size for agent in called} | {(1 + a, 0): size for a in called}
    links, floats = network.links.T.tolist(), network.link_floats.tolist()
    used = {tuple(link): sent for link, sent in zip(links, floats, strict=True) if sent}
    assert used == expected
    assert (network.rounds, network.floats) == (1, 6 * size)


@every_method
def test_only_the_called_agents_data_matter(method):
    task, head = draw_task(2, agents=9), SoftmaxHead(3, 3)
    first, second = calls(9, 2, 3, 2)
    silent = [agent for agent in range(9) if agent not in first + second]
    other = draw_task(77, agents=9).train
    x, y = task.train.x.clone(), task.train.y.clone()
    x[silent], y[silent] = other.x[silent], other.y[silent]
    changed = Task(Examples(x, y), task.test, 3)
    ends = [
        rounds(method(head, batch_size=4), given, StarNetwork(9, 2, seeded(3)), 2).weights
        for given in (task, changed)
    ]
    assert torch.equal(*ends)
    x[first[0]] += 1
    moved = rounds(method(head, batch_size=4), changed, StarNetwork(9, 2, seeded(3)), 2).weights
    assert not torch.equal(moved, ends[0])


class RelabelledStar(StarNetwork):
    """A star whose agents carry other numbers: new agent k is old agent order[k]."""

    def __init__(self, order, *given):
        super().__init__(*given)
        self._place = order.argsort()

    def call(self):
        return self._place[super().call()]


@every_method
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_permuting_agents_permutes_the_result(method, weighting):
    task, head = draw_task(3, agents=6, train=8, masked=True), SoftmaxHead(3, 3)
    order = torch.randperm(6, generator=seeded(4))
    moved = Task(task.train.of(order), task.test.of(order), 3)
    extra = {"representation": "logits"} if method is MOON else {}
    algorithm = method(head, 3, 0.5, None, weighting, **extra)
    state = rounds(algorithm, task, StarNetwork(6, 3, seeded(1)), 6)
    other = rounds(algorithm, moved, RelabelledStar(order, 6, 3, seeded(1)), 6)
    for field in fields(state):
        one, two = getattr(state, field.name), getattr(other, field.name)
        if field.name in ("variates", "gradients", "previous"):
            assert not torch.allclose(one, two)
            one = one[order]
        torch.testing.assert_close(one, two)


@every_method
def test_the_same_seed_gives_the_same_bits_and_no_other_randomness_is_used(method):
    task, head = draw_task(5, agents=8, train=12), SoftmaxHead(3, 3)

    def end(seed):
        return rounds(method(head, batch_size=5), task, StarNetwork(8, 3, seeded(9)), 4, seed=seed)

    before = torch.random.get_rng_state()
    first, again, other = end(0), end(0), end(1)
    for field in fields(first):
        one, two = getattr(first, field.name), getattr(again, field.name)
        assert one == two if isinstance(one, int) else torch.equal(one, two)
    assert not torch.equal(first.weights, other.weights)
    assert torch.equal(torch.random.get_rng_state(), before)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hidden", [False, True])
def test_it_learns_with_and_without_a_hidden_layer_in_both_precisions(method, dtype, hidden):
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    model = ModuleModel(module) if hidden else SoftmaxHead(3, 3)
    task = draw_task(6, agents=8, train=15, masked=True, dtype=dtype)
    network = StarNetwork(8, 4, seeded(0))
    algorithm = method(model, 4, 0.1, None, start=Start(0.0, 0.5))
    before, after = (rounds(algorithm, task, network, count).weights for count in (0, 40))
    losses = [float(model.loss(rows[1:], task.train).mean()) for rows in (before, after)]
    assert losses[1] < 0.8 * losses[0]
    assert after.dtype == dtype


@every_method
def test_the_one_model_of_the_server_is_judged(method):
    task, network = draw_task(6, agents=8, train=15), StarNetwork(8, 4, seeded(0))
    found = run(method(SoftmaxHead(3, 3), batch_size=5), task, network, 10)
    assert found.rounds.tolist() == list(range(11))
    assert float(found.disagreement.max()) < 1e-12
    assert float(found.pooled_accuracy.max()) > 0.6


@every_method
def test_all_rows_are_one_row_of_memory(method):
    task, head = draw_task(0, agents=20), SoftmaxHead(3, 3)
    state = rounds(method(head, batch_size=None), task, StarNetwork(20, 2, seeded(0)), 1)
    assert state.weights.shape == (21, 12)
    assert state.weights.stride(0) == 0
    assert state.steps == 1


@every_method
def test_a_step_leaves_the_state_before_it_as_it_was(method):
    task, head = draw_task(0, agents=5), SoftmaxHead(3, 3)
    network = StarNetwork(5, 2, seeded(0))
    algorithm = method(head, batch_size=None)
    state = rounds(algorithm, task, network, 2)
    before = {f.name: torch.as_tensor(getattr(state, f.name)).clone() for f in fields(state)}
    algorithm.step(state, task, network, seeded(0))
    for name, value in before.items():
        assert torch.equal(torch.as_tensor(getattr(state, name)), value)


class Counting(SoftmaxHead):
    """Notes how many agents compute a gradient each time."""

    def __init__(self):
        super().__init__(3, 3)
        self.seen = []

    def gradient(self, weights, examples):
        self.seen.append(len(weights))
        return super().gradient(weights, examples)


@every_method
def test_only_the_called_agents_compute(method):
    model, task = Counting(), draw_task(0, agents=30)
    rounds(method(model, 4, batch_size=None), task, StarNetwork(30, 3, seeded(0)), 2)
    assert model.seen == [3] * 8


@every_method
def test_a_network_without_a_server_is_refused(method):
    algorithm = method(SoftmaxHead(3, 3), batch_size=None)
    with pytest.raises(ValueError, match=r"^network: got a Network without .* StarNetwork"):
        algorithm.init(draw_task(0), Network(nx.cycle_graph(4)), seeded(0))
    state = algorithm.init(draw_task(0), StarNetwork(4, 2, seeded(0)), seeded(0))
    with pytest.raises(ValueError, match=r"^network: got a Network without .* StarNetwork"):
        algorithm.step(state, draw_task(0), Network(nx.cycle_graph(4)), seeded(0))


@every_method
def test_a_task_that_does_not_fit_is_refused_at_once(method):
    with pytest.raises(ValueError, match=r"^task: got examples of 4 agents, .* 5 agents"):
        method(SoftmaxHead(3, 3), batch_size=None).init(
            draw_task(0), StarNetwork(5, 2, seeded(0)), seeded(0)
        )
    uneven = draw_examples(1, agents=4, size=6, masked=True)
    smallest = int(uneven.counts.min())
    task = Task(uneven, uneven, 3)
    with pytest.raises(ValueError, match=rf"^batch_size: got 6, .* between 1 and {smallest},"):
        method(SoftmaxHead(3, 3), batch_size=6).init(task, StarNetwork(4, 1, seeded(0)), seeded(0))


@every_method
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("local_steps", 0),
        ("step_size", 0.0),
        ("step_size", float("nan")),
        ("batch_size", 0),
        ("weighting", "sizes"),
    ],
)
def test_bad_arguments_are_named(method, argument, value):
    with pytest.raises(ValueError, match=rf"^{argument}: got {value!r}, but it must be"):
        method(SoftmaxHead(3, 3), **{argument: value})
