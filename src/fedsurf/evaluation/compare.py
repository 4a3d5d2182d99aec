"""Comparison of methods and trained optimizers on a study: results, files and notes on fairness."""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsurf.common.checks import check_count
from fedsurf.common.configuration import to_dict
from fedsurf.common.devices import CPU
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.text import counted
from fedsurf.common.writing import write_json, write_rows
from fedsurf.evaluation.config import PRETRAINED_ROUNDS, SHOWN_ROUNDS, StudyConfig
from fedsurf.evaluation.methods import Entrant
from fedsurf.evaluation.plots import save, study_figure
from fedsurf.evaluation.run import Trajectories, recorded_steps
from fedsurf.evaluation.scores import Score, mean_and_error, score
from fedsurf.evaluation.study import Study
from fedsurf.evaluation.tuning import TunedSettings
from fedsurf.pretrained import NAMES
from fedsurf.tasks.features import Features, fingerprint
from fedsurf.unrolled.config import check_rounds


@dataclass(frozen=True)
class Comparison:
    """The results of all entrants of a comparison; `compare` has an example."""

    config: StudyConfig
    """Data, tasks, network and budget."""
    entrants: list[Entrant]
    """The methods and optimizers, with the settings of their runs."""
    results: list[Trajectories]
    """Their runs."""
    scores: list[Score]
    """Their rows in the table."""
    ceiling: Tensor
    """Accuracy of centralised training, `[seeds * tasks]`."""
    tuned: dict[str, Any] | None
    """The source of the methods' settings, and in what its study differs from this one."""
    notes: list[str]
    """Remarks on what is not equal for all entrants."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the trajectories as plain values, for JSON."""
        mean, error = mean_and_error(self.ceiling)
        return {
            "study": to_dict(self.config),
            "tuned": self.tuned,
            "notes": self.notes,
            "centralised": {"mean": mean, "error": error},
            "entrants": [
                {
                    "method": entrant.method,
                    "settings": dict(entrant.settings),
                    "run": None if entrant.run is None else str(entrant.run),
                    "pretrained": None if entrant.pretrained is None else str(entrant.pretrained),
                    "batch_size": entrant.batch_size,
                    **score.to_dict(),
                }
                for entrant, score in zip(self.entrants, self.scores, strict=True)
            ],
        }

    def write(self, folder: Path) -> None:
        """Write results.json, results.csv, trajectories.csv, figure.png and figure.svg."""
        agents = self.config.task.agents
        write_json(folder / "results.json", self.to_dict())
        counts = sorted({count for score in self.scores for count in score.accuracy})
        write_rows(folder / "results.csv", [score.to_row(counts) for score in self.scores])
        rows = []
        for runs in self.results:
            for summary in runs.summary():
                row: dict[str, Any] = {"method": runs.name, "rounds": summary["rounds"]}
                row["floats_per_agent"] = (summary["floats"] or 0) / agents
                row["bytes_per_agent"] = (summary["bytes"] or 0) / agents
                left_out = ("step", "rounds", "floats", "bytes")
                rest = {name: value for name, value in summary.items() if name not in left_out}
                rows.append(row | rest)
        write_rows(folder / "trajectories.csv", rows)
        figure = study_figure(self.results, self.ceiling, agents)
        for ending in ("png", "svg"):
            save(figure, folder / f"figure.{ending}")


