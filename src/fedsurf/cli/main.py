"""The command line: parse, call the library, print.

Exit codes: 0 done; 1 failed (bad input, an impossible value, a damaged file, a full disk or memory); 2 the
command line cannot be parsed (no such option, a value of another type); 3 data is missing; 4 meta-training
diverged; 130 interrupted. Results go to standard output, progress and errors to standard error.

Each command is a function in a module of this folder. Only the module of the command that was typed is
imported, and that one imports torch only when the command runs, so that help and a mistyped option show
at once.
"""

import importlib
import inspect
import io
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import tyro

from fedsurf import __version__
from fedsurf.common.checks import is_out_of_memory
from fedsurf.common.text import printable

COMMANDS = {
    "demo": "demo",
    "fit": "fit",
    "predict": "fit",
    "train": "train",
    "evaluate": "evaluate",
    "compare": "compare",
    "tune": "tune",
    "audit": "audit",
    "certify": "certify",
    "ablation": "ablation",
    "reproduce": "reproduce",
    "pretrain": "pretrain",
    "pretrain-modules": "pretrain",
    "data": "data",
    "federation": "federation",
    "join": "join",
    "serve": "join",
    "completion": "completion",
}
"""The module of every command, in the order in which help lists them."""

DESCRIPTION = (
    "Learned federated optimizers: use, meta-train and compare them. "
    "`fedsurf COMMAND --help` explains a command, `fedsurf --version` prints the version."
)
MAX_LINE_CHARACTERS = 4000
"""Length of the longest line of an error."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run the command line of this process and exit."""
    code = run(sys.argv[1:])
    if code == INTERRUPTED:  # a second Ctrl-C must not print a traceback while Python exits
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors become one line on standard error."""
    if arguments == ["--version"]:
        sys.stdout.write(f"fedsurf {__version__}\n")
        return 0
    try:
        with _wrapped_help(arguments):
            if arguments and arguments[0] in COMMANDS:
                _log_to_terminal()
                call(arguments[0], arguments[1:])
            else:
                overview().cli(prog="fedsurf", description=DESCRIPTION, args=arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            sys.stderr.write(f"interrupted{_way_to_resume(arguments)}\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of standard output stopped reading, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if is_out_of_memory(error):
            details = f" ({error})" if str(error) else ""
            return _failed(f"not enough memory{details}", 1)
        expected = isinstance(error, ValueError | OSError | ImportError)
        code = getattr(error, "exit_code", 1 if expected else None)
        if code is None:
            raise
        return _failed(str(error), code)
    return 0


def call(name: str, arguments: list[str]) -> None:
    """Parse the arguments of a command and run it."""
    command = load(name)
    if isinstance(command, tyro.extras.SubcommandApp):
        command.cli(prog=f"fedsurf {name}", args=arguments)
    else:
        config = (tyro.conf.CascadeSubcommandArgs,)
        tyro.cli(command, prog=f"fedsurf {name}", args=arguments, config=config)


def load(name: str) -> Any:
    """Import a command: a function, or an app of several."""
    module = importlib.import_module(f"fedsurf.cli.{COMMANDS[name]}")
    command = getattr(module, name.replace("-", "_"))
    if inspect.isfunction(command):  # tyro keeps some line breaks inside a paragraph
        joint = r"(?<=\S)\n( {8,})?(?=\S)"
        command.__doc__ = re.sub(joint, " ", inspect.getdoc(command) or "")
    return command


def overview() -> tyro.extras.SubcommandApp:
    """Return an app that lists all commands with the first sentence of their help."""

    def listed() -> None:
        """Nothing runs it: the arguments of a known command are parsed by `call`."""

    app = tyro.extras.SubcommandApp()
    for name in COMMANDS:
        command = load(name)
        described = command if inspect.isfunction(command) else sys.modules[f"fedsurf.cli.{name}"]
        summary = (inspect.getdoc(described) or "").partition("\n\n")[0]
        app.command(name=name, help=summary)(listed)
    return app


def complete_app() -> tyro.extras.SubcommandApp:
    """Return an app of all commands with all their options."""
    app = tyro.extras.SubcommandApp()
    for name in COMMANDS:
        app.command(load(name), name=name)
    return app


@contextmanager
def _wrapped_help(arguments: list[str]) -> Iterator[None]:
    """Wrap the lines of help that tyro does not wrap: usage and description."""
    if not {"-h", "--help"} & set(arguments):
        yield
        return
    # With an encoding, by which tyro decides how it draws boxes.
    shown = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding)
    width = shutil.get_terminal_size().columns
    try:
        with redirect_stdout(shown):
            yield
    finally:
        shown.seek(0)
        for line in shown.read().splitlines():
            if line.startswith(("usage:", "{")):  # choices, which have no blanks
                line = line.replace(",", ", ")
            sys.stdout.write(textwrap.fill(line, width, break_on_hyphens=False) + "\n")


def _log_to_terminal() -> None:
    from rich.logging import RichHandler

    from fedsurf.cli.console import err

    handler = RichHandler(console=err, show_time=False, show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it reports its new font cache


def _way_to_resume(arguments: list[str]) -> str:
    """Tell how an interrupted command goes on."""
    match arguments[:1]:
        case ["join" | "serve"]:
            return "; the same command with --resume goes on, if the others still train"
        case ["train" | "pretrain" | "pretrain-modules" | "reproduce"]:
            return "; finished work is kept: the same command with --resume goes on"
        case ["ablation" | "compare" | "demo"]:
            return "; finished work is kept: the same command goes on"
        case ["tune"] if not any(word.startswith("--methods") for word in arguments):
            return "; finished work is kept: the same command goes on"
    return ""


def _failed(message: str, code: int) -> int:
    from fedsurf.cli.console import err

    lines = [printable(line, MAX_LINE_CHARACTERS) for line in message.splitlines()]
    err.print("error: " + "\n".join(lines), soft_wrap=True, style="red")
    return code
