"""The recipe of softmax heads: folders, resuming to the same bits, invalid settings."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import running
import torch
from kill_and_resume import contents
from random_data import seeded
from random_data import task as draw_task

import fedsurf
from fedsurf import pretrained
from fedsurf.cli.main import run
from fedsurf.common.configuration import to_dict
from fedsurf.common.files import FileError
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork
from fedsurf.pretrained.config import WEIGHTS_FILE, ConfidenceConfig, PretrainConfig, WideConfig
from fedsurf.pretrained.recipes.heads import pretrain
from fedsurf.unrolled import TransferableConfig

TINY = PretrainConfig(
    optimizer=TransferableConfig(width=4, class_width=3, confidence_width=2),
    problems=WideConfig(real_share=0.0, max_agents=20, max_examples=60, test_examples=20),
    surf=replace(PretrainConfig().surf, steps=2, validate_every=1, validation_tasks=2),
    confidence=ConfidenceConfig(problems=3, steps=2),
    seed=5,
)


class Stop(Exception):  # noqa: N818 - it is no error
    pass


class StopAfter:
    def __init__(self, step):
        self.last = step

    def on_start(self, done, total):
        pass

    def on_step(self, record):
        if record.step == self.last:
            raise Stop

    def on_validation(self, record, best_by):
        pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained") / "whole"
    return path, *pretrain(TINY, path)


def test_the_folder_holds_a_run_and_the_weights(whole):
    path, _, best = whole
    assert sorted(file.name for file in path.iterdir()) == [
        "best.safetensors", "config.json", "log.jsonl", WEIGHTS_FILE, "state-00000002",
    ]  # fmt: skip
    log = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2]
    assert best["validation"]["step"] in (1, 2)
    assert len(best["validation"]["slack"]) == 10


def test_the_written_weights_are_those_of_the_returned_optimizer(whole):
    path, optimizer, best = whole
    loaded = fedsurf.load(path / WEIGHTS_FILE)
    assert loaded.config == TINY.optimizer
    for found, expected in zip(loaded.parameters(), optimizer.parameters(), strict=True):
        assert torch.equal(found, expected)
        assert not found.requires_grad
    drawn = fedsurf.Transferable(TINY.optimizer, fedsurf.generator(5, "parameters"))
    pairs = zip(loaded.parameters(), drawn.parameters(), strict=True)
    assert any(not torch.equal(found, start) for found, start in pairs)
    card = pretrained.card(path / WEIGHTS_FILE)
    assert card["recipe"] == to_dict(TINY)
    assert card["validation"] == best["validation"]
    task = draw_task(0, 4, dtype=torch.float32)
    algorithm = loaded.on(SoftmaxHead(3, 3), 4)
    network = StarNetwork(4, 2, seeded(0))
    assert running.run(algorithm, task, network, steps=1).weights.isfinite().all()


@pytest.mark.parametrize("last", [1, 2])
def test_a_stopped_run_resumes_to_the_same_bytes(whole, tmp_path, last):
    """After step 1 there is no state yet; after step 2 there is that of step 1."""
    before = torch.get_rng_state()
    with pytest.raises(Stop):
        pretrain(TINY, tmp_path / "run", observers=[StopAfter(last)])
    assert not (tmp_path / "run" / WEIGHTS_FILE).exists()
    assert (tmp_path / "run" / "state-00000001").exists() == (last == 2)
    pretrain(TINY, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole[0])
    assert torch.equal(torch.get_rng_state(), before)


@contextmanager
def stop_at_the_second_problem(_title, _total):
    done = []

    def advance():
        done.append(1)
        if len(done) == 2:
            raise Stop

    yield advance


def test_a_run_stopped_during_training_of_confidence_resumes_to_the_same_bytes(whole, tmp_path):
    with pytest.raises(Stop):
        pretrain(TINY, tmp_path / "run", open_bar=stop_at_the_second_problem)
    assert not (tmp_path / "run" / WEIGHTS_FILE).exists()
    pretrain(TINY, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole[0])


def test_confidence_changes_no_other_parameter(whole, tmp_path):
    without = replace(TINY, optimizer=replace(TINY.optimizer, confidence_width=0))
    optimizer, best = pretrain(without, tmp_path / "run")
    assert optimizer.confidence is None
    assert best["validation"] == whole[2]["validation"]
    of_whole = dict(whole[1].named_parameters())
    for name, value in optimizer.named_parameters():
        assert torch.equal(value, of_whole.pop(name))
    assert of_whole
    assert all(name.startswith("confidence.") for name in of_whole)
    assert any(value.any() for name, value in of_whole.items() if "second" in name)


def test_a_finished_run_is_only_read(whole):
    before = contents(whole[0])

    def never(_title, _total):
        raise Stop

    optimizer, best = pretrain(
        TINY, whole[0], resume=True, observers=[StopAfter(1)], open_bar=never
    )
    assert contents(whole[0]) == before
    assert best == whole[2]
    for found, expected in zip(optimizer.parameters(), whole[1].parameters(), strict=True):
        assert torch.equal(found, expected)


def test_a_used_folder_and_another_recipe_are_refused(whole, tmp_path):
    before = contents(whole[0])
    with pytest.raises(FileExistsError, match=r"whole: the folder is not empty"):
        pretrain(TINY, whole[0])
    for change, message in (
        ({"seed": 4}, r"seed \(5 there, 4 here\)"),
        ({"surf": replace(TINY.surf, clip=None)}, r"surf\.clip \(0\.3 there, None here\)"),
        (
            {"problems": replace(TINY.problems, max_agents=30)},
            r"problems\.max_agents \(20 there, 30 here\)",
        ),
    ):
        with pytest.raises(ValueError, match=rf"another configuration, which differs in {message}"):
            pretrain(replace(TINY, **change), whole[0], resume=True)
    assert contents(whole[0]) == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"config\.json: there is no such file"):
        pretrain(TINY, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("optimizer.width", "0", "width: got 0, but it must be at least 1"),
        ("optimizer.class-width", "-1", "class_width: got -1, but it must be at least 1"),
        ("optimizer.confidence-width", "-1", "confidence_width: got -1, but it must be at least 0"),
    ],
)
def test_invalid_settings_are_refused_before_the_work(tmp_path, capsys, option, value, message):
    folder = tmp_path / "run"
    assert run(["pretrain", "--folder", str(folder), *ARGUMENTS, f"--{option}", value]) == 1
    assert f"error: {message}" in " ".join(capsys.readouterr().err.split())
    assert not folder.exists()


def test_the_shipped_recipe_constrains_descent_on_wide_problems():
    recipe = PretrainConfig()
    assert recipe.surf.descent.constrained
    assert recipe.surf.loss_on == "pooled"
    assert recipe.problems.real_share > 0
    assert recipe.problems.server_share > 0
    assert recipe.problems.batch_share > 0
    assert pretrained.card()["recipe"] == json.loads(json.dumps(to_dict(recipe)))


ARGUMENTS = [
    "--optimizer.width", "4", "--optimizer.class-width", "3", "--problems.real-share", "0",
    "--problems.max-agents", "20", "--problems.max-examples", "60",
    "--problems.test-examples", "20", "--surf.steps", "2", "--surf.validation-tasks", "2",
    "--optimizer.confidence-width", "2", "--confidence.problems", "2", "--confidence.steps", "2",
]  # fmt: skip


def test_pretrain_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run")
    command = ["pretrain", "--folder", folder, *ARGUMENTS]
    assert run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Path(result["file"]) == tmp_path / "run" / WEIGHTS_FILE
    assert result["validation"]["step"] == 2
    assert fedsurf.load(result["file"]).config == TINY.optimizer
    assert run(command) == 1
    assert "the folder is not empty" in capsys.readouterr().err
    assert run([*command, "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "The best optimizer is that of step 2" in shown
    assert f"fedsurf audit {tmp_path / 'run' / WEIGHTS_FILE}" in shown
    assert run([*command, "--resume", "--seed", "2"]) == 1
    assert "seed (1 there, 2 here)" in capsys.readouterr().err
