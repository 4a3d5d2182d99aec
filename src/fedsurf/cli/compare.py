"""`fedsurf compare`: methods and trained optimizers on the same tasks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import Tensor

from fedsurf.cli import tables
from fedsurf.cli.choices import AnyStudy
from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.evaluate import run_label
from fedsurf.cli.progress import opener
from fedsurf.common.checks import check_count
from fedsurf.common.text import counted
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_folder
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.fairness import settings_note, start_note, with_fair_start
from fedsurf.evaluation.methods import Method, Settings
from fedsurf.evaluation.report import write_report
from fedsurf.evaluation.run import recorded_steps
from fedsurf.evaluation.scores import ROUNDS, Score, score
from fedsurf.evaluation.study import Entrant, Study
from fedsurf.evaluation.tuning import (
    best_settings,
    check_tuned_through,
    read_tuned,
    shipped,
    tuned_otherwise,
)
from fedsurf.pretrained import NAMES
from fedsurf.tasks.features import fingerprint
from fedsurf.unrolled.config import MAX_ROUNDS, MIN_ROUNDS

DEPTHS = (20,)
"""The rounds of pretrained optimizers, unless others are asked for."""


def compare(
    config: Annotated[AnyStudy, tyro.conf.arg(name="")],
    folder: Path,
    methods: tuple[str, ...] = ("all",),
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = DEPTHS,
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = ROUNDS,
    json: bool = False,
) -> None:
    """Compare methods and trained optimizers: same tasks, same start, same graph, same metric.

    Results are cached in the folder by configuration: adding a method computes only that method.
    Writes results.json, results.csv, trajectories.csv and figure.png (and .svg) into the folder.

    Args:
        config: The study to start from.
        folder: Gets the results.
        methods: Names of classical methods; all stands for all that run on the network.
        runs: Folders of optimizers that `fedsurf train` made.
        pretrained: Names of pretrained optimizers (softmax-head), or their .safetensors files.
        depths: The numbers of rounds that each pretrained optimizer is given.
        batch_sizes: Mini-batches with which each pretrained optimizer is run besides, not only with
            all examples of every agent.
        tuned: Settings of the methods, as `fedsurf tune` writes them; the shipped ones by default.
        at: After how many rounds accuracy is shown, beside the end. Where a step takes several, it is
            that after the last whole step.
        json: Print the results as JSON instead of a table.
    """
    if len(set(runs)) < len(runs):
        raise ValueError(f"runs: got {[str(run) for run in runs]}, but each must be another one")
    found = run_comparison(
        config,
        folder,
        methods=methods,
        runs=runs,
        pretrained=pretrained,
        depths=depths,
        batch_sizes=batch_sizes,
        tuned=tuned,
        at=at,
    )
    if json:
        print_json(found.report)
    else:
        show_comparison(found, folder)


@dataclass(frozen=True)
class Compared:
    """What a comparison found, for tables and for programs."""

    scores: list[Score]
    ceiling: Tensor
    report: dict[str, Any]


def run_comparison(
    config: StudyConfig,
    folder: Path,
    *,
    methods: tuple[str, ...],
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = DEPTHS,
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = ROUNDS,
) -> Compared:
    """Run every method and optimizer of a comparison; write its files."""
    check_folder(folder)
    limit_threads(0)
    _check_at(at, config.rounds if methods else None)
    if not (methods or runs or pretrained):
        raise ValueError("methods: got none, but without runs and pretrained there must be some")
    given = {"batch_sizes": batch_sizes, "depths": () if depths == DEPTHS else depths}
    for name, values in given.items():
        if values and not pretrained:
            raise ValueError(
                f"{name}: got {list(values)}, but only pretrained optimizers take them: "
                "name one with pretrained"
            )
    for size in batch_sizes:
        check_count(size, "batch_sizes")
    for depth in depths if pretrained else ():
        if not MIN_ROUNDS <= depth <= MAX_ROUNDS:
            raise ValueError(
                f"depths: got {depth}, but it must be between {MIN_ROUNDS} and {MAX_ROUNDS}"
            )
    config = with_fair_start(config, pretrained=bool(pretrained), runs=bool(runs))
    study = Study(config, folder / "cache")
    server = config.network.graph.kind == "star"
    if tuned is not None:
        check_tuned_through(tuned, server=server)
    with shipped(server=server) if tuned is None else nullcontext(tuned) as file:
        settings = best_settings(read_tuned(file))
        otherwise = tuned_otherwise(file, config, fingerprint(study.features))
    entrants = [
        Entrant(
            _pretrained_label(name, depth, size, pretrained),
            pretrained=name,
            rounds=depth,
            batch_size=size,
        )
        for name in dict.fromkeys(pretrained)
        for depth in dict.fromkeys(depths)
        for size in dict.fromkeys((None, *batch_sizes))
    ]
    entrants += [Entrant(run_label(run, list(runs)), run=run) for run in runs]
    entrants += [
        Entrant(method.title, method.name, _settings_of(method, settings))
        for method in study.methods(methods)
    ]
    entrants = [study.settled(entrant) for entrant in entrants]
    classical = any(entrant.method is not None for entrant in entrants)
    said = [
        start_note(config, entrants),
        settings_note(tuned, otherwise) if classical else None,
    ]
    notes = [note for note in said if note is not None]
    for note in notes:
        err.print(note, highlight=False, soft_wrap=True)
    bar = opener(err)
    total = len(config.seeds) * config.tasks
    results = []
    for entrant in entrants:
        with bar(entrant.label, total) as advance:
            results.append(study.run(entrant, advance))
    with bar("centralised", total) as advance:
        ceiling = study.ceiling(advance)
    longest = max([config.rounds, *(int(one.rounds.max()) for one in results)])
    shown = [count for count in at if count <= longest]
    scores = [score(one, ceiling, config.task.agents, shown) for one in results]
    source = {"file": None if tuned is None else str(tuned), "differences": otherwise}
    report = write_report(
        folder,
        study,
        entrants,
        results,
        scores,
        ceiling,
        tuned=source if classical else None,
        notes=notes,
    )
    return Compared(scores, ceiling, report)


def _check_at(at: Sequence[int], rounds: int | None) -> None:
    """Raise unless accuracy is known after so many rounds of classical methods, which run `rounds`."""
    recorded = [] if rounds is None else recorded_steps(rounds)
    for count in at:
        if count < 0:
            raise ValueError(f"at: got {count}, but it must be a number of rounds, at least 0")
        if rounds is not None and count < rounds and count not in recorded:
            below = max(one for one in recorded if one < count)
            above = min(one for one in recorded if one > count)
            raise ValueError(
                f"at: got {count}, but classical methods are not looked at after that many rounds: take "
                f"{below} or {above}"
            )


def show_comparison(found: Compared, folder: Path) -> None:
    """Print a comparison's tables, what is not fair about it, and where its figure is."""
    out.print(tables.scores_table(found.scores, found.ceiling))
    out.print(tables.reached_table(found.scores))
    for note in found.report["notes"]:
        out.print(note, highlight=False)
    out.print(f"figure: {folder / 'figure.png'}", highlight=False, soft_wrap=True)


def _settings_of(method: Method, settings: Mapping[str, Settings]) -> Settings:
    if method.name not in settings:
        raise ValueError(
            f"tuned: got a file without {method.name}; tune it first with "
            f"`fedsurf tune … --methods {method.name}`, or leave it out"
        )
    return settings[method.name]


def _pretrained_label(name: str, depth: int, size: int | None, names: Sequence[str]) -> str:
    """Name a pretrained optimizer in a table: the shipped one plainly, others by `_place`."""
    files = list(dict.fromkeys(Path(one).resolve() for one in names if one not in NAMES))
    places = [_place(file, files) for file in files]
    which = "" if name in NAMES else f" ({run_label(_place(Path(name).resolve(), files), places)})"
    batches = "" if size is None else f", batches of {size}"
    return f"SURF-T{which}, {counted(depth, 'round')}{batches}"


def _place(file: Path, files: Sequence[Path]) -> Path:
    """Return what tells a file from others: the folder of its run, or itself where that holds several."""
    return file if [one.parent for one in files].count(file.parent) > 1 else file.parent
