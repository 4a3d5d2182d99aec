"""The paper's experiments, by name."""

from fedsurf.paper.ablation import ABLATION
from fedsurf.paper.asynchrony import ASYNCHRONY
from fedsurf.paper.heterogeneity import HETEROGENEITY
from fedsurf.paper.plan import Plan
from fedsurf.paper.speed import SPEED
from fedsurf.paper.theory import THEORY

FIGURES: dict[str, Plan] = {
    plan.name: plan for plan in (*SPEED, HETEROGENEITY, ABLATION, ASYNCHRONY, THEORY)
}


def figure_named(name: str) -> Plan:
    """Return the experiment of that name."""
    if name not in FIGURES:
        raise ValueError(
            f"figure: got {name!r}, but it must be one of {', '.join(FIGURES)}, all or report"
        )
    return FIGURES[name]
