"""`fedsurf federation` as a user types it: files, lines, exit codes."""

from pathlib import Path

import pytest
from federations import changed

from fedsurf.cli.main import run
from fedsurf.network.engines.federation import graph_of, problems, read_federation

KINDS = ["regular", "erdos-renyi", "ring", "torus", "complete", "small-world", "star"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def federation(*arguments):
    return run(["federation", *arguments])


@pytest.mark.parametrize("agents", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_federation_passes_its_check(here, capsys, kind, agents):
    options = ["--agents", str(agents), "--graph", kind, "--seed", "2", "--insecure"]
    assert federation("new", "f.toml", *options) == 0
    assert capsys.readouterr().out == "Next: edit f.toml, then fedsurf federation check f.toml\n"
    assert problems("f.toml") == []
    assert len(read_federation("f.toml").agents) == agents


def test_options_reach_the_file(here):
    options = ["--name", "wine", "--label", "kind", "--rounds", "30", "--optimizer", "softmax-head"]
    called = ["--graph", "star", "--reporting", "3", "--calling", "random"]
    assert federation("new", "f.toml", *options, *called) == 0
    found = read_federation("f.toml")
    assert (found.name, found.data.label, found.training.rounds) == ("wine", "kind", 30)
    assert (found.server.reporting, found.server.calling) == (3, "random")


def test_a_file_is_not_overwritten(here, capsys):
    Path("f.toml").write_text("mine")
    assert federation("new", "f.toml") == 1
    assert capsys.readouterr().err == "error: f.toml: this file exists, and is not overwritten\n"
    assert Path("f.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agents", "0"], "agents: got 0, but it must be at least 1"),
        (["--reporting", "3"], "reporting: got 3, but only with --graph star"),
        (
            ["--graph", "star", "--reporting", "9"],
            "server.reporting: got 9, but it must be between",
        ),
        (["--name", "a b"], "name: got 'a b', but it must be"),
    ],
)
def test_a_federation_that_cannot_be_is_not_written(here, capsys, options, message):
    assert federation("new", "f.toml", *options) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert list(here.iterdir()) == []


def test_check_shows_who_is_linked_to_whom_within_80_columns(here, capsys):
    federation("new", "f.toml", "--agents", "20", "--graph", "complete", "--insecure")
    capsys.readouterr()
    assert federation("check", "f.toml", "--figure", "graph.png") == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("f.toml is sound\n")
    assert "not encrypted" in shown.err
    assert all(f" agent-{number} " in shown.out for number in range(1, 21))
    assert Path("graph.png").read_bytes().startswith(b"\x89PNG")
    Path("f.toml").unlink()
    federation("new", "f.toml", "--agents", "12", "--degree", "8", "--insecure")
    capsys.readouterr()
    assert federation("check", "f.toml") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    (row,) = (line for line in shown.splitlines() if line.startswith("  agent-1 "))
    graph = graph_of(read_federation("f.toml"))
    names = {f"agent-{1 + other}" for other in graph[0]}
    assert set(row.replace(",", "").split()[2:]) <= names


def test_a_server_is_shown_and_drawn(here, capsys):
    federation("new", "f.toml", "--graph", "star", "--insecure")
    assert federation("check", "f.toml", "--figure", "graph.svg") == 0
    assert "all others" in capsys.readouterr().out
    text = Path("graph.svg").read_text()
    assert "<svg" in text


def test_every_problem_is_a_line_and_the_exit_code_is_1(here, capsys):
    federation("new", "f.toml", "--insecure")
    changed(Path("f.toml"), ("rounds = 20", "rounds = 0"), ("softmax-head", "softmax-hat"))
    capsys.readouterr()
    assert federation("check", "f.toml") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    first, *lines = shown.err.splitlines()
    assert first == "error: f.toml has 2 problems"
    assert lines[0].startswith("training.rounds: got 0, but")
    assert lines[1].startswith("training.optimizer: got 'softmax-hat', but it must be softmax-head")
    assert len(lines) == 2


def test_a_missing_file_is_one_line(here, capsys):
    for command in ("check", "keys"):
        assert federation(command, "f.toml") == 1
        assert "f.toml: there is no such file\n" in capsys.readouterr().err


def test_keys_are_made_checked_and_kept(here, capsys):
    federation("new", "f.toml", "--agents", "2", "--graph", "ring")
    assert federation("check", "f.toml") == 1
    assert "make certificates with fedsurf federation keys" in capsys.readouterr().err
    assert federation("keys", "f.toml") == 0
    assert "Made 2 certificates in keys: agent-1, agent-2\n" in capsys.readouterr().out
    made = {path: path.read_bytes() for path in here.rglob("*.pem")}
    assert federation("check", "f.toml") == 0
    with Path("f.toml").open("a") as file:
        file.write('[[agents]]\nname = "late"\naddress = "10.0.0.3:17400"\n')
    capsys.readouterr()
    assert federation("check", "f.toml", "--as", "agent-1", "agent-2") == 0
    assert federation("check", "f.toml") == 1
    assert capsys.readouterr().err.count("there is no such file") == 3
    assert federation("keys", "f.toml") == 0
    assert "Made 1 certificate in keys: late\n" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in made} == made
    assert federation("check", "f.toml") == 0
    assert federation("keys", "f.toml") == 0
    assert "Every site has its certificate in keys\n" in capsys.readouterr().out


def test_keys_may_be_in_another_folder(here, capsys):
    federation("new", "f.toml", "--agents", "2", "--graph", "star", "--insecure")
    assert federation("keys", "f.toml", "--folder", "elsewhere") == 0
    assert {path.name for path in Path("elsewhere").iterdir()} == {
        *("agent-1", "agent-2", "authority", "server")
    }
    assert "set insecure = false" in capsys.readouterr().err
