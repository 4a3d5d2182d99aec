"""The recipe of the pretrained optimizer of softmax heads, from nothing to its weights.

SURF meta-trains everything that decides what heads predict. Then, with that fixed, the optimizer's
confidence is trained (`confidence_training`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fedsurf.common.configuration import to_dict
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator
from fedsurf.common.writing import lock_folder, write_tensors
from fedsurf.pretrained.config import WEIGHTS_FILE, PretrainConfig
from fedsurf.pretrained.loading import load
from fedsurf.pretrained.recipes.confidence_training import train_confidence
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.surf.loop import Observer, RunFolder, meta_train
from fedsurf.surf.training import MetaTraining
from fedsurf.unrolled.transferable.optimizer import Transferable

Optimizer = TypeVar("Optimizer", bound=nn.Module)


def pretrain(
    config: PretrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    open_bar: OpenBar = silent,
) -> tuple[Transferable, dict[str, Any]]:
    """Meta-train an optimizer of softmax heads; return it with the metadata of its validation.

    The run's folder, new unless resuming, holds `optimizer.safetensors` in the end. A resumed run continues
    meta-training from its newest state, to the same bits as without interruption; the training of
    confidence, which takes some minutes, starts again. `observers` get the progress of meta-training, and
    `open_bar` opens a bar for that of confidence.
    """
    config.optimizer.check()
    shape = replace(config.optimizer, confidence_width=0)
    optimizer = Transferable(shape, generator(config.seed, "parameters"))
    problems = WideProblems(config.problems, config.seed)
    training = MetaTraining(optimizer, problems, config.surf, seed=config.seed)

    def with_confidence() -> Transferable:
        if not config.optimizer.confidence_width:
            return optimizer
        if (path / WEIGHTS_FILE).is_file():  # the run is finished
            return load(path / WEIGHTS_FILE)
        whole = Transferable(config.optimizer, generator(config.seed, "parameters"))
        whole.graph, whole.server = optimizer.graph, optimizer.server
        train_confidence(whole, problems, config.confidence, open_bar)
        return whole

    return train_into(path, training, config, with_confidence, resume=resume, observers=observers)


def train_into(
    path: Path,
    training: MetaTraining,
    recipe: Any,
    finish: Callable[[], Optimizer],
    *,
    resume: bool,
    observers: Sequence[Observer],
) -> tuple[Optimizer, dict[str, Any]]:
    """Meta-train into a folder that ends with the weights of the optimizer that `finish` returns."""
    stored = to_dict(recipe)
    with lock_folder(path):
        folder = RunFolder(path)
        folder.begin(recipe, resume=resume)
        best = meta_train(training, folder, stored, observers)
        optimizer = finish()
        validation = best["validation"]
        card = {"optimizer": stored["optimizer"], "recipe": stored, "validation": validation}
        write_tensors(path / WEIGHTS_FILE, dict(optimizer.named_parameters()), card)
    return optimizer, best
