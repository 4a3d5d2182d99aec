"""What a figure of the paper is to this package: a name, the work behind it, and how it is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsurf.paper.finding import Finding
from fedsurf.paper.sizes import Size
from fedsurf.paper.stages import Stage
from fedsurf.paper.workshop import Workshop


@dataclass(frozen=True)
class Plan:
    """One of the paper's experiments.

    Attributes
    ----------
    name : str
        What the command line calls it.
    title : str
        What the report calls it.
    about : str
        What is done, in a sentence or two.
    stages : callable
        Returns the work behind it at a size.
    make : callable
        Makes the figure from what the stages left in the workshop.
    """

    name: str
    title: str
    about: str
    stages: Callable[[Size], Sequence[Stage]]
    make: Callable[[Workshop], Finding]
