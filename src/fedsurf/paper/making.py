"""Making figures: the stages behind them, here or in several processes, then the folders and the report."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import to_dict
from fedsurf.common.progress import silent
from fedsurf.common.threads import limit_threads
from fedsurf.paper.claims import Claim
from fedsurf.paper.estimate import measure, spoken, total
from fedsurf.paper.figures import FIGURES, figure_named
from fedsurf.paper.folder import ReproductionFolder
from fedsurf.paper.plan import Plan
from fedsurf.paper.provenance import checksum_of
from fedsurf.paper.report import write_report
from fedsurf.paper.sizes import Size
from fedsurf.paper.stages import (
    Stage,
    Train,
    in_order,
    key_of,
    older_key_of,
    parameters_of,
    run_apart,
    run_here,
)
from fedsurf.paper.workshop import Workshop
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.sources import MissingDataError

Say = Callable[[str], None]


def plans_named(name: str) -> list[Plan]:
    """Return the experiment of that name, or all of them."""
    return list(FIGURES.values()) if name == "all" else [figure_named(name)]


def reproduce(
    plans: Sequence[Plan],
    size: Size,
    path: Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    say: Say = lambda _: None,
    workshop: Workshop | None = None,
) -> dict[str, list[Claim]]:
    """Make figures into a folder, and return their claims.

    Parameters
    ----------
    plans : sequence of Plan
        The experiments.
    size : Size
        How large they are.
    path : Path
        The folder. It must be new or empty, unless resuming.
    resume : bool
        Go on with what is in the folder: finished stages are not repeated, and figures are added.
    jobs : int
        How many processes work at the same time.
    say : callable
        Is told what is done, line by line.
    workshop : Workshop or None
        Where stages work, if there is one job only; one without progress bars by default.
    """
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, but it must be at least 1")
    folder = ReproductionFolder(path)
    workshop = Workshop(path, size, silent) if workshop is None else workshop
    stages = in_order([stage for plan in plans for stage in plan.stages(size)])
    stages.sort(
        key=lambda stage: not isinstance(stage, Train)
    )  # they take longest, and others wait
    limit_threads(parameters_of(size.regular))
    about = _about(size, stages)
    _check_data(workshop, stages)
    folder.open(about, resume=resume)
    there = folder.finished()
    finished = {
        key_of(stage) for stage in stages if key_of(stage) in there or older_key_of(stage) in there
    }
    left = [stage for stage in stages if key_of(stage) not in finished]
    names = ", ".join(plan.name for plan in plans)
    say(f"Reproducing {names} at the size {size.name}: {size.description}.")
    say(
        f"{len(left)} of {len(stages)} stages {'is' if len(left) == 1 else 'are'} left"
        + (f", about {_forecast(workshop, left, jobs)} on this machine." if left else ".")
    )
    numbers = {"done": len(stages) - len(left)}

    def done(stage: Stage, seconds: float) -> None:
        numbers["done"] += 1
        folder.finish(key_of(stage), stage.title, seconds)
        say(f"[{numbers['done']}/{len(stages)}] {stage.title}: {spoken(seconds)}")

    if jobs == 1:
        run_here(left, workshop, done)
    else:
        run_apart(left, path, size, jobs, finished, done)
    claims = {}
    for plan in plans:
        finding = plan.make(workshop)
        folder.write(plan, workshop, finding)
        claims[plan.name] = finding.claims
    write_report(folder)
    return claims


def _forecast(workshop: Workshop, stages: Sequence[Stage], jobs: int) -> str:
    return spoken(total(stages, workshop.size, measure(workshop, stages), jobs))


def _about(size: Size, stages: Sequence[Stage]) -> dict[str, Any]:
    """Return what a whole folder has in common: the size, and the data, with checksums for paths."""
    used = {stage.config.data for stage in stages if isinstance(stage, Train)}
    data = {
        name: _identity(config.data)
        for name, config in (("cifar10", size.regular), ("mnist", size.ablation))
        if config.data in used
    }
    return {"preset": size.name, "data": data}


def _identity(data: FeatureConfig) -> dict[str, Any]:
    plain: dict[str, Any] = to_dict(data)
    if data.source.endswith(".npz"):
        file = Path(data.source)
        return {**plain, "source": file.name, "checksum": checksum_of(file)}
    return plain


def _check_data(workshop: Workshop, stages: Sequence[Stage]) -> None:
    """Read all data before the work begins, or say how it can be had."""
    wanted = dict.fromkeys(stage.config.data for stage in stages if isinstance(stage, Train))
    for data in wanted:
        option = "--mnist-features" if data == workshop.size.ablation.data else "--features"
        try:
            workshop.features(data)
        except (MissingDataError, ImportError) as error:
            raise type(error)(
                f"{error}. Or give ready-made features with {option} FILE.npz (arrays train_x, train_y, "
                "test_x and test_y)"
            ) from error
