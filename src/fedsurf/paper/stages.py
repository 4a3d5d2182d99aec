"""The work behind the figures in stages: independent ones can run at the same time, in processes.

A stage leaves its result in the workshop's folder, where the figure then finds it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Protocol

from fedsurf.common.configuration import to_dict
from fedsurf.common.progress import silent
from fedsurf.common.threads import limit_threads
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.models import SoftmaxHead
from fedsurf.paper.sizes import Size
from fedsurf.paper.workshop import Workshop, digest
from fedsurf.unrolled.config import UDGDConfig


class Stage(Protocol):
    """Something that takes time, and whose result is kept."""

    @property
    def title(self) -> str:
        """What it does."""
        ...

    def needs(self) -> "tuple[Stage, ...]":
        """Return the stages that must be finished before."""
        ...

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        ...


@dataclass(frozen=True)
class Train:
    """Meta-train an optimizer."""

    config: ExperimentConfig
    name: str

    @property
    def title(self) -> str:
        """What it does."""
        return f"meta-train U-DGD, {self.name}"

    def needs(self) -> tuple[Stage, ...]:
        """Nothing."""
        return ()

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.train(self.config)


@dataclass(frozen=True)
class Audited:
    """Audit an optimizer."""

    train: Train

    @property
    def title(self) -> str:
        """What it does."""
        return f"audit U-DGD, {self.train.name}"

    def needs(self) -> tuple[Stage, ...]:
        """The optimizer."""
        return (self.train,)

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.audit(self.train.config)


@dataclass(frozen=True)
class Rival:
    """Tune a classical method, and run it on the meta-test tasks."""

    study: StudyConfig
    method: str
    name: str

    @property
    def title(self) -> str:
        """What it does."""
        return f"tune and run {self.method}, {self.name}"

    def needs(self) -> tuple[Stage, ...]:
        """Nothing."""
        return ()

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.rival(self.study, self.method)


@dataclass(frozen=True)
class Learned:
    """Run a meta-trained optimizer on the meta-test tasks."""

    study: StudyConfig
    train: Train
    name: str
    label: str = "U-DGD"

    @property
    def title(self) -> str:
        """What it does."""
        return f"run {self.label}, {self.name}"

    def needs(self) -> tuple[Stage, ...]:
        """The optimizer."""
        return (self.train,)

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.learned(self.study, self.train.config, self.label)


@dataclass(frozen=True)
class Yardsticks:
    """Run the pretrained optimizer and centralised training on the meta-test tasks."""

    study: StudyConfig
    rounds: int
    name: str
    centralised: bool = True

    @property
    def title(self) -> str:
        """What it does."""
        what = "SURF-T and centralised training" if self.centralised else "SURF-T"
        return f"run {what}, {self.name}"

    def needs(self) -> tuple[Stage, ...]:
        """Nothing."""
        return ()

    def work(self, workshop: Workshop) -> None:
        """Do it, or find that it is done."""
        workshop.pretrained(self.study, self.rounds)
        if self.centralised:
            workshop.ceiling(self.study)


def key_of(stage: Stage) -> str:
    """Return what tells a stage from others: what it does, whatever figures call that."""
    content = to_dict(stage)
    for part in (content, content.get("train", {})):
        part.pop("name", None)
    return digest([type(stage).__name__, content])


def older_key_of(stage: Stage) -> str:
    """Return the key that a stage had in folders of older versions."""
    return digest([type(stage).__name__, to_dict(stage)])


def in_order(stages: Sequence[Stage]) -> list[Stage]:
    """Return each stage once, after those that it needs."""
    found: dict[str, Stage] = {}
    for stage in stages:
        for one in (*in_order(stage.needs()), stage):
            found.setdefault(key_of(one), one)
    return list(found.values())


Done = Callable[[Stage, float], None]
"""Is told of a finished stage and the seconds that it took."""


def run_here(stages: Sequence[Stage], workshop: Workshop, done: Done) -> None:
    """Run the stages one after the other."""
    for stage in stages:
        limit_threads(parameters_of(workshop.size.regular))
        start = perf_counter()
        stage.work(workshop)
        done(stage, perf_counter() - start)


def run_apart(
    stages: Sequence[Stage], folder: Path, size: Size, jobs: int, finished: set[str], done: Done
) -> None:
    """Run the stages in `jobs` processes, each with one thread, as soon as what they need is finished.

    `finished` holds the keys of those that are finished already.
    """
    waiting, running = list(stages), dict[Future[float], Stage]()
    ready = set(finished)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_alone) as pool:
        try:
            while waiting or running:
                for stage in list(waiting):
                    if len(running) < jobs and all(key_of(one) in ready for one in stage.needs()):
                        waiting.remove(stage)
                        running[pool.submit(_work, stage, folder, size)] = stage
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    stage = running.pop(future)
                    ready.add(key_of(stage))
                    done(stage, future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def parameters_of(config: ExperimentConfig) -> int:
    """Return about how many parameters an optimizer of that configuration has."""
    features = 512 if config.data.components is None else config.data.components
    return udgd_parameters(SoftmaxHead(features, 10), config.optimizer)


def udgd_parameters(model: SoftmaxHead, config: UDGDConfig) -> int:
    """Return the number of parameters of a U-DGD optimizer."""
    inputs = model.parameters + config.batch_size * (model.features + model.classes)
    return config.layers * (model.parameters * (inputs + 1) + config.filter_order + 1)


def _alone() -> None:
    limit_threads(0)


def _work(stage: Stage, folder: Path, size: Size) -> float:
    start = perf_counter()
    stage.work(Workshop(folder, size, silent))
    return perf_counter() - start
