"""Asynchronous agents: the loss of accuracy with and without the descending constraints."""

from collections.abc import Sequence

from fedsurf.paper.artefacts import ArtifactStore
from fedsurf.paper.claims import Claim, Number, above
from fedsurf.paper.figures.ablation import WITH, WITHOUT, loss_and_accuracy, optimizers, sources_of
from fedsurf.paper.figures.drawing import draw
from fedsurf.paper.figures.figure import Curve, FigureResult, PaperFigure, curve_of_ends


def judge(with_: Curve, without: Curve, stale: Sequence[int]) -> list[Claim]:
    """Judge that accuracy drops less with constraints, at several numbers of stale agents."""
    claims = []
    for count in stale:
        pair = (with_, without)
        drops = [curve.at("accuracy", 0) - curve.at("accuracy", count) for curve in pair]
        rises = [float((curve.at("loss", count) - curve.at("loss", 0)).mean()) for curve in pair]
        claims.append(
            Claim(
                f"asynchrony-{count}",
                "Our constrained method SURF is more resilient, as the deterioration in the performance "
                "is notably slower than that of the case with no constraints.",
                f"With {count} stale agents the accuracy drops by less with constraints than without, by "
                "more than two standard errors of the difference, task by task.",
                Number.of(f"drop {WITH}, {count} stale agents", drops[0]),
                Number.of(f"drop {WITHOUT}", drops[1]),
                above(drops[1], drops[0]),
                unit="points",
                note=f"The loss changes by {rises[0]:+.3f} with and by {rises[1]:+.3f} without.",
            )
        )
    return claims


def _make(store: ArtifactStore) -> FigureResult:
    size = store.size
    by_method = zip(*(sources_of(size, stale) for stale in size.stale), strict=True)
    curves = [
        curve_of_ends(store, dict(zip(size.stale, sources, strict=True))) for sources in by_method
    ]
    panels = loss_and_accuracy(curves, "stale agents", "counts")
    caption = (
        "Loss and accuracy after the last layer over the number of stale agents, whose neighbours use "
        f"their estimates of the round before. Mean over {size.tasks} meta-test tasks, bands of one "
        "standard error."
    )
    claims = judge(curves[0], curves[1], size.stale_judged)
    return FigureResult(claims, draw(panels), caption, curves)


ASYNCHRONY = PaperFigure(
    "asynchrony",
    "Asynchronous agents",
    "A 3-regular graph; the two optimizers of the ablation, where the neighbours of some agents use "
    "outdated estimates.",
    optimizers,
    lambda size: [s.artifact for stale in size.stale for s in sources_of(size, stale)],
    _make,
)
