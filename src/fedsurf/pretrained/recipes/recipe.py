"""The recipe of the pretrained optimizer: what `fedsurf pretrain` does, from nothing to its weights.

First SURF meta-trains everything that decides what heads predict; then, with that as it is, the optimizer
learns how sure of it they should be (`confidence`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fedsurf.common.configuration import to_dict
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import lock_folder, write_tensors
from fedsurf.pretrained import load
from fedsurf.pretrained.recipes.probabilities import ConfidenceConfig, learn_confidence
from fedsurf.pretrained.recipes.problems import WideConfig, WideProblems
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.config import DescentConfig, SurfConfig
from fedsurf.surf.loop import Observer, meta_train, open_run
from fedsurf.surf.training import MetaTraining
from fedsurf.unrolled.config import TransferableConfig
from fedsurf.unrolled.transferable.optimizer import Transferable

Optimizer = TypeVar("Optimizer", bound=nn.Module)

WEIGHTS = "optimizer.safetensors"
"""What `fedsurf.load` reads, in the run's folder."""
SEEN = "seen.safetensors"
"""What confidence was learning from when it was interrupted; gone when a run is finished."""

_SURF = SurfConfig(
    steps=3000,
    learning_rate=2e-2,
    final_learning_rate=3e-3,
    second_moment_decay=0.99,
    dual_rate=1e-2,
    penalty=0.1,
    descent=DescentConfig(
        epsilon=0.01, gradient_of="average", gradient_examples="all", form="log-ratio"
    ),
    loss_on="pooled",
    calibrated_share=0.8,
    calibration_examples=256,
    relative_loss=True,
    clip=0.3,
    skip_above=3.0,
    averaging=0.99,
    weighting="examples",
    validate_every=250,
    validation_tasks=40,
    select_by="last",
)

_PROBLEMS = WideConfig(
    gaussian_share=0.2,
    two_share=0.15,
    server_share=0.5,
    few_share=0.25,
    batch_share=0.1,
    even_share=0.2,
)


@dataclass(frozen=True)
class PretrainConfig:
    """Everything that the pretrained optimizer depends on."""

    optimizer: TransferableConfig = field(
        default_factory=lambda: TransferableConfig(confidence_width=32)
    )
    """Its shape."""
    problems: WideConfig = field(default_factory=lambda: _PROBLEMS)
    """The distribution of problems."""
    surf: SurfConfig = field(default_factory=lambda: _SURF)
    """Meta-training."""
    confidence: ConfidenceConfig = field(default_factory=ConfidenceConfig)
    """Learning how sure heads should be."""
    seed: int = 1
    """Everything random follows from this. What is shipped was made with this one."""


def pretrain(
    config: PretrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    open_bar: OpenBar = silent,
) -> tuple[Transferable, dict[str, Any]]:
    """Meta-train a transferable optimizer into a folder; return it, and what validation said of it.

    Parameters
    ----------
    config : PretrainConfig
        The recipe.
    path : Path
        The run's folder. It must be new, unless resuming. In the end it holds `optimizer.safetensors`.
    resume : bool
        Go on from the newest state in the folder, to the same bits as without interruption.
    observers : sequence of Observer
        Are told what happens in meta-training.
    open_bar : OpenBar
        Opens a progress bar with a title and a total, for what comes after it.
    """
    config.optimizer.check()
    config.confidence.check()
    shape = replace(config.optimizer, confidence_width=0)
    optimizer = Transferable(shape, seeded(config.seed, "parameters"))
    problems = WideProblems(config.problems, config.seed)
    training = MetaTraining(optimizer, problems, config.surf, seed=config.seed)

    def with_confidence() -> Transferable:
        if not config.optimizer.confidence_width:
            return optimizer
        if (path / WEIGHTS).is_file():  # a finished run
            return load(path / WEIGHTS)
        whole = Transferable(config.optimizer, seeded(config.seed, "parameters"))
        whole.graph, whole.server = optimizer.graph, optimizer.server
        learn_confidence(whole, problems, config.confidence, open_bar, path / SEEN)
        return whole

    found = train_into(path, training, config, with_confidence, resume=resume, observers=observers)
    (path / SEEN).unlink(missing_ok=True)
    return found


def train_into(
    path: Path,
    training: MetaTraining,
    recipe: Any,
    finish: Callable[[], Optimizer],
    *,
    resume: bool,
    observers: Sequence[Observer],
) -> tuple[Optimizer, dict[str, Any]]:
    """Meta-train by a recipe into a folder that ends with the weights.

    Returns the optimizer that `finish` makes of the meta-trained one, and what validation said.
    """
    folder, stored = RunFolder(path), to_dict(recipe)
    with lock_folder(path):
        open_run(folder, recipe, resume=resume)
        best = meta_train(training, folder, stored, observers)
        optimizer = finish()
        about = {
            "optimizer": stored["optimizer"],
            "recipe": stored,
            "validation": best["validation"],
        }
        write_tensors(path / WEIGHTS, dict(optimizer.named_parameters()), about)
    return optimizer, best
