"""Rounds through a server: who influences it, its memory, and the units that it sends."""

import math

import pytest
import random_data
import torch
from random_data import weights as normal
from running import calls
from transferable_runs import AGENTS, CLASSES, as_drawn, changed, heads, network, optimizer, states

from fedsurf.evaluation.run import run
from fedsurf.models import SoftmaxHead
from fedsurf.network import StaleNetwork, StarNetwork
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.transferable.controller import schedule
from fedsurf.unrolled.transferable.newton import by_feature
from fedsurf.unrolled.transferable.server import MAX_OLD_WEIGHT, server_weights
from fedsurf.unrolled.transferable.summaries import PROGRESS_SIZE, SUMS_SIZE, FederationEstimate


def test_a_server_averages_bounded_controls_and_limits_its_memory():
    controls = normal(3, 6, 3)
    keep, stay, old = server_weights(controls)
    bounded = controls / (1 + controls.abs())
    expected = bounded.mean(0)
    assert expected[1] + expected[2] < MAX_OLD_WEIGHT
    torch.testing.assert_close(torch.stack([keep, stay, old]), expected)
    _, stay, old = server_weights(torch.full((3, 3), 30.0))
    torch.testing.assert_close(stay + old, torch.tensor(MAX_OLD_WEIGHT, dtype=stay.dtype))
    torch.testing.assert_close(stay, old)


@pytest.mark.parametrize("scaling", ["whole", "features"])
def test_an_agent_that_a_server_never_calls_has_no_influence(scaling):
    task, rounds = random_data.task(10, AGENTS, 6, 3, 20, CLASSES), 4
    for seed in range(50):
        called = {agent for some in calls(AGENTS, 2, seed, rounds) for agent in some}
        if len(called) < AGENTS:
            break
    silent = min(set(range(AGENTS)) - called)
    algorithm = optimizer().on(SoftmaxHead(20, CLASSES), rounds, scaling)
    found = []
    for agent in (None, silent, min(called)):

        def other(x, y, mask, agent=agent):
            x = x.clone()
            if agent is not None:
                x[agent] = -2 * x[agent] + 1
            return x, y, mask

        over = StarNetwork(AGENTS, 2, random_data.seeded(seed))
        found.append(states(algorithm, changed(task, other), over)[-1].weights)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_server_learns_nothing_but_what_agents_send(monkeypatch):
    task = random_data.task(11, AGENTS, 6, 3, 20, CLASSES)
    over, learned = network(star=True), optimizer()
    whole = heads(task, over, 6, learned)
    over = network(star=True)
    monkeypatch.setattr(over, "upload", lambda values, *_, **__: torch.zeros_like(values))
    assert whole.abs().max() > 0
    assert torch.equal(heads(task, over, 6, learned), torch.zeros_like(whole))


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 4}, {"weigh_agents": True}, {"scaling": "features"}]
)
@pytest.mark.parametrize("stale", [0, 4])
def test_a_server_can_compute_its_memory_from_the_messages(stale, options):
    """Its a, b and e are means of the controls that agents send, which follow from both messages."""
    features, learned, rounds = 20, optimizer(), 8
    task = random_data.task(15, AGENTS, 9, 3, features, CLASSES, masked=True)
    sent, received = [], []

    class Watched(StarNetwork):
        def download(self, value, called, among=None, layout=None):
            if among is None:  # not the units
                sent.append(value[0])
            return super().download(value, called, among, layout)

        def upload(self, values, called, among=None, layout=None):
            received.append(values)
            return super().upload(values, called, among, layout)

    over = StaleNetwork(Watched(AGENTS, 3, random_data.seeded(4)), stale, random_data.seeded(5))
    found = heads(task, over, rounds, learned, **options)
    sizes = [CLASSES * (features + 1), CLASSES + SUMS_SIZE, CLASSES + PROGRESS_SIZE]
    assert len(received) == len(sent) == rounds
    rest = len(sent[0]) - sum(sizes)
    following = previous = average = torch.zeros(sizes[0], dtype=torch.float64)
    for number, rows in enumerate(received):
        head, sums, progress, _ = sent[number].split([*sizes, rest])
        torch.testing.assert_close(head, following)
        fitted, own, _, _, mixing, spreads = rows.split(
            [*sizes, rest, 3, rows.shape[1] - len(sent[0]) - 3], 1
        )
        assert spreads.shape[1] == (
            (1 + 2 * features) * (number < 4) if options.get("scaling") else 0
        )
        known = sums.expand_as(own) if number else own
        count = own[:, -SUMS_SIZE, None]
        vary = head.new_full((len(rows),), features)  # none is constant
        heard = FederationEstimate.of(
            known, progress.expand(len(rows), -1), vary, features=features, agents=AGENTS
        )
        _, controls, _ = learned.server.controls(
            schedule(number, rounds, len(rows), head),
            heard.description,
            count.clamp(max=options.get("batch_size", math.inf)) / count,
            head.new_full((len(rows), 1), len(rows) / AGENTS),
        )
        if not stale:
            torch.testing.assert_close(mixing, controls[:, 1:])
        keep, stay, old = server_weights(mixing)
        assert min(abs(keep), abs(stay), abs(old)) > 1e-3
        mass = count if "weigh_agents" in options else torch.ones_like(count)
        new = (mass.sqrt() * fitted).sum(0) / mass.sqrt().sum()
        following = (1 - stay - old) * new + stay * head + old * previous
        average, previous = torch.lerp(following, average, keep), head
    torch.testing.assert_close(found[0], by_feature(average[None], features)[0])


def test_a_server_sends_units_to_agents_that_do_not_know_them():
    task = random_data.task(1, AGENTS)
    network = StarNetwork(AGENTS, 2, random_data.seeded(4))
    floats = {}
    for scaling in ("whole", "features"):
        algorithm = as_drawn().on(SoftmaxHead(3, CLASSES), rounds=20, scaling=scaling)
        found = run(algorithm, task, network, algorithm.steps)
        assert found.rounds[-1] == 20
        floats[scaling] = int(found.floats[-1])
    # In four rounds 2 agents send numbers, sums and squares. Mean and unit go to those of the three rounds in
    # between, and later once to all.
    sent, units = 4 * 2 * 7, (3 * 2 + AGENTS) * 6
    assert floats["features"] - floats["whole"] == sent + units


@pytest.mark.parametrize("scaling", ["features", "auto"])
def test_a_server_forgets_summaries_in_old_units(scaling):
    """Agents with a single row know no units: their first sums would dominate all later ones."""
    part = random_data.examples(3, 6, 60, 3, masked=False)
    wild = part.x * torch.tensor([1e6, 1.0, 1e-3], dtype=torch.float64)
    mask = torch.arange(60) < torch.tensor([1, 1, 1, 1, 1, 60])[:, None]
    train = Examples(wild * mask[:, :, None], part.y * mask, mask)
    task = Task(train, Examples(wild, part.y), CLASSES)
    for seed in range(5):
        network = StarNetwork(6, 1, random_data.seeded(seed))
        algorithm = as_drawn().on(SoftmaxHead(3, CLASSES), rounds=20, scaling=scaling)
        state = states(algorithm, task, network)[-1]
        of_server = state.sums[:1], state.progress[:1], state.varying[:1]
        heard = FederationEstimate.of(*of_server, features=3, agents=6)
        assert float(heard.varying) == 3
        assert 0.1 < float(heard.scale) < 10
