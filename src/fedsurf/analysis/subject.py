"""The subject of an audit: an optimizer that trains softmax heads, and the study on which it is audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedsurf import pretrained
from fedsurf.algorithms import Algorithm
from fedsurf.common.checks import check_kind
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.presets import STUDIES
from fedsurf.models import SoftmaxHead
from fedsurf.network.config import Shift
from fedsurf.unrolled import Transferable
from fedsurf.unrolled.config import DEFAULT_ROUNDS


@dataclass(frozen=True)
class Subject:
    """The optimizer that is audited.

    Examples
    --------
    >>> from fedsurf.algorithms import DGD
    >>> Subject("DGD", lambda head: DGD(head, step_size=1.0), steps=60).seen
    ()
    >>> Subject.of("softmax-head", rounds=10).seen
    ('fashion-mnist',)
    """

    name: str
    """Its name in the verdict."""
    make: Callable[[SoftmaxHead], Algorithm]
    """Returns the algorithm that trains a head; a ValueError means that it cannot train that one."""
    steps: int
    """The number of its steps."""
    seen: tuple[str, ...] = ()
    """The data sources of its meta-training."""
    study: StudyConfig = STUDIES["digits"].config
    """The study on which it is audited by default."""
    shift: Shift | None = None
    """The shift operator that its filters were trained with, which it keeps on other networks."""
    parameters: int = 0
    """The number of its learned parameters."""

    @staticmethod
    def of(optimizer: Experiment | Transferable | Path | str, rounds: int | None = None) -> Subject:
        """Return the optimizer of a run, or a pretrained one, by default with 20 rounds.

        Instead of an optimizer, it takes the folder of a run, the name of a pretrained optimizer or a
        `.safetensors` file of one.
        """
        if isinstance(optimizer, Path | str):
            optimizer = _load(optimizer)
        if isinstance(optimizer, Transferable):
            make = partial(optimizer.on, rounds=DEFAULT_ROUNDS if rounds is None else rounds)
            algorithm = make(SoftmaxHead(1, 2))
            # The meta-training of pretrained optimizers had Fashion-MNIST, and synthetic data.
            return Subject(algorithm.name, make, algorithm.steps, ("fashion-mnist",))
        if rounds is not None:
            raise ValueError(
                f"rounds: got {rounds}, but the optimizer of a run takes as many as it has layers"
            )
        check_kind(optimizer, Experiment, "subject", "a Subject, or an optimizer or its place")
        return _of_run(optimizer)

    def on_study(self, name: str) -> StudyConfig:
        """Return the study of that name, with this optimizer's shift operator and seeds."""
        if name not in STUDIES:
            raise ValueError(f"study: got {name!r}, but it must be one of {', '.join(STUDIES)}")
        config, own = STUDIES[name].config, self.study
        if self.shift is not None:
            on_star, from_star = (one.network.graph.kind == "star" for one in (config, own))
            if on_star != from_star:
                kind = "through a server" if from_star else "over a graph"
                raise ValueError(
                    f"study: got {name!r}, but it must be {kind}, as {self.name} was meta-trained so"
                )
            config = replace(config, network=replace(config.network, shift=self.shift))
        return replace(config, seeds=own.seeds)


def _load(place: Path | str) -> Experiment | Transferable:
    if Path(place).is_dir():
        return Experiment.load(place)
    if place not in pretrained.NAMES and Path(place).suffix != ".safetensors":
        raise ValueError(
            f"run: got {str(place)!r}, but it must be the folder of a run, one of "
            f"{', '.join(pretrained.NAMES)}, or a .safetensors file of a pretrained optimizer"
        )
    return pretrained.load(place)


def _of_run(experiment: Experiment) -> Subject:
    config, optimizer, model = experiment.config, experiment.optimizer, experiment.model

    def make(head: SoftmaxHead) -> Algorithm:
        if (head.features, head.classes) != (model.features, model.classes):
            raise ValueError(
                f"data: got {head.features} features and {head.classes} classes, but this "
                f"optimizer was made for {model.features} and {model.classes}"
            )
        return optimizer

    return Subject(
        optimizer.name,
        make,
        optimizer.steps,
        seen=(config.data.source,),
        study=replace(StudyConfig.of(config), initial_deviation=None),
        shift=config.network.shift,
        parameters=sum(value.numel() for value in optimizer.parameters()),
    )
