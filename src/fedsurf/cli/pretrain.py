"""`fedsurf pretrain` and `pretrain-modules`: make the shipped weights again, from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedsurf.cli.console import err, print_json, say
from fedsurf.common.text import percent
from fedsurf.common.writing import check_folder
from fedsurf.pretrained.config import WEIGHTS_FILE, ModulePretrainConfig, PretrainConfig

if TYPE_CHECKING:
    from fedsurf.cli.progress import TerminalProgress


def pretrain(
    folder: Path = Path("pretrain-run"),
    config: Annotated[PretrainConfig, tyro.conf.arg(name="")] = PretrainConfig(),  # noqa: B008
    resume: bool = False,
    json: bool = False,
) -> None:
    """Meta-train the transferable optimizer that `fedsurf.load` returns.

    Takes one core and no download. `fedsurf.load("FOLDER/optimizer.safetensors")` returns the result, and
    `fedsurf compare STUDY --pretrained FOLDER/optimizer.safetensors` compares it.

    Args:
        folder: The run's folder; it must be new, unless resuming.
        config: The recipe.
        resume: Continue an interrupted run in this folder, to the same bits as without the
            interruption. The recipe must be the same.
        json: Print the result as JSON.
    """
    from fedsurf.pretrained.recipes.heads import pretrain as make

    with _progress(folder, resume=resume) as bar:
        _, best = make(config, folder, resume=resume, observers=[bar], open_bar=bar.next_part)
    _show(best, folder / WEIGHTS_FILE, as_json=json)
    if not json:
        say(f"Next: fedsurf audit {quote(str(folder / WEIGHTS_FILE))}")


def pretrain_modules(
    folder: Path = Path("pretrain-modules-run"),
    config: Annotated[ModulePretrainConfig, tyro.conf.arg(name="")] = ModulePretrainConfig(),  # noqa: B008
    resume: bool = False,
    json: bool = False,
) -> None:
    """Meta-train the optimizer that `fedsurf.load_for_modules` returns.

    Takes one core and no download. `fedsurf.load_for_modules("FOLDER/optimizer.safetensors")` returns
    the result.

    Args:
        folder: The run's folder; it must be new, unless resuming.
        config: The recipe.
        resume: Continue an interrupted run in this folder, to the same bits as without the
            interruption. The recipe must be the same.
        json: Print the result as JSON.
    """
    from fedsurf.pretrained.recipes.modules import pretrain_for_modules as make

    with _progress(folder, resume=resume) as bar:
        _, best = make(config, folder, resume=resume, observers=[bar])
    _show(best, folder / WEIGHTS_FILE, as_json=json)


@contextmanager
def _progress(folder: Path, *, resume: bool) -> Iterator[TerminalProgress]:
    """Check the folder, use one thread, and show a progress bar."""
    from fedsurf.cli.progress import TerminalProgress
    from fedsurf.common.threads import limit_threads

    if not resume:
        check_folder(folder)
    limit_threads(0)
    with TerminalProgress(err) as bar:
        yield bar


def _show(best: dict[str, Any], file: Path, *, as_json: bool) -> None:
    """Print which optimizer was the best, and the file with its weights."""
    validation = best["validation"]
    if as_json:
        print_json({"file": str(file), "rule": best["rule"], "validation": validation})
        return
    say(
        f"The best optimizer is that of step {validation['step']}, by {best['rule']}: "
        f"validation accuracy {percent(validation['pooled_accuracy'])} % pooled. It is in {file}."
    )
