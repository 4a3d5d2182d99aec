"""The ablation: U-DGD with and without the descending constraints, layer by layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.paper.artefacts import Artifact, ArtifactStore
from fedsurf.paper.claims import SAME_MARGIN, Claim, at_least, at_most, same
from fedsurf.paper.figures.drawing import Panel, draw
from fedsurf.paper.figures.figure import Curve, FigureResult, PaperFigure, Source, curve_of, surf_t
from fedsurf.paper.makers import rounds_of
from fedsurf.paper.sizes import Size

WITH, WITHOUT = "with constraints (SURF)", "without constraints"

MAX_GRADUAL_SHARE = 0.5
"""Largest share of the whole gain that one layer of a gradual optimizer brings."""
MIN_JUMP_SHARE = 0.5
"""Smallest share of the whole gain that counts as a jump at the last layer."""


def optimizers(size: Size) -> dict[str, ExperimentConfig]:
    """Return the two optimizers by label, the one with constraints first."""
    return {WITH: size.ablation, WITHOUT: size.without_constraints()}


def sources_of(size: Size, stale: int = 0) -> list[Source]:
    """Return the origins of the curves of both optimizers and SURF-T, with some stale agents."""
    study = size.study_of(size.ablation, stale)
    return [
        *(
            Source(label, "the paper's", Artifact("run", config, study))
            for label, config in optimizers(size).items()
        ),
        surf_t(study, rounds_of(size.ablation)),
    ]


def gains(accuracy: Tensor) -> Tensor:
    """Return each layer's share of the whole gain, `[tasks, layers]`; 0 for runs without any gain.

    `accuracy` is that of the start and after each layer: `[tasks, layers + 1]`.
    """
    steps = accuracy[:, 1:] - accuracy[:, :-1]
    whole = (accuracy[:, -1] - accuracy[:, 0])[:, None]
    shares: Tensor = (steps / whole).where(whole > 0, 0.0)
    return shares


def judge(with_: Tensor, without: Tensor) -> list[Claim]:
    """Judge both optimizers by their accuracy after each layer, `[tasks, layers + 1]`."""
    largest = gains(without).max(1).values
    gradual = Claim(
        "ablation-gradual",
        "The unrolled optimizer trained using SURF […] converges gradually to the optimal loss/accuracy "
        "over the layers.",
        f"With constraints no layer brings more than {100 * MAX_GRADUAL_SHARE:g} % of the whole gain in "
        "accuracy, on average over tasks.",
        *at_most(
            ("largest share of one layer, with constraints", gains(with_).max(1).values),
            (f"{100 * MAX_GRADUAL_SHARE:g} % of the gain", MAX_GRADUAL_SHARE),
        ),
        note=(
            "Without constraints the largest share of one layer is "
            f"{100 * float(largest.mean()):.0f} %."
        ),
    )
    before, after = (100 * float(without[:, layer].mean()) for layer in (-2, -1))
    jump = Claim(
        "ablation-jump",
        "[Without the descending constraints] the accuracy jumps from 0 % to 96 % at the last layer.",
        f"Without constraints the last layer brings at least {100 * MIN_JUMP_SHARE:g} % of the whole gain in "
        "accuracy, on average over tasks.",
        *at_least(
            ("share of the last layer, without constraints", gains(without)[:, -1]),
            (f"{100 * MIN_JUMP_SHARE:g} % of the gain", MIN_JUMP_SHARE),
        ),
        note=(
            f"Without constraints the accuracy before the last layer is {before:.1f} %, after it "
            f"{after:.1f} %."
        ),
    )
    end = Claim(
        "ablation-end",
        "[Without the descending constraints] it achieves the same performance at the final layer.",
        f"The accuracies after the last layer differ by no more than {100 * SAME_MARGIN:g} points, or by "
        "no more than two standard errors, task by task.",
        *same((WITH, with_[:, -1]), (WITHOUT, without[:, -1])),
    )
    return [gradual, jump, end]


def loss_and_accuracy(
    curves: Sequence[Curve], x_label: str, x_scale: Literal["linear", "counts"]
) -> list[Panel]:
    """Return panels of the loss and the accuracy on the agents' own test examples."""
    loss = Panel("loss", "test loss", curves, percent=False, log_y=True)
    accuracy = Panel("accuracy", "test accuracy, own examples (%)", curves)
    return [replace(panel, x_label=x_label, x_scale=x_scale) for panel in (loss, accuracy)]


def _make(store: ArtifactStore) -> FigureResult:
    size = store.size
    curves = [curve_of(store, source, "layer") for source in sources_of(size)]
    claims = judge(curves[0].values["accuracy"], curves[1].values["accuracy"])
    panels = loss_and_accuracy(curves, "layer", "linear")
    caption = (
        "Loss and accuracy on the agents' own test examples after each layer. Mean over "
        f"{size.tasks} meta-test tasks, bands of one standard error."
    )
    return FigureResult(claims, draw(panels), caption, curves)


ABLATION = PaperFigure(
    "ablation",
    "The descending constraints",
    "A 3-regular graph; U-DGD meta-trained with and without the descending constraints.",
    optimizers,
    lambda size: [source.artifact for source in sources_of(size)],
    _make,
)
