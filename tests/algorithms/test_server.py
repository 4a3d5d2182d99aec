"""Methods through a server: only the called agents compute, send and matter."""

from dataclasses import fields

import networkx as nx
import pytest
import torch
from known_optima import (
    ORIGIN,
    LeastSquares,
    averaging_limit,
    least_squares_optimum,
    least_squares_task,
)
from random_data import examples as draw_examples
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, calls, run, streams

from fedsurf.algorithms import MOON, SCAFFOLD, FedAdam, FedAvg, FedAvgM, FedDyn, FedProx, Start
from fedsurf.algorithms.server import Replies, Work
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.tasks.task import Examples, Task

METHODS = [FedAvg, FedProx, SCAFFOLD, MOON, FedDyn, FedAvgM, FedAdam]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


@every_method
def test_the_first_model_is_drawn_from_the_stream_that_all_share(method):
    task, network, head = draw_task(0), StarNetwork(4, 2, seeded(0)), SoftmaxHead(3, 3)
    state = begin(method(head, batch_size=None, start=Start(1.0, 0.5)), task, network, 5)
    drawn = Start(1.0, 0.5).draw(head, streams(network, 5).shared(), task.train.x)
    assert torch.equal(state.weights, drawn)
    assert torch.equal(state.agent_weights(network), drawn.expand(4, -1))
    assert (network.rounds, network.floats, state.steps) == (0, 0, 0)


@every_method
def test_a_round_is_one_download_and_one_upload_on_the_called_agents_links(method):
    task, network, head = draw_task(1, agents=9), StarNetwork(9, 3, seeded(2)), SoftmaxHead(3, 3)
    run(method(head, batch_size=None), task, network, 1)
    size = 2 * 12 if method is SCAFFOLD else 12
    (called,) = calls(9, 3, 2, 1)
    expected = {(0, 1 + agent): size for agent in called} | {(1 + a, 0): size for a in called}
    links, floats = network.links.T.tolist(), network.link_floats.tolist()
    used = {tuple(link): sent for link, sent in zip(links, floats, strict=True) if sent}
    assert used == expected
    assert (network.rounds, network.floats) == (1, 6 * size)


@every_method
def test_a_reply_has_one_float_more_if_agents_are_weighted_by_their_examples(method):
    floats = []
    for weighting in ("uniform", "examples"):
        algorithm = method(SoftmaxHead(3, 3), batch_size=None, weighting=weighting)
        network = StarNetwork(9, 3, seeded(2))
        run(algorithm, draw_task(1, agents=9, masked=True), network, 4)
        floats.append(network.floats)
    assert floats[1] == floats[0] + 4 * 3


@every_method
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_a_round_is_a_message_a_reply_of_each_called_agent_and_an_update(method, weighting):
    task, network = draw_task(4, agents=7, train=9, masked=True), StarNetwork(7, 3, seeded(0))
    algorithm = method(SoftmaxHead(3, 3), 3, 0.5, 1, weighting)
    state = run(algorithm, task, network, 2)
    called, draws = calls(7, 3, 0, 3)[2], network.agent_rows(streams(network, step=2))
    message, after, replies, parts = algorithm.server_message(state), state, [], []
    for agent in called:
        row = torch.tensor([agent])
        work = Work(task.train.of(row), draws[row])
        reply, own = algorithm.agent_reply(message, state.of_agents(row), work)
        replies.append(reply)
        parts.append(int(work.examples.counts) if weighting == "examples" else 1)
        after = after.with_agents(row, own)
    shares = torch.tensor(parts, dtype=torch.float64)
    total = int(task.train.counts.sum()) if weighting == "examples" else 7
    received = Replies(torch.cat(replies), shares / shares.sum(), shares.sum() / total)
    expected = algorithm.server_update(after, received)
    found = advance(algorithm, state, task, network)
    for field in fields(found):
        if field.name != "steps":
            torch.testing.assert_close(getattr(found, field.name), getattr(expected, field.name))


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
        run(method(head, batch_size=4), given, StarNetwork(9, 2, seeded(3)), 2).weights
        for given in (task, changed)
    ]
    assert torch.equal(*ends)
    x[first[0]] += 1
    moved = run(method(head, batch_size=4), changed, StarNetwork(9, 2, seeded(3)), 2).weights
    assert not torch.equal(moved, ends[0])


