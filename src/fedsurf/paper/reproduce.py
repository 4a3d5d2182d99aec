"""Reproduction: make artefacts, in one or several processes, then the figures and the report."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import to_dict
from fedsurf.common.text import counted
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import lock_folder
from fedsurf.paper.artefacts import Artifact, ArtifactStore, open_folder
from fedsurf.paper.claims import Claim
from fedsurf.paper.estimate import duration_text, measure, total_seconds
from fedsurf.paper.figures.figure import PaperFigure
from fedsurf.paper.figures.output import checksum_of, write_figure
from fedsurf.paper.makers import features_of
from fedsurf.paper.report import write_report
from fedsurf.paper.sizes import Size, parameters_of
from fedsurf.tasks.sources import MissingDataError


def reproduce(
    figures: Sequence[PaperFigure],
    store: ArtifactStore,
    *,
    resume: bool = False,
    jobs: int = 1,
    on_message: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Claim]]:
    """Make figures into a store's folder, and return their claims by figure.

    The folder must be new, unless resuming: then finished artefacts are read, and figures added.

    Examples
    --------
    >>> from fedsurf.paper.figures import figures_named
    >>> from fedsurf.paper.sizes import SIZES
    >>> store = ArtifactStore(Path("reproduction"), SIZES["smoke"])
    >>> claims = reproduce(figures_named("theory"), store)  # doctest: +SKIP
    """
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, but it must be at least 1")
    size, folder = store.size, store.folder
    artifacts = in_order(artifact for figure in figures for artifact in figure.needs(size))
    limit_threads(parameters_of(size.regular))
    about = {"preset": size.name, "data": _data_of(size, artifacts)}
    with lock_folder(folder):
        open_folder(folder, about, resume=resume)
        left = [artifact for artifact in artifacts if not store.has(artifact)]
        names = ", ".join(figure.name for figure in figures)
        on_message(f"Reproducing {names} at the size {size.name}: {size.description}.")
        remaining = f"{len(left)} of {counted(len(artifacts), 'artefact')} to make"
        if left:
            seconds = total_seconds(size, left, measure(size, left), jobs)
            remaining += f", at least {duration_text(seconds)} on this machine"
        on_message(f"{remaining}.")
        count = len(artifacts) - len(left)

        def on_done(artifact: Artifact, seconds: float) -> None:
            nonlocal count
            count += 1
            on_message(f"[{count}/{len(artifacts)}] {artifact.title}: {duration_text(seconds)}")

        if jobs == 1:
            for artifact in left:
                on_done(artifact, store.make(artifact))
        else:
            make_in_processes(left, store, jobs, on_done)
        claims = {}
        for figure in figures:
            result = figure.make(store)
            write_figure(store, figure, result)
            claims[figure.name] = result.claims
        write_report(folder)
    return claims


def in_order(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Return each artefact once, after those that it needs; optimizers first, as they take longest."""
    found: dict[Artifact, None] = {}
    for artifact in artifacts:
        found |= dict.fromkeys([*artifact.needs, artifact])
    return sorted(found, key=lambda artifact: artifact.kind != "optimizer")


def make_in_processes(
    artifacts: Sequence[Artifact],
    store: ArtifactStore,
    jobs: int,
    on_done: Callable[[Artifact, float], None],
) -> None:
    """Make artefacts in processes of one thread, each as soon as those that it needs are finished.

    `on_done` is called with an artefact and the seconds that it took.
    """
    waiting, running = list(artifacts), dict[Future[float], Artifact]()
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, limit_threads, initargs=(0,)) as pool:
        try:
            while waiting or running:
                for artifact in list(waiting):
                    if len(running) < jobs and all(map(store.has, artifact.needs)):
                        waiting.remove(artifact)
                        task = pool.submit(_make, artifact, store.folder, store.size)
                        running[task] = artifact
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    on_done(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make(artifact: Artifact, folder: Path, size: Size) -> float:
    return ArtifactStore(folder, size).make(artifact)


def _data_of(size: Size, artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Read all data before the work begins, and return their configurations by name."""
    used = {artifact.optimizer.data for artifact in artifacts if artifact.optimizer}
    found = {}
    for name, option, data in (
        ("cifar10", "--features", size.regular.data),
        ("mnist", "--mnist-features", size.ablation.data),
    ):
        if data in used:
            try:
                features_of(data)
            except (MissingDataError, ImportError) as error:
                raise type(error)(
                    f"{error}. Or give ready-made features with {option} FILE.npz (arrays train_x, "
                    "train_y, test_x and test_y)"
                ) from error
            found[name] = to_dict(data)
            if data.source.endswith(".npz"):
                # Name and checksum of the file, whose path may change.
                file = Path(data.source)
                found[name] |= {"source": file.name, "checksum": checksum_of(file)}
    return found
