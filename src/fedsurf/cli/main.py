"""The command line: parse, call the library, print.

Exit codes: 0 done; 1 failed (bad input, a value that cannot be, a damaged file, a full disk or memory); 2
the command line cannot be read (no such option, a value of another type); 3 data is missing; 4
meta-training diverged; 130 interrupted. Results go to standard output, progress and errors to standard
error. Each command is a file in `commands`.
"""

import logging
import os
import signal
import sys
from contextlib import suppress

import tyro
from rich.logging import RichHandler

from fedsurf import __version__
from fedsurf.cli.ablation import ablation
from fedsurf.cli.audit import audit
from fedsurf.cli.certify import certify
from fedsurf.cli.compare import compare
from fedsurf.cli.console import CommandLineError, err, out
from fedsurf.cli.data import data
from fedsurf.cli.demo import demo
from fedsurf.cli.evaluate import evaluate
from fedsurf.cli.fit import fit, predict
from fedsurf.cli.pretrain import pretrain
from fedsurf.cli.pretrain_modules import pretrain_modules
from fedsurf.cli.reproduce import reproduce
from fedsurf.cli.train import train
from fedsurf.cli.tune import tune
from fedsurf.common.checks import is_out_of_memory
from fedsurf.common.files import FileError
from fedsurf.surf import DivergedError
from fedsurf.tasks import sources

COMMANDS = (
    demo,
    train,
    evaluate,
    ablation,
    tune,
    compare,
    audit,
    certify,
    fit,
    predict,
    pretrain,
    pretrain_modules,
    reproduce,
)
"""In the order in which help lists them."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

app = tyro.extras.SubcommandApp()
for _command in COMMANDS:
    app.command(_command)
app.command(data, name="data", help="List the data sources, or get one.")


def main() -> None:
    """Run the command line, and turn errors into one clear line and an exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
    )
    code = run(sys.argv[1:])
    if code == INTERRUPTED:  # whoever presses Ctrl-C twice wants no traceback of the exit
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if arguments == ["--version"]:
        out.print(f"fedsurf {__version__}", highlight=False)
        return 0
    try:
        app.cli(
            prog="fedsurf",
            description="Learned federated optimizers: meta-train, evaluate and compare them. "
            "`fedsurf --version` tells which version this is.",
            args=arguments,
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            err.print(f"interrupted{_what_is_kept(arguments)}", highlight=False, soft_wrap=True)
        return INTERRUPTED
    except BrokenPipeError:  # who reads standard output has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except CommandLineError as error:
        return _failed(error, 2)
    except sources.MissingDataError as error:
        return _failed(error, 3)
    except DivergedError as error:
        return _failed(error, 4)
    except (FileError, sources.FetchError, ValueError, OSError, ImportError) as error:
        return _failed(error, 1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        more = (
            f" ({error})" if str(error) else ""
        )  # Python's own says nothing, others how much they wanted
        return _failed(MemoryError(f"there is not enough memory for it{more}"), 1)
    return 0


def _what_is_kept(arguments: list[str]) -> str:
    """Say how an interrupted command goes on."""
    kept = "; what was finished is kept: the same command"
    match arguments[:1]:
        case ["train" | "pretrain" | "pretrain-modules" | "reproduce"]:
            return f"{kept} with --resume goes on from there"
        case ["ablation" | "compare" | "demo"]:
            return f"{kept} goes on from there"
        case ["tune"] if not any(one.startswith("--methods") for one in arguments):
            # Those that are named are tuned again.
            return f"{kept} goes on from there"
    return ""


def _failed(error: Exception, code: int) -> int:
    err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True, style="red")
    return code
