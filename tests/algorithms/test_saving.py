"""A run of any algorithm goes on from a file with the same numbers."""

import pytest
import torch
from random_data import seeded
from test_rows_anywhere import FAULTS, ROUNDS, SUBJECTS, task

from fedsurf.algorithms import State
from fedsurf.algorithms.saving import load_state, save_state
from fedsurf.common.files import FileError
from fedsurf.common.streams import Streams
from fedsurf.network import StarNetwork, with_faults


def begin(subject, seed=7):
    network = subject.network()
    if subject.faults:
        network = with_faults(network, FAULTS, seeded(4))
    network.reset(seeded(seed))
    algorithm = subject.algorithm(torch.float32)
    streams = Streams(9, network.ids)
    return algorithm, network, streams, algorithm.init(task(torch.float32), network, streams)


@torch.no_grad()
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_a_run_goes_on_from_a_file_to_the_same_bits(subject, tmp_path):
    algorithm, network, streams, state = begin(subject)
    data, steps = task(torch.float32), getattr(algorithm, "steps", ROUNDS)
    for step in range(steps):
        save_state(tmp_path / str(step), state, network)
        state = algorithm.step(state, data, network, streams.at(step))
    for stopped in (0, steps // 2):
        algorithm, again, streams, first = begin(subject, seed=8)  # the file has 7
        found = load_state(tmp_path / str(stopped), first, again)
        for step in range(found.steps, steps):
            found = algorithm.step(found, data, again, streams.at(step))
        assert torch.equal(found.weights, state.weights)
        assert torch.equal(again.link_floats, network.link_floats)
        assert again.rounds == network.rounds


def test_a_state_of_another_method_or_task_is_refused_and_changes_nothing(tmp_path):
    one, other = (next(s for s in SUBJECTS if s.name == name) for name in ("dgd", "extra"))
    _, network, _, state = begin(one)
    save_state(tmp_path / "state", state, network)
    _, network, _, another = begin(other)
    network.mix(another.weights)
    with pytest.raises(FileError, match="holds a State, but this method needs a ExtraState"):
        load_state(tmp_path / "state", another, network)
    smaller = type(state)(state.weights[:, 1:])
    with pytest.raises(FileError, match="weights: got"):
        load_state(tmp_path / "state", smaller, network)
    assert network.rounds == 1


def test_a_server_that_calls_in_turn_goes_on_in_the_middle_of_a_pass(tmp_path):
    star, again = (StarNetwork(5, 2, seeded(0), calling="in-turn") for _ in range(2))
    for _ in range(3):  # of the second pass, four agents are left
        star.call()
    save_state(tmp_path / "state", State(torch.zeros(6, 2)), star)
    load_state(tmp_path / "state", State(torch.zeros(6, 2)), again)
    for _ in range(5):
        assert star.call().agents.tolist() == again.call().agents.tolist()
