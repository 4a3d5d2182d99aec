"""The optimizer of modules: its problems, its recipe, and loading."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from kill_and_resume import contents
from random_data import seeded
from random_data import task as draw_task
from torch import nn

import fedsurf
from fedsurf import pretrained
from fedsurf.cli.main import run
from fedsurf.common.configuration import to_dict
from fedsurf.common.files import FileError
from fedsurf.models import ModuleModel
from fedsurf.network import Network
from fedsurf.pretrained.config import WEIGHTS_FILE, ModulePretrainConfig
from fedsurf.pretrained.recipes.modules import (
    MAX_CLASSES,
    MAX_FEATURES,
    ModuleProblems,
    pretrain_for_modules,
    random_network,
)
from fedsurf.unrolled.config import GradientTransferConfig

DEFAULT = ModulePretrainConfig()
SMALL = replace(DEFAULT.problems, real_share=0.0, max_agents=20, max_examples=60, test_examples=20)
TINY = ModulePretrainConfig(
    optimizer=GradientTransferConfig(width=4, local_steps=2),
    problems=SMALL,
    surf=replace(DEFAULT.surf, steps=2, validate_every=1, validation_tasks=2),
    seed=5,
)


def test_problems_are_small_networks_over_graphs():
    before = torch.get_rng_state()
    problems, again = ModuleProblems(SMALL, 3), ModuleProblems(SMALL, 3)
    for number in range(10):
        problem = problems.training(number)
        model, task = problem.model, problem.task
        assert isinstance(model, ModuleModel)
        shapes = list(model.shapes.values())
        assert shapes[0][1] == task.features <= MAX_FEATURES
        assert shapes[-1][0] == task.classes <= MAX_CLASSES
        assert not problem.network.server
        assert 0.3 < task.train.pooled().x.square().mean().sqrt() < 4
        other = again.training(number)
        assert torch.equal(other.task.train.x, task.train.x)
        assert other.model.shapes == model.shapes
    networks = (random_network(8, 5, seeded(number)) for number in range(60))
    assert {len(one.shapes) // 2 for one in networks} == {1, 2, 3}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_network_has_gradients():
    model = random_network(3, 3, seeded(0))
    data = draw_task(0, dtype=torch.float32).train
    weights = torch.randn(data.agents, model.parameters, generator=seeded(0))
    assert model.gradient(weights, data).abs().amax(1).min() > 0


def test_the_shipped_recipe_constrains_descent_on_graphs():
    assert DEFAULT.surf.descent.constrained
    assert DEFAULT.problems.server_share == 0
    assert pretrained.card("module")["recipe"] == json.loads(json.dumps(to_dict(DEFAULT)))


def test_pretraining_resumes_and_its_weights_load_as_modules_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    optimizer, best = pretrain_for_modules(TINY, path)
    before = contents(path)
    assert pretrain_for_modules(TINY, path, resume=True)[1] == best
    assert contents(path) == before
    loaded = fedsurf.load_for_modules(path / WEIGHTS_FILE)
    assert loaded.config == TINY.optimizer
    for found, expected in zip(loaded.parameters(), optimizer.parameters(), strict=True):
        assert torch.equal(found, expected)
        assert not found.requires_grad
    assert pretrained.card(path / WEIGHTS_FILE)["recipe"] == to_dict(TINY)
    with pytest.raises(FileError, match="does not hold an optimizer of softmax heads"):
        fedsurf.load(path / WEIGHTS_FILE)
    with pytest.raises(ValueError, match=r"^name: got 'softmax-head', but .* one of module,"):
        fedsurf.load_for_modules("softmax-head")


def test_pretraining_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "pretrain-modules", "--folder", str(tmp_path / "run"), "--optimizer.width", "4",
        "--optimizer.local-steps", "2", "--problems.real-share", "0", "--problems.max-agents", "20",
        "--problems.max-examples", "60", "--problems.test-examples", "20", "--surf.steps", "1",
        "--surf.validation-tasks", "1",
    ]  # fmt: skip
    assert run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert fedsurf.load_for_modules(result["file"]).config == TINY.optimizer
    assert run([*command, "--resume"]) == 0
    assert "The best optimizer is that of step 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", pretrained.MODULE_NAMES)
def test_the_optimizer_inside_the_package_learns_exclusive_or(name: str) -> None:
    """Exclusive or: the label is whether two features have the same sign."""
    optimizer = fedsurf.load_for_modules(name)
    assert pretrained.card(name)["optimizer"] == vars(optimizer.config)
    parts = []
    for size in (30, 20):
        x = torch.randn(12, size, 2, generator=seeded(size))
        parts.append(fedsurf.Examples(x, (x.prod(2) > 0).long()))
    task = fedsurf.Task(*parts, 2)
    network = Network(nx.random_regular_graph(3, 12, seed=0), "metropolis")
    model = ModuleModel(nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 2)))
    algorithm = optimizer.on(model, rounds=20)
    trajectory = fedsurf.run(algorithm, task, network, algorithm.steps)
    assert trajectory.pooled_accuracy[-1] > 0.85
