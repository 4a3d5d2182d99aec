"""The benchmark of the layer's parts: every variant lacks only the part that it names."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import random_data
import torch
from running import begin, lopsided_graph, streams

from fedsurf.common.randomness import generator
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network
from fedsurf.pretrained.config import WideConfig
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.unrolled import Transferable, TransferableConfig
from fedsurf.unrolled.transferable import graph
from fedsurf.unrolled.transferable.controller import (
    CLASS_SIZE,
    CONTEXT_SIZE,
    CONTROLS,
    SCHEDULE_SIZE,
)
from fedsurf.unrolled.transferable.newton import HeadFit
from fedsurf.unrolled.transferable.summaries import DESCRIPTION_SIZE

AGENTS, FEATURES, CLASSES, ROUNDS = 6, 5, 3, 6


@pytest.fixture(scope="module")
def parts():
    path = Path(__file__).parent.parent / "benchmarks" / "layer_parts.py"
    spec = importlib.util.spec_from_file_location("layer_parts", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the module of a class
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Recording(Network):
    """A graph that remembers which heads agents sent and what came of them."""

    def exchange(self, values, sent, lost, floats):
        mixed = super().exchange(values, sent, lost, floats)
        self.sent, self.heard = sent[0], mixed[0]
        return mixed


def optimizer_of(parts, lack, seed=1, size=0.4):
    """Return a variant whose parameters are larger than the initial ones, so that every control matters."""
    made = parts.Partial(lack, seed).double()
    random = random_data.seeded(seed + 1)
    with torch.no_grad():
        for value in made.parameters():
            value += size * torch.randn(value.shape, generator=random, dtype=torch.float64)
    return made.requires_grad_(False)


def task_of(seed=0, train=8):
    return random_data.task(seed, AGENTS, train=train, features=FEATURES, classes=CLASSES)


def after(optimizer, task, rounds):
    """Return the state after the first `rounds` rounds, and the network."""
    network = Recording(lopsided_graph())
    algorithm = optimizer.on(SoftmaxHead(FEATURES, CLASSES), ROUNDS)
    state = begin(algorithm, task, network)
    for number in range(rounds):
        state = algorithm.round(state, task, network, streams(network, 0, number))
    return state, network


def test_the_whole_layer_is_the_library_s(parts):
    own = parts.Partial(parts.VARIANTS["whole"], 3)
    whole = Transferable(TransferableConfig(), generator(3, "parameters"))
    for (name, value), (other_name, other) in zip(
        own.named_parameters(), whole.named_parameters(), strict=True
    ):
        assert name == other_name
        assert value.equal(other)
    task = task_of()
    assert after(own.double(), task, 4)[0].head.equal(after(whole.double(), task, 4)[0].head)


def test_all_variants_start_with_the_parameters_of_the_whole_layer(parts):
    whole = dict(parts.Partial(parts.VARIANTS["whole"], 3).named_parameters())
    for name, lack in parts.VARIANTS.items():
        for where, value in parts.Partial(lack, 3).named_parameters():
            same = value == whole[where]
            if name == "preconditioner" and where == "graph.round_out.bias":
                same[list(CONTROLS).index("gradient")] = True  # it has another start
            assert same.all(), (name, where)


@pytest.mark.parametrize("name", ["whole", "kappa", "kappa-memory", "memory"])
def test_without_kappa_agents_send_what_they_fitted(parts, name):
    state, network = after(optimizer_of(parts, parts.VARIANTS[name]), task_of(), 3)
    assert network.sent.equal(state.fitted) == ("kappa" in name)


@pytest.mark.parametrize("name", ["whole", "kappa", "kappa-memory", "memory"])
def test_without_memory_heads_are_the_mixed_ones(parts, name):
    state, network = after(optimizer_of(parts, parts.VARIANTS[name]), task_of(), 3)
    assert torch.allclose(state.head, network.heard) == ("memory" in name)


@pytest.mark.parametrize("name", ["whole", "gate", "offset"])
def test_gates_are_one_and_offsets_zero_where_they_are_lacking(parts, name):
    controller = optimizer_of(parts, parts.VARIANTS[name]).graph
    about = torch.randn(AGENTS, CLASSES, CLASS_SIZE, generator=random_data.seeded(0)).double()
    gate, weight = controller.gates(about, random_data.weights(1, AGENTS, CONTEXT_SIZE))
    assert bool((gate == 1).all()) == (name == "gate")
    assert bool((weight == 0).all()) == (name == "offset")


@pytest.mark.parametrize("name", ["whole", "summaries"])
def test_without_signals_every_problem_gets_the_same_controls(parts, name):
    controller = optimizer_of(parts, parts.VARIANTS[name]).graph
    share = torch.full((AGENTS, 1), 0.5, dtype=torch.float64)

    def controls(seed, when):
        summaries = random_data.weights(seed, AGENTS, DESCRIPTION_SIZE)
        return torch.cat(controller.controls(when, summaries, share, share), 1)

    early, late = random_data.weights(2, 2, SCHEDULE_SIZE)
    assert controls(0, early).equal(controls(1, early)) == (name == "summaries")
    assert not controls(0, early).equal(controls(0, late))


@pytest.mark.parametrize("name", ["whole", "preconditioner"])
def test_without_the_preconditioner_a_step_is_along_the_gradient(parts, name):
    lack = replace(parts.VARIANTS[name], local_steps=1, gate=True, offset=True)
    task = task_of()
    state, _ = after(parts.Partial(lack, 0).double().requires_grad_(False), task, 1)
    x = task.train.x - task.train.x.mean(1, keepdim=True)
    wrong = torch.full((AGENTS, x.shape[1], CLASSES), 1 / CLASSES, dtype=x.dtype)
    wrong.scatter_add_(2, task.train.y[:, :, None], -torch.ones_like(wrong[:, :, :1]))
    gradient = (wrong.mT @ x).flatten(1)
    step = state.fitted.reshape(AGENTS, CLASSES, FEATURES + 1)[:, :, :-1].flatten(1)
    along = torch.cosine_similarity(step, -gradient, dim=1)
    assert along.min() > 0.5
    assert bool((along > 1 - 1e-6).all()) == (name == "preconditioner")


@pytest.mark.parametrize("name", ["whole", "second-step"])
def test_one_local_step_is_one(parts, name, monkeypatch):
    taken, take = [], HeadFit.take
    monkeypatch.setattr(HeadFit, "take", lambda fit, step: taken.append(fit) or take(fit, step))
    after(optimizer_of(parts, parts.VARIANTS[name]), task_of(), 4)
    assert len(taken) == 4 * (1 if name == "second-step" else 2)


@pytest.mark.parametrize("name", ["whole", "shared-moment"])
def test_without_the_shared_moment_agents_know_that_of_their_own_examples(parts, name):
    task = task_of(train=12)
    optimizer = optimizer_of(parts, parts.VARIANTS[name])
    state, network = after(optimizer, task, 4)
    x = task.train.x - state.centre[:, None]
    values = torch.linalg.eigvalsh(x.mT @ x / x.shape[1])
    algorithm = optimizer.on(SoftmaxHead(FEATURES, CLASSES), ROUNDS)
    directions = algorithm.directions(network, state.head)
    _, found = graph.problems(algorithm, state, task, directions)
    assert torch.allclose(found[0].curvature.values, values) == (name == "shared-moment")


@pytest.fixture(scope="module")
def problems():
    few = WideConfig(
        real_share=0.0, server_share=0.0, max_agents=10, max_examples=100, test_examples=50
    )
    return WideProblems(few, 0)


def test_a_variant_learns_the_rest(parts, problems):
    for name, lack in parts.VARIANTS.items():
        start = dict(parts.Partial(lack, 0).named_parameters())
        training = parts.trained(name, 0, problems, 2)
        moved = {
            where: value != start[where] for where, value in training.optimizer.named_parameters()
        }
        controls = dict(zip(CONTROLS, moved["graph.round_out.bias"].tolist(), strict=False))
        unused = {*lack.mixing, *lack.lengths}
        unused |= {"again"} if lack.local_steps == 1 else set()
        assert {control for control, learned in controls.items() if not learned} == unused, name
        assert moved["graph.class_out.bias"].tolist() == [not lack.gate, not lack.offset], name
        learned = moved["graph.round_in.weight"][
            :, SCHEDULE_SIZE : SCHEDULE_SIZE + DESCRIPTION_SIZE
        ]
        assert bool(learned.any()) != lack.summaries, name
        assert moved["graph.round_in.weight"][:, :SCHEDULE_SIZE].any(), name
        assert not any(value.any() for where, value in moved.items() if "server" in where), name


def result(parts, variant, seed, accuracy):
    columns = [
        {"data": data, "labels": labels, "rounds": rounds, "tasks": [accuracy, accuracy]}
        for data in ("digits", "mnist")
        for rounds, labels in parts.COLUMNS
    ]
    return {"variant": variant, "seed": seed, "accuracy": columns, "seconds": 1.0}


def test_the_table_has_differences_over_seeds(parts):
    accuracies = {"whole": (0.9, 0.8), "gate": (0.89, 0.788), "kappa": (0.91, 0.79)}
    found = {
        name: torch.stack([parts.points(result(parts, name, 0, value)) for value in values])
        for name, values in accuracies.items()
    }
    whole, gate, kappa = parts.table(found).splitlines()[2:]
    assert whole.count("| 85.00 ± 5.00 ") == 4
    assert gate.count("| -1.10 ± 0.10 ") == 4
    assert gate.endswith("| 4 of 4 |")
    assert kappa.count("| +0.00 ± 1.00 ") == 4
    assert kappa.endswith("| 0 of 4 |")
    one = {name: values[:1] for name, values in found.items()}
    assert parts.table(one).splitlines()[3].count("| -1.00 ") == 4  # no error of one seed
    rows = parts.summary(found)
    assert rows[1]["columns"][0]["seeds"] == pytest.approx([-1.0, -1.2])


def test_what_is_in_the_folder_is_not_computed_again(parts, tmp_path, monkeypatch):
    asked = []

    def measured(variant, seed, settings):
        asked.append((variant, seed))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return result(parts, variant, seed, 0.5)

    monkeypatch.setattr(parts, "measured", measured)
    settings = parts.Settings(4, 2, ("digits",), None)
    wanted = [("whole", 0), ("gate", 0), ("whole", 1)]
    with pytest.raises(KeyboardInterrupt):
        list(parts.results(wanted, settings, 1, tmp_path))
    found = list(parts.results(wanted, settings, 1, tmp_path))
    assert asked[3:] == [("whole", 1)]
    assert [(one["variant"], one["seed"]) for one in found] == wanted
    list(parts.results(wanted[:1], replace(settings, steps=5), 1, tmp_path))
    assert asked[4:] == [("whole", 0)]  # of other settings nothing is there


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps: got 0, but it must be at least 1"),
        (["--jobs", "-1"], "--jobs: got -1, but it must be at least 1"),
        (["--seeds", "1", "1"], "--seeds: got 1 1, but each must be another one"),
        (["--seeds", "-1"], "--seeds: got -1, but it must be at least 0"),
        (["--variants", "gates"], "invalid choice: 'gates'"),
        (["--data", "digits-star"], "invalid choice: 'digits-star'"),
        (["--features", "no.npz"], "the study cifar10, which takes it, is not in --data"),
        (["--data", "cifar10", "--features", "no.npz"], "there is no such file"),
        (["--folder", __file__], "which is a file, but it must be a folder"),
        (["--json", str(Path(__file__).parent)], "which is a folder, but it must be a file"),
    ],
)
def test_bad_options_are_refused(parts, words, said, capsys):
    with pytest.raises(SystemExit):
        parts.arguments(words)
    assert said in capsys.readouterr().err


def test_a_variant_is_measured_on_each_data_set_partition_and_depth(parts, problems, monkeypatch):
    monkeypatch.setattr(parts, "problems_of", lambda _: problems)
    found = parts.measured("kappa", 0, parts.Settings(1, 1, ("digits",), None))
    where = [(one["data"], one["rounds"], one["labels"]) for one in found["accuracy"]]
    assert sorted(where) == sorted(("digits", *column) for column in parts.COLUMNS)
    assert all(0 < one["tasks"][0] <= 1 and len(one["tasks"]) == 1 for one in found["accuracy"])