def compare(
    config: StudyConfig,
    *,
    methods: Sequence[str] = ("all",),
    runs: Sequence[Path] = (),
    pretrained: Sequence[str] = (),
    depths: Sequence[int] = PRETRAINED_ROUNDS,
    batch_sizes: Sequence[int] = (),
    tuned: Path | None = None,
    at: Sequence[int] = SHOWN_ROUNDS,
    cache: Path | None = None,
    features: Features | None = None,
    device: str | torch.device = CPU,
    on_note: Callable[[str], None] = lambda _: None,
    progress: OpenBar = silent,
) -> Comparison:
    """Run methods and trained optimizers on the same tasks, from the same start, over the same graph.

    The entrants are classical `methods` by name ("all" for all that run on the network), with the settings
    of the file `tuned`, or the shipped ones; `runs`, which are folders of `Experiment.train`; and
    `pretrained` optimizers by name or .safetensors file, each with every number of rounds in `depths`, on
    all examples and with mini-batches of every size in `batch_sizes`. Accuracy is shown after `at` rounds
    and at the end. Results in the folder `cache` are not computed again; all runs compute on `device`.
    `on_note` is called with each remark on fairness before the runs begin.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import fedsurf
    >>> config = replace(fedsurf.STUDIES["digits"].config, tasks=1, rounds=5)
    >>> found = compare(config, methods=["dgd"], pretrained=["softmax-head"], depths=[5])
    >>> [score.label for score in found.scores]
    ['SURF-T, 5 rounds', 'DGD']
    """
    if not (methods or runs or pretrained):
        raise ValueError("methods: got none, but without runs and pretrained there must be some")
    chosen = () if tuple(depths) == PRETRAINED_ROUNDS else depths
    for name, values in (("batch_sizes", batch_sizes), ("depths", chosen)):
        if values and not pretrained:
            raise ValueError(
                f"{name}: got {list(values)}, but only pretrained optimizers take them: "
                "name one with pretrained"
            )
    for size in batch_sizes:
        check_count(size, "batch_sizes")
    for depth in depths if pretrained else ():
        check_rounds(depth, "depths")
    for count in at:
        check_count(count, "at", 0)
    if methods:
        _check_recorded(at, config.rounds)
    if config.initial_deviation is None and pretrained and not runs:
        config = replace(config, initial_deviation=0.0)  # as pretrained optimizers start
    study = Study(config, cache, features, device=device)
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
    folders = list(dict.fromkeys(runs))
    entrants += [Entrant(run_label(run, folders), run=run) for run in folders]
    source, notes, classical = None, _start_notes(study, entrants, methods), study.methods(methods)
    if classical:
        settings = _settings_for(study, tuned)
        different = settings.differences_from(study.config, fingerprint(study.features))
        source = {"file": None if tuned is None else str(tuned), "differences": different}
        if different:
            origin = "that come with fedsurf" if tuned is None else f"of {tuned}"
            notes.append(
                f"The settings {origin} were tuned on another study: {', '.join(different)}. "
                "`fedsurf tune` finds settings for this one."
            )
        for method in classical:
            if method.name not in settings.methods:
                raise ValueError(
                    f"tuned: got a file without {method.name}; tune it first with "
                    f"`fedsurf tune … --methods {method.name}`, or leave it out"
                )
            entrants.append(Entrant(method.title, method.name, settings.methods[method.name].best))
    for note in notes:
        on_note(note)
    entrants = [study.resolved(entrant) for entrant in entrants]
    total = len(config.seeds) * config.tasks
    results = []
    for entrant in entrants:
        with progress(entrant.label, total) as advance:
            results.append(study.run(entrant, advance))
    with progress("centralised", total) as advance:
        ceiling = study.ceiling(advance)
    longest = max([config.rounds, *(int(one.rounds.max()) for one in results)])
    shown = [count for count in at if count <= longest]
    scores = [score(one, ceiling, config.task.agents, shown) for one in results]
    return Comparison(study.config, entrants, results, scores, ceiling, source, notes)


def run_label(run: Path, runs: Sequence[Path]) -> str:
    """Return the name of a run's folder, or its whole path where several have that name."""
    return run.name if [one.name for one in runs].count(run.name) == 1 else str(run)


def _check_recorded(at: Sequence[int], rounds: int) -> None:
    """Raise unless classical methods, which run for `rounds`, are recorded after these rounds."""
    recorded = recorded_steps(rounds)
    for count in at:
        if count < rounds and count not in recorded:
            above = bisect(recorded, count)
            raise ValueError(
                f"at: got {count}, but classical methods are not recorded after that many rounds: "
                f"take {recorded[above - 1]} or {recorded[above]}"
            )


def _settings_for(study: Study, tuned: Path | None) -> TunedSettings:
    """Return the settings of a file, or the shipped ones; raise if a server was in only one study."""
    server = study.config.network.graph.kind == "star"
    if tuned is None:
        return TunedSettings.shipped(server=server)
    settings = TunedSettings.read(tuned)
    kind = settings.study.network.graph.kind
    if (kind == "star") != server:
        raise ValueError(
            f"tuned: got {tuned}, tuned over a {kind} graph, "
            f"but the study is {'a star' if server else 'no star'}"
        )
    return settings


def _start_notes(study: Study, entrants: Sequence[Entrant], methods: Sequence[str]) -> list[str]:
    """Return a note if a pretrained optimizer, which starts at 0, is not alone and others do not."""
    deviation = study.environment.start.deviation
    with_runs = any(one.run is not None for one in entrants)
    with_pretrained = any(one.pretrained is not None for one in entrants)
    if deviation == 0 or not with_pretrained or not (with_runs or methods):
        return []
    remedy = "with --initial-deviation 0 all start at W = 0"
    if with_runs:
        remedy = "the runs were meta-trained for theirs"
    others = f"the others at W_0 ~ N(0, {deviation:g}²)"
    return [f"Not the same start: SURF-T starts at W = 0, {others}; {remedy}."]


def _pretrained_label(name: str, depth: int, size: int | None, names: Sequence[str]) -> str:
    """Return the label of a pretrained optimizer; files are named by their places."""
    files = list(dict.fromkeys(Path(one).resolve() for one in names if one not in NAMES))
    places = [_place(file, files) for file in files]
    which = "" if name in NAMES else f" ({run_label(_place(Path(name).resolve(), files), places)})"
    batches = "" if size is None else f", batches of {size}"
    return f"SURF-T{which}, {counted(depth, 'round')}{batches}"


def _place(file: Path, files: Sequence[Path]) -> Path:
    """Return the folder of a file, or the file itself if several files are in that folder."""
    return file if [one.parent for one in files].count(file.parent) > 1 else file.parent
