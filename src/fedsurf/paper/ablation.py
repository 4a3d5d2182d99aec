"""The ablation: U-DGD with and without the descending constraints, layer by layer."""

from collections.abc import Sequence

from torch import Tensor

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.paper.claims import SAME, Claim, at_least, at_most, same
from fedsurf.paper.drawing import Panel, draw
from fedsurf.paper.finding import Finding, over_layers
from fedsurf.paper.plan import Plan
from fedsurf.paper.sizes import Size
from fedsurf.paper.speed import rounds_of
from fedsurf.paper.stages import Audited, Learned, Stage, Train, Yardsticks
from fedsurf.paper.workshop import Workshop

WITH, WITHOUT = "with constraints (SURF)", "without constraints"

GRADUAL = 0.5
"""An optimizer of which no layer brings more than this share of the whole gain is gradual."""
JUMP = 0.5
"""The last layer jumps if it brings at least this share of the whole gain."""


def both(size: Size) -> dict[str, ExperimentConfig]:
    """Return the two optimizers."""
    return {WITH: size.ablation, WITHOUT: size.without_constraints()}


def trained(size: Size) -> dict[str, Train]:
    """Return the meta-training of both."""
    return {label: Train(config, f"MNIST {label}") for label, config in both(size).items()}


def gains(accuracy: Tensor) -> Tensor:
    """Return the share of the whole gain that each layer brought, `[tasks, layers]`.

    Of a run without any gain in the end, every share is 0.
    """
    steps = accuracy[:, 1:] - accuracy[:, :-1]
    whole = (accuracy[:, -1] - accuracy[:, 0])[:, None]
    shares: Tensor = (steps / whole).where(whole > 0, 0.0)
    return shares


def judge(with_: Tensor, without: Tensor) -> list[Claim]:
    """Judge both optimizers by their accuracy after each layer, `[tasks, layers + 1]`."""
    gradual = at_most(
        "ablation-gradual",
        "Trained with the constraints, the optimizer converges gradually over the layers.",
        f"With constraints no layer brings more than {100 * GRADUAL:g} % of the whole gain in accuracy, "
        "on average over tasks.",
        ("largest share of one layer, with constraints", gains(with_).max(1).values),
        (f"{100 * GRADUAL:g} % of the gain", GRADUAL),
    ).noting(
        "Without constraints the largest share of one layer is "
        f"{100 * float(gains(without).max(1).values.mean()):.0f} %."
    )
    jump = at_least(
        "ablation-jump",
        "Trained without the constraints, the accuracy jumps from 0 % to 96 % at the last layer.",
        f"Without constraints the last layer brings at least {100 * JUMP:g} % of the whole gain in "
        "accuracy, on average over tasks.",
        ("share of the last layer, without constraints", gains(without)[:, -1]),
        (f"{100 * JUMP:g} % of the gain", JUMP),
    ).noting(
        f"Without constraints the accuracy before the last layer is "
        f"{100 * float(without[:, -2].mean()):.1f} %, after it {100 * float(without[:, -1].mean()):.1f} %."
    )
    end = same(
        "ablation-end",
        "Both achieve the same performance at the final layer.",
        f"The accuracies after the last layer differ by no more than {100 * SAME:g} points, or by no "
        "more than two standard errors, task by task.",
        (WITH, with_[:, -1]),
        (WITHOUT, without[:, -1]),
    )
    return [gradual, jump, end]


def _stages(size: Size) -> Sequence[Stage]:
    study = size.study_of(size.ablation)
    stages: list[Stage] = [Yardsticks(study, rounds_of(size.ablation), "MNIST", centralised=False)]
    for label, train in trained(size).items():
        stages += [train, Learned(study, train, "MNIST", label), Audited(train)]
    return stages


def _make(workshop: Workshop) -> Finding:
    size = workshop.size
    study, optimizers = size.study_of(size.ablation), both(size)
    curves = [
        over_layers(workshop.learned(study, config, label)) for label, config in optimizers.items()
    ]
    claims = judge(*(curve.values["accuracy"] for curve in curves))
    curves.append(over_layers(workshop.pretrained(study, rounds_of(size.ablation))))
    panels = [
        Panel("", "layer", "test loss", "loss", curves, percent=False, log_y=True),
        Panel("", "layer", "test accuracy, own examples (%)", "accuracy", curves),
    ]
    return Finding(
        curves,
        [],
        claims,
        draw(panels),
        optimizers,
        "Loss and accuracy on the agents' own test examples after each layer. Mean over "
        f"{size.tasks} meta-test tasks, bands of one standard error.",
    )


ABLATION = Plan(
    "ablation",
    "The descending constraints",
    "MNIST, 3-regular graph; U-DGD meta-trained with and without the descending constraints.",
    _stages,
    _make,
)
