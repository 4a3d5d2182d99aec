"""Asynchronous agents: how U-DGD suffers, with and without the descending constraints."""

from collections.abc import Sequence

from fedsurf.paper.ablation import WITH, WITHOUT, both, trained
from fedsurf.paper.claims import Claim, drops_less
from fedsurf.paper.drawing import Panel, draw
from fedsurf.paper.finding import Curve, Finding, over_ends
from fedsurf.paper.plan import Plan
from fedsurf.paper.sizes import Size
from fedsurf.paper.speed import rounds_of
from fedsurf.paper.stages import Audited, Learned, Stage, Train, Yardsticks
from fedsurf.paper.workshop import Workshop


def _stages(size: Size) -> Sequence[Stage]:
    stages: list[Stage] = []
    optimizers: dict[str, Train] = trained(size)
    for stale in size.stale:
        study = size.study_of(size.ablation, stale)
        name = f"MNIST, {stale} stale agents" if stale else "MNIST"
        stages += [Learned(study, train, name, label) for label, train in optimizers.items()]
        stages.append(Yardsticks(study, rounds_of(size.ablation), name, centralised=False))
    return [*stages, *(Audited(train) for train in optimizers.values())]


def judge(with_: Curve, without: Curve, stale: Sequence[int]) -> list[Claim]:
    """Judge that the optimizer with constraints loses less, at several numbers of stale agents."""
    claims = []
    for count in stale:
        lost = {
            curve.label: curve.at("accuracy", 0) - curve.at("accuracy", count)
            for curve in (with_, without)
        }
        losses = [
            float((curve.at("loss", count) - curve.at("loss", 0)).mean())
            for curve in (with_, without)
        ]
        claims.append(
            drops_less(
                f"asynchrony-{count}",
                "The constrained method is more resilient: its performance deteriorates notably more "
                "slowly than without constraints.",
                f"With {count} stale agents the accuracy falls by less with constraints than without, by "
                "more than two standard errors of the difference, task by task.",
                (f"{WITH}, drop", lost[WITH]),
                (f"{WITHOUT}, drop", lost[WITHOUT]),
            ).noting(f"The loss changes by {losses[0]:+.3f} with and by {losses[1]:+.3f} without.")
        )
    return claims


def _make(workshop: Workshop) -> Finding:
    size = workshop.size
    studies = {stale: size.study_of(size.ablation, stale) for stale in size.stale}
    optimizers = both(size)
    curves = [
        over_ends(
            {stale: workshop.learned(study, config, label) for stale, study in studies.items()},
            "stale_agents",
        )
        for label, config in optimizers.items()
    ]
    claims = judge(curves[0], curves[1], size.stale_judged)
    rounds = rounds_of(size.ablation)
    curves.append(
        over_ends(
            {stale: workshop.pretrained(study, rounds) for stale, study in studies.items()},
            "stale_agents",
        )
    )
    x_label = "stale agents"
    panels = [
        Panel(
            "", x_label, "test loss", "loss", curves, percent=False, x_scale="counts", log_y=True
        ),
        Panel("", x_label, "test accuracy, own examples (%)", "accuracy", curves, x_scale="counts"),
    ]
    return Finding(
        curves,
        [],
        claims,
        draw(panels),
        optimizers,
        "Loss and accuracy after the last layer where so many agents are stale: their neighbours use "
        f"what they sent in the round before. Mean over {size.tasks} meta-test tasks, bands of one "
        "standard error.",
    )


ASYNCHRONY = Plan(
    "asynchrony",
    "Asynchronous agents",
    "MNIST, 3-regular graph; the two optimizers of the ablation where the neighbours of some agents use "
    "outdated estimates.",
    _stages,
    _make,
)
