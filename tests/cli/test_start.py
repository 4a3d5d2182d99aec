"""The start of the command line: help, imports, exit codes of interruptions and of full memory."""

import json
import os
import resource
import runpy
import signal
import statistics
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import fedsurf
from fedsurf import __version__
from fedsurf.cli import main as cli
from fedsurf.cli.main import COMMANDS, run

HEAVY_MODULES = ("torch", "pandas", "sklearn", "scipy", "matplotlib")
STARTS = (["-m", "fedsurf"], ["-c", "from fedsurf.__main__ import main; main()"])


def interrupt(*_, **__):
    raise KeyboardInterrupt


def help_of(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        run([*arguments, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command_within_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of([], capsys)
    assert all(f"• {name} " in shown for name in COMMANDS)
    assert max(map(len, shown.splitlines())) <= 80


SUBCOMMANDS = (
    *("train smoke", "compare digits", "tune digits", "data list", "data get"),
    *("federation new", "federation check", "federation keys"),
)


@pytest.mark.parametrize("command", [*COMMANDS, *SUBCOMMANDS])
def test_help_of_a_command_fills_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of(command.split(), capsys)
    assert shown.startswith(f"usage: fedsurf {command} ")
    rest = shown.replace("│", " ").partition("\n\n")[2]
    assert max(map(len, shown.splitlines())) <= 80
    for line, following in pairwise(map(str.rstrip, rest.splitlines())):
        indent = len(following) - len(following.lstrip())
        same = line.startswith(" " * indent) and line[indent : indent + 1].strip()
        if following and same and (indent == 0 or indent > 6):
            word = following.split()[0]
            assert len(f"{line} {word}") > 78, "a line is broken before it is full"


def processor_seconds(arguments):
    """Return the median of five runs of Python; unlike time by the clock, other work hardly changes it."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)


def test_help_starts_within_30_times_the_start_of_python():
    ratio = processor_seconds(["-m", "fedsurf", "--help"]) / processor_seconds(["-c", "pass"])
    print(f"fedsurf --help takes {ratio:.1f} times as long as python -c pass")  # noqa: T201
    assert ratio <= 30


def modules_after(arguments):
    """Return which heavy modules are imported once a command line was parsed."""
    code = (
        "import sys\nfrom fedsurf.cli.main import run\n"
        f"try:\n    run({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY_MODULES!r} if name in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(found.stderr.splitlines()[-1].replace("'", '"'))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_no_heavy_module(name):
    assert modules_after([name, "--help"]) == []


def test_help_and_wrong_command_lines_import_no_heavy_module():
    wrong = ["fti"], ["fit", "data.csv", "--rouns", "3"], ["federation", "new", "a.toml", "--agnts"]
    for arguments in (["--help"], *wrong, ["federation", "check", "--help"]):
        assert modules_after(arguments) == []


def test_completion_knows_commands_and_options(capsys):
    with pytest.raises(SystemExit) as stop:
        run(["completion", "bash"])
    assert not stop.value.code
    script = capsys.readouterr().out
    assert "complete -F" in script
    assert all(name in script for name in (*COMMANDS, "--test-share", "--surf.steps"))


def test_the_version_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedsurf", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("fedsurf", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fedsurf {__version__}\n"


@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_during_an_import_prints_no_traceback(tmp_path, start):
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "data.csv").write_text("x,label\n1,a\n2,b\n")
    path = os.pathsep.join([str(tmp_path), str(Path(fedsurf.__file__).parents[1])])
    found = subprocess.run(
        [sys.executable, *start, "fit", "data.csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "interrupted\n")


def test_the_installed_command_is_that_of_the_module():
    project = Path(__file__).parents[2] / "pyproject.toml"
    scripts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"fedsurf": "fedsurf.__main__:main"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train", "smoke"], "--resume goes on"),
        (["compare", "digits"], "the same command goes on"),
        (["tune", "digits", "--file", "tuned.json"], "the same command goes on"),
        (["tune", "digits", "--file", "tuned.json", "--methods", "dgd"], ""),
        (["tune", "digits", "--methods=dgd", "--file", "tuned.json"], ""),
        (["fit", "data.csv"], ""),
    ],
)
def test_an_interrupted_command_tells_how_it_goes_on(monkeypatch, capsys, command, expected):
    monkeypatch.setattr(cli, "call", interrupt)
    assert run(command) == 130
    error = capsys.readouterr().err
    assert error.startswith("interrupted")
    assert error.count("\n") == 1
    assert expected in error
    assert ("goes on" in error) == bool(expected)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MemoryError, ""),
        (MemoryError, "Unable to allocate 9 GiB"),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_full_memory_is_one_line(monkeypatch, capsys, kind, message):
    def full(*_, **__):
        raise kind(message)

    monkeypatch.setattr(cli, "call", full)
    assert run(["fit", "data.csv"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: not enough memory")
    assert error.count("\n") == 1
    assert message in error


def test_unexpected_errors_are_raised(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(cli, "call", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(["fit", "data.csv"])


def test_a_second_interruption_prints_no_traceback(monkeypatch):
    monkeypatch.setattr(cli, "call", interrupt)
    monkeypatch.setattr("sys.argv", ["fedsurf", "demo"])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