@every_method
def test_agents_are_judged_by_the_servers_only_row(method):
    task, head, network = draw_task(0, agents=20), SoftmaxHead(3, 3), StarNetwork(20, 2, seeded(0))
    state = run(method(head, batch_size=None), task, network, 1)
    assert state.weights.shape == (1, 12)
    judged, floats = state.agent_weights(network), network.floats
    assert torch.equal(judged, state.weights.expand(20, 12))
    assert judged.stride(0) == 0  # one row of memory
    assert (state.steps, network.floats) == (1, floats)


class Counting(SoftmaxHead):
    """A head that records how many agents compute each gradient."""

    def __init__(self):
        super().__init__(3, 3)
        self.seen = []

    def gradient(self, weights, examples):
        self.seen.append(len(weights))
        return super().gradient(weights, examples)


@every_method
def test_only_the_called_agents_compute(method):
    model, task = Counting(), draw_task(0, agents=30)
    run(method(model, 4, batch_size=None), task, StarNetwork(30, 3, seeded(0)), 2)
    assert model.seen == [3] * 8


@every_method
def test_a_network_without_a_server_is_refused(method):
    algorithm = method(SoftmaxHead(3, 3), batch_size=None)
    with pytest.raises(ValueError, match=r"^network: got a Network without .* StarNetwork"):
        begin(algorithm, draw_task(0), Network(nx.cycle_graph(4)))
    state = begin(algorithm, draw_task(0), StarNetwork(4, 2, seeded(0)))
    with pytest.raises(ValueError, match=r"^network: got a Network without .* StarNetwork"):
        advance(algorithm, state, draw_task(0), Network(nx.cycle_graph(4)))


@every_method
def test_a_batch_larger_than_the_smallest_agents_examples_is_refused_at_once(method):
    uneven = draw_examples(1, agents=4, size=6, masked=True)
    task, network = Task(uneven, uneven, 3), StarNetwork(4, 1, seeded(0))
    wanted = rf"^batch_size: got 6, .* between 1 and {int(uneven.counts.min())},"
    with pytest.raises(ValueError, match=wanted):
        begin(method(SoftmaxHead(3, 3), batch_size=6), task, network)


@pytest.mark.parametrize(
    ("method", "own", "mean"),
    [
        (SCAFFOLD, "variates", "server_variate"),
        (FedDyn, "gradients", "server_gradient"),
        (MOON, "previous", None),
    ],
)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_tensors_of_silent_agents_stay_and_the_servers_is_their_mean(method, own, mean, weighting):
    task, network = draw_task(3, agents=8, train=9, masked=True), StarNetwork(8, 3, seeded(0))
    algorithm = method(SoftmaxHead(3, 3), 4, 0.5, None, weighting)
    state = begin(algorithm, task, network, 1)
    for called in calls(8, 3, 0, 6):
        before, state = state, advance(algorithm, state, task, network, 1)
        old, new = getattr(before, own), getattr(state, own)
        assert (new != old).any(1).nonzero().flatten().tolist() == sorted(called)
        if mean:
            expected = task.agent_weights(weighting) @ new
            torch.testing.assert_close(getattr(state, mean)[0], expected)


@pytest.mark.parametrize(
    ("method", "step_size", "own", "options"),
    [(SCAFFOLD, 0.05, "variates", {}), (FedDyn, 0.1, "gradients", {"alpha": 0.5})],
)
@pytest.mark.parametrize(("reporting", "count"), [(None, 200), (2, 800)])
def test_corrected_methods_reach_the_optimum_where_fedavg_does_not(
    method, step_size, own, options, reporting, count
):
    task = least_squares_task()
    optimum = least_squares_optimum(task)
    algorithm = method(LeastSquares(), 6, step_size, None, start=ORIGIN, **options)
    state = run(algorithm, task, StarNetwork(6, reporting, seeded(0)), count)
    assert (state.weights[0] - optimum).norm() < 1e-5
    assert (averaging_limit(task, step_size, 6) - optimum).norm() > 0.02
    slopes = LeastSquares().gradient(optimum.expand(6, -1), task.train)
    torch.testing.assert_close(getattr(state, own), slopes, atol=1e-4, rtol=0)
    assert slopes.norm(dim=1).min() > 0.1  # the agents do differ
