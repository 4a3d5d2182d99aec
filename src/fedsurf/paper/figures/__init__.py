"""The paper's experiments, by name."""

from fedsurf.paper.figures.ablation import ABLATION
from fedsurf.paper.figures.asynchrony import ASYNCHRONY
from fedsurf.paper.figures.figure import PaperFigure
from fedsurf.paper.figures.heterogeneity import HETEROGENEITY
from fedsurf.paper.figures.speed import SPEED
from fedsurf.paper.figures.theory import THEORY

FIGURES: dict[str, PaperFigure] = {
    figure.name: figure for figure in (*SPEED, HETEROGENEITY, ABLATION, ASYNCHRONY, THEORY)
}


def figures_named(name: str) -> list[PaperFigure]:
    """Return the experiment of this name, or all of them."""
    return list(FIGURES.values()) if name == "all" else [FIGURES[name]]
