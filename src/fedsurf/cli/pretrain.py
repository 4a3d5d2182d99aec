"""`fedsurf pretrain`: make the weights of the shipped optimizer again, from nothing."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import TerminalProgress
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_folder
from fedsurf.pretrained.recipes.recipe import WEIGHTS, PretrainConfig
from fedsurf.pretrained.recipes.recipe import pretrain as run_pretraining


def pretrain(
    folder: Path = Path("pretrain-run"),
    config: Annotated[PretrainConfig, tyro.conf.arg(name="")] = PretrainConfig(),  # noqa: B008
    resume: bool = False,
    json: bool = False,
) -> None:
    """Meta-train the transferable optimizer that `fedsurf.load` returns.

    Takes one core, no download, and with the default recipe the time that the card of the shipped
    optimizer tells. `fedsurf.load("FOLDER/optimizer.safetensors")` returns the result, and
    `fedsurf compare STUDY --pretrained FOLDER/optimizer.safetensors` compares it.

    Args:
        folder: The run's folder; it must be new, unless resuming.
        config: The recipe.
        resume: Go on with an interrupted run in this folder, to the same bits as without the
            interruption. The recipe must be the same.
        json: Print the result as JSON.
    """
    if not resume:
        check_folder(folder)
    limit_threads(0)
    with TerminalProgress(err) as bar:
        _, best = run_pretraining(
            config, folder, resume=resume, observers=[bar], open_bar=bar.next_part
        )
    show(best, folder / WEIGHTS, as_json=json)
    if not json:
        following = f"Next: fedsurf audit {quote(str(folder / WEIGHTS))}"
        out.print(following, highlight=False, soft_wrap=True)


def show(best: dict[str, Any], file: Path, *, as_json: bool) -> None:
    """Say which optimizer was the best, and where its weights are."""
    validation = best["validation"]
    if as_json:
        print_json({"file": str(file), "rule": best["rule"], "validation": validation})
        return
    out.print(
        f"The best optimizer is that of step {validation['step']}, by {best['rule']}: "
        f"validation accuracy {100 * validation['pooled_accuracy']:.1f} % pooled. It is in {file}.",
        highlight=False,
        soft_wrap=True,
    )
