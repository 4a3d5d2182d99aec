"""The documentation is correct: its code runs, its commands parse, its links have targets."""

import functools
import inspect
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import pytest
import torch
import tyro
from random_data import task as draw_task

import fedsurf
from fedsurf.cli import main as cli
from fedsurf.evaluation.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SKIP = "<!-- no-test -->"
"""Directly above a block of Python that needs the internet or a long time."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, where it begins, and whether it is exempt."""

    language: str
    text: str
    line: int
    exempt: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match[1],
            match[2],
            text[: match.start()].count("\n") + 1,
            text[: match.start()].rstrip().endswith(SKIP),
        )
        for match in FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of every `fedsurf …` in the page's console and shell blocks."""
    found = []
    for block in blocks(page):
        if block.language not in ("console", "sh", "bash", "shell"):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "console" and not line.startswith("$ "):
                continue  # what a command prints
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)  # a variable of the environment
            if words and Path(words[0]).name == "fedsurf":
                end = next(
                    (at for at, word in enumerate(words) if re.fullmatch("[|<>;&]+", word)),
                    len(words),
                )
                found.append(words[1:end])
    return found


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current folder, a home of fedsurf and a catalogue of methods that leave no trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    methods = dict(METHODS)
    yield tmp_path
    METHODS.clear()
    METHODS.update(methods)


class ParsedError(BaseException):
    """The command line was understood, and the work would begin now."""


@pytest.fixture
def only_parsing(monkeypatch):
    """Let commands stop once their arguments are parsed."""
    load = cli.load

    def stopping(name):
        command = load(name)
        if inspect.isfunction(command):
            return stopped(command)
        app = tyro.extras.SubcommandApp()
        for subcommand, spec in command._subcommands.items():
            app.command(stopped(spec.target), name=subcommand)
        return app

    def stopped(command):
        @functools.wraps(command)
        def stop(*args, **kwargs):
            raise ParsedError

        return stop

    monkeypatch.setattr(cli, "load", stopping)


WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, elsewhere):
    namespace = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python" and not block.exempt:
            # Empty lines before the code, so that a traceback names the line of the page.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, namespace)  # noqa: S102 - our own documentation


def test_the_method_of_the_page_on_extending_takes_tasks_in_double_precision():
    first = next(one for one in blocks(ROOT / "docs/extending.md") if one.language == "python")
    namespace = {"__name__": "page"}
    exec(first.text, namespace)  # noqa: S102 - our own documentation
    method = namespace["MomentumDGD"](fedsurf.SoftmaxHead(3, 3), batch_size=None)
    task = draw_task(0)
    assert task.train.x.dtype == torch.float64
    runs = fedsurf.run(method, task, fedsurf.Network(nx.cycle_graph(4)), steps=20)
    assert runs.loss[-1] < runs.loss[0]


@pytest.mark.slow  # half a minute, unless mypy has just looked at the package
@pytest.mark.parametrize("page", ["docs/extending.md", "docs/networks.md"])
def test_mypy_accepts_the_python_of_the_pages_on_extending(page, tmp_path):
    script = tmp_path / "page.py"
    code = [block.text for block in blocks(ROOT / page) if block.language == "python"]
    script.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", script],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", EXAMPLES, ids=name)
def test_an_example_runs_and_prints_something(script, elsewhere):
    done = subprocess.run(
        [sys.executable, script],
        cwd=elsewhere,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id=f"{name(page)}: {' '.join(arguments)}")
        for page in PAGES
        for arguments in commands(page)
    ],
)
def test_a_command_parses(arguments, only_parsing, elsewhere):
    help_shown = "--help" in arguments
    with pytest.raises(SystemExit if help_shown else ParsedError) as stopped:
        cli.run(arguments)
    if help_shown:
        assert not stopped.value.code


def test_a_command_that_does_not_exist_does_not_parse(only_parsing):
    with pytest.raises(SystemExit):
        cli.run(["train", "smoke", "--folder", "run", "--no-such-field", "1"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_to_files_and_headings(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"\w+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{name(page)}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name(page)}: {link}: there is no such heading"


def test_the_index_lists_every_page_and_example():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for path in [*(ROOT / "docs").glob("*.md"), *EXAMPLES]:
        assert path.name == "README.md" or path.name in index, f"docs/README.md lacks {path.name}"


def test_contributing_names_files_and_folders_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/.]+(?:\.pyi?|/))`", text)
    assert len(named) > 50
    for place in named:
        folders = ROOT, ROOT / "src/fedsurf"
        assert any((folder / place).exists() for folder in folders), f"there is no {place}"


@pytest.mark.parametrize("public", fedsurf.__all__)
def test_every_argument_of_a_public_name_is_documented(public):
    thing = getattr(fedsurf, public)
    if not callable(thing) or getattr(thing, "_is_protocol", False):
        return
    text, source = inspect.getdoc(thing), inspect.getsource(thing)
    assert text
    fields = re.findall(r'^    (\w+): [^\n]*\n    """', source, re.MULTILINE)
    fields += re.findall(r"^    #: [^\n]*\n    (\w+): ", source, re.MULTILINE)
    missing = {*inspect.signature(thing).parameters} - {*re.findall(r"\w+", text), *fields}
    assert not missing, f"{public} does not document {sorted(missing)}"
