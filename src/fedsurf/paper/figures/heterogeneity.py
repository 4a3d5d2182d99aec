"""Heterogeneous agents: U-DGD compared with classical methods as the agents' labels differ more."""

from collections.abc import Sequence

from fedsurf.paper.artefacts import Artifact, ArtifactStore
from fedsurf.paper.claims import Claim, Judgement, Number, drop, smaller
from fedsurf.paper.figures.drawing import Panel, draw
from fedsurf.paper.figures.figure import (
    UNTUNED_KINDS,
    Curve,
    CurveKind,
    FigureResult,
    PaperFigure,
    Source,
    curve_of,
)
from fedsurf.paper.figures.speed import ACCURACY_LABEL, artifacts_of, beats_all, curves_of, reached
from fedsurf.paper.sizes import Size

JUDGED_VALUE = "pooled_accuracy"
"""The value by which the claims are judged."""
EVEN_LABEL = "U-DGD, meta-trained on even agents"
"""The optimizer for the 3-regular graph."""


def _even(size: Size, alpha: float) -> Source:
    study = size.study_of(size.at_alpha(alpha))
    return Source(EVEN_LABEL, "the paper's", Artifact("run", size.regular, study))


def _artifacts(size: Size) -> list[Artifact]:
    found: list[Artifact] = []
    for alpha in size.alphas:
        found += [*artifacts_of(size, size.at_alpha(alpha)), _even(size, alpha).artifact]
    return found


def _make(store: ArtifactStore) -> FigureResult:
    size = store.size
    curves: list[Curve] = []
    levels, panels, claims = [], [], []
    for alpha in size.alphas:
        name = f"α = {alpha:g}"
        here, level = curves_of(store, size.at_alpha(alpha), name)
        even = curve_of(store, _even(size, alpha), "rounds", name, level.values)
        claims.append(
            beats_all(
                f"heterogeneity-{alpha:g}",
                "U-DGD consistently outperforms all other benchmarks in terms of accuracy.",
                here,
                size.rounds,
                f"{EVEN_LABEL}: {100 * float(even.at(JUDGED_VALUE).mean()):.1f} %.",
            )
        )
        here.append(even)
        curves += here
        levels.append(level)
        panels.append(Panel(JUDGED_VALUE, ACCURACY_LABEL, here, [level], name))
    first, last = (f"α = {alpha:g}" for alpha in (size.alphas[0], size.alphas[-1]))
    claims.append(slower_degradation(curves, first, last))
    caption = (
        "Accuracy over communication rounds, 3-regular graph, agents whose labels are drawn from a "
        f"Dirichlet distribution. Mean over {size.tasks} meta-test tasks, bands of one standard error; "
        "dashed: with the paper's settings."
    )
    return FigureResult(claims, draw(panels), caption, curves, levels)


def slower_degradation(curves: Sequence[Curve], first: str, last: str) -> Claim:
    """Judge that U-DGD's accuracy drops less between two panels than that of every classical method."""

    def drops(kinds: Sequence[CurveKind], suffix: str = "") -> list[Number]:
        before, after = (
            reached([curve for curve in curves if curve.panel == panel], kinds, JUDGED_VALUE)
            for panel in (first, last)
        )
        return [drop(f"{name}{suffix}", before[name], after[name]) for name in before]

    def judge(kinds: Sequence[CurveKind], settings: str) -> Judgement:
        mine, least = drops(["the paper's"])[0], min(drops(kinds, settings), key=lambda n: n.mean)
        return mine, least, smaller(mine, least)

    return Claim(
        "heterogeneity-drop",
        "The degradation in the performance of U-DGD is comparatively slower when compared to the other "
        "methods.",
        f"From {first} to {last} U-DGD's accuracy at its end drops by less than that of every tuned "
        "method, by more than two standard errors of the difference.",
        *judge(["tuned"], ", tuned"),
        unit="points",
    ).with_untuned(judge(UNTUNED_KINDS, ", the paper's settings"))


HETEROGENEITY = PaperFigure(
    "heterogeneity",
    "Heterogeneous agents",
    "A 3-regular graph, agents whose labels are drawn from a Dirichlet distribution of falling α; U-DGD, "
    "meta-trained on such agents, compared with DGD, DSGD and DFedAvgM.",
    lambda size: {
        **{f"U-DGD, α = {alpha:g}": size.at_alpha(alpha) for alpha in size.alphas},
        EVEN_LABEL: size.regular,
    },
    _artifacts,
    _make,
)
