"""The recipe of the pretrained optimizer: what `fedsurf pretrain` does, from nothing to its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsurf.configuration import to_dict
from fedsurf.files import only_one, write_tensors
from fedsurf.pretraining.problems import WideConfig, WideProblems
from fedsurf.randomness import generator as seeded
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.descent import DescentConfig
from fedsurf.surf.meta_training import MetaTraining, SurfConfig
from fedsurf.surf.running import Observer, meta_train, open_run
from fedsurf.unrolled.transferable import Transferable, TransferableConfig

WEIGHTS = "optimizer.safetensors"
"""What `fedsurf.load` reads, in the run's folder."""

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

    optimizer: TransferableConfig = field(default_factory=TransferableConfig)
    """Its shape."""
    problems: WideConfig = field(default_factory=lambda: _PROBLEMS)
    """The distribution of problems."""
    surf: SurfConfig = field(default_factory=lambda: _SURF)
    """Meta-training."""
    seed: int = 1
    """Everything random follows from this. What is shipped was made with this one."""


def pretrain(
    config: PretrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
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
        Are told what happens.
    """
    optimizer = Transferable(config.optimizer, seeded(config.seed, "parameters"))
    problems = WideProblems(config.problems, config.seed)
    training = MetaTraining(optimizer, problems, config.surf, seed=config.seed)
    return optimizer, train_into(path, training, config, resume=resume, observers=observers)


def train_into(
    path: Path, training: MetaTraining, recipe: Any, *, resume: bool, observers: Sequence[Observer]
) -> dict[str, Any]:
    """Meta-train by a recipe into a folder that ends with the weights; return what validation said."""
    folder, stored = RunFolder(path), to_dict(recipe)
    with only_one(path):
        open_run(folder, recipe, resume=resume)
        best = meta_train(training, folder, stored, observers)
        about = {
            "optimizer": stored["optimizer"],
            "recipe": stored,
            "validation": best["validation"],
        }
        write_tensors(path / WEIGHTS, dict(training.optimizer.named_parameters()), about)
    return best
