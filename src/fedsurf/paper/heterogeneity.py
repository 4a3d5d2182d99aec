"""Heterogeneous agents: U-DGD beside the classical methods as the agents' labels grow more uneven."""

from collections.abc import Sequence
from dataclasses import replace

from fedsurf.paper.claims import Claim, Number, drop, least, smaller
from fedsurf.paper.drawing import Panel, draw
from fedsurf.paper.finding import Curve, Finding, over_rounds
from fedsurf.paper.plan import Plan
from fedsurf.paper.rivals import GRAPH_METHODS
from fedsurf.paper.sizes import Size
from fedsurf.paper.speed import ACCURACY, beats_all, curves_of, stages_of
from fedsurf.paper.stages import Learned, Stage, Train
from fedsurf.paper.workshop import Workshop

MEASURED = "pooled_accuracy"
EVEN = "U-DGD, meta-trained on even agents"
"""The optimizer of the convergence rate, tried here as it is."""


def _stages(size: Size) -> Sequence[Stage]:
    stages: list[Stage] = []
    even = Train(size.regular, "regular")
    for alpha in size.alphas:
        config, name = size.at_alpha(alpha), f"α = {alpha:g}"
        stages += stages_of(size, config, name, GRAPH_METHODS)
        stages.append(Learned(size.study_of(config), even, name, EVEN))
    return stages


def _make(workshop: Workshop) -> Finding:
    size = workshop.size
    curves: list[Curve] = []
    levels, panels, claims = [], [], []
    for alpha in size.alphas:
        name, config = f"α = {alpha:g}", size.at_alpha(alpha)
        here, level = curves_of(workshop, config, GRAPH_METHODS, name)
        claim = beats_all(
            f"heterogeneity-{alpha:g}",
            f"U-DGD consistently outperforms all other benchmarks in accuracy ({name}).",
            here,
            here[0],
            size.rounds,
        )
        even = workshop.learned(size.study_of(config), size.regular, EVEN)
        other = over_rounds(even, name, level.values)
        here.append(other)
        claims.append(claim.noting(f"{EVEN}: {100 * float(other.at(MEASURED).mean()):.1f} %."))
        curves += here
        levels.append(level)
        panels.append(
            Panel(name, "communication rounds", ACCURACY, MEASURED, here, [level], x_scale="rounds")
        )
    first, last = (f"α = {alpha:g}" for alpha in (size.alphas[0], size.alphas[-1]))
    claims.append(slower_degradation(curves, first, last))
    optimizers = {f"U-DGD, α = {alpha:g}": size.at_alpha(alpha) for alpha in size.alphas}
    return Finding(
        curves,
        levels,
        claims,
        draw(panels),
        {**optimizers, EVEN: size.regular},
        "Accuracy over communication rounds, 3-regular graph, agents whose labels are drawn from a "
        f"Dirichlet distribution. Mean over {size.tasks} meta-test tasks, bands of one standard error; "
        "dashed: with the paper's settings.",
    )


def slower_degradation(curves: Sequence[Curve], first: str, last: str) -> Claim:
    """Judge that U-DGD loses less between two panels than every tuned method."""
    mine = _drop(curves, "U-DGD", "the paper's", first, last)
    rivals = list(dict.fromkeys(curve.label for curve in curves if curve.kind == "tuned"))
    tuned = least([_drop(curves, name, "tuned", first, last) for name in rivals])
    untuned = least([_drop(curves, name, "the paper's settings", first, last) for name in rivals])
    return Claim(
        "heterogeneity-drop",
        "The degradation of U-DGD is comparatively slower than that of the other methods.",
        f"From {first} to {last} U-DGD's accuracy at its end falls by less than that of the tuned "
        "method that falls least, by more than two standard errors of the difference.",
        mine,
        replace(tuned, label=f"{tuned.label}, tuned"),
        smaller(mine, tuned),
        unit="points",
        untuned=replace(untuned, label=f"{untuned.label}, the paper's settings"),
        holds_untuned=smaller(mine, untuned),
    )


def _drop(curves: Sequence[Curve], label: str, kind: str, first: str, last: str) -> Number:
    ends = {
        curve.panel: curve.at(MEASURED)
        for curve in curves
        if curve.label == label and curve.kind == kind
    }
    return drop(label, ends[first], ends[last])


HETEROGENEITY = Plan(
    "heterogeneity",
    "Heterogeneous agents",
    "CIFAR-10 features, 3-regular graph, agents whose labels are drawn from a Dirichlet distribution "
    "with α = 1, 0.7 and 0.3; U-DGD, meta-trained on such agents, beside DGD, DSGD and DFedAvgM.",
    _stages,
    _make,
)
