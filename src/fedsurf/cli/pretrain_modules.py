"""`fedsurf pretrain-modules`: make the weights of the shipped optimizer of modules again, from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli.pretrain import show
from fedsurf.common.writing import check_folder
from fedsurf.pretrained.config import WEIGHTS_FILE, ModulePretrainConfig


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
    from fedsurf.cli.console import err
    from fedsurf.cli.progress import TerminalProgress
    from fedsurf.common.threads import limit_threads
    from fedsurf.pretrained.recipes.modules import pretrain_for_modules as run_pretraining

    if not resume:
        check_folder(folder)
    limit_threads(0)
    with TerminalProgress(err) as bar:
        _, best = run_pretraining(config, folder, resume=resume, observers=[bar])
    show(best, folder / WEIGHTS_FILE, as_json=json)
