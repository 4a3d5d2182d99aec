"""Tuning: the same number of trials on the same validation tasks for every method.

The first trial takes a method's defaults, the others draw from its own ranges. A trial's score is the
mean of the pooled accuracy after a tenth of the rounds and after all of them, so that neither a slow
nor a short-lived setting wins; a run that diverged scores 0.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedsurf.algorithms import Start
from fedsurf.common.configuration import differences, to_dict
from fedsurf.common.files import FileError, read_json
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import write_json
from fedsurf.evaluation.config import TuneConfig
from fedsurf.evaluation.methods import Method, Setting, method_named
from fedsurf.evaluation.run import run_all
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.tasks.features import fingerprint_difference
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class Trial:
    """One setting and its score."""

    settings: dict[str, Setting]
    score: float


@dataclass(frozen=True)
class Tuned:
    """The trials of one method, the best first."""

    method: str
    trials: list[Trial]

    @property
    def best(self) -> dict[str, Setting]:
        """The settings that scored best."""
        return self.trials[0].settings

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "best": self.best,
            "trials": [{"score": trial.score, **trial.settings} for trial in self.trials],
        }


def tune(
    method: Method,
    model: Model,
    start: Start,
    tasks: Sequence[Task],
    network: Network,
    config: TuneConfig,
    *,
    seed: int = 0,
    on_trial: Callable[[], None] = lambda: None,
) -> Tuned:
    """Try settings of a method, and return them with their scores, the best first."""
    for name in ("trials", "tasks", "rounds"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}: got {getattr(config, name)}, but it must be at least 1")
    trials = []
    early = max(1, config.rounds // 10)
    for number in range(config.trials):
        settings = dict(method.defaults)
        if number:
            settings |= method.draw(seeded(seed, "tune", method.name, number))
        settings = settings_that_fit(method, settings, tasks)
        runs = run_all(
            method.make(model, start, settings),
            tasks,
            network,
            config.rounds,
            seed=seed,
            record=(early, config.rounds),
        )
        score = float(runs.pooled_accuracy.nan_to_num(0.0).mean())
        trials.append(Trial(settings, score))
        on_trial()
    return Tuned(method.name, sorted(trials, key=lambda trial: -trial.score))


def write_tuned(
    path: Path,
    found: Mapping[str, Tuned],
    study: Any,
    budget: TuneConfig,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Store the trials of all methods, with what they were tuned on; `data` is its fingerprint."""
    write_json(
        path,
        {
            "study": to_dict(study.resolved()),
            "budget": to_dict(budget),
            **({} if data is None else {"data": dict(data)}),
            "methods": {name: tuned.to_dict() for name, tuned in found.items()},
        },
    )


def read_tuned(path: Path) -> dict[str, Tuned]:
    """Read what `write_tuned` stored."""
    found = {}
    try:
        for name, one in read_json(path)["methods"].items():
            rows = [dict(row) for row in one["trials"]]
            trials = [Trial(score=row.pop("score") + 0.0, settings=row) for row in rows]
            found[name] = Tuned(name, sorted(trials, key=lambda trial: -trial.score))
            _check_settings(path, name, found[name].best)
            if one["best"] != found[name].best:
                raise FileError(
                    f"{path}: got {one['best']} as the best settings of {name}, but the trial with the "
                    f"highest score has {found[name].best}"
                )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FileError(f"{path}: not a file that `fedsurf tune` wrote ({error})") from error
    return found


def _check_settings(path: Path, name: str, settings: Mapping[str, Setting]) -> None:
    """Raise unless a method can be made with the settings that a file has of it."""
    try:
        method_named(name).make(SoftmaxHead(1, 2), Start(), settings)
    except (TypeError, ValueError) as error:
        raise FileError(
            f"{path}: got {dict(settings)} as the settings of {name}, which it cannot have ({error})"
        ) from error


def check_tuned_for(path: Path, study: Any, budget: TuneConfig | None = None) -> None:
    """Raise unless a file was tuned on this study's data, tasks and network (with this budget).

    What a study's size is (rounds, tasks, further seeds) may differ. Its first seed draws the graph of
    all trials.
    """
    content = _content(path)
    found = differences(_tuned_with(content["study"]), _tuned_with(to_dict(study.resolved())))
    if budget is not None:
        found += differences(content.get("budget", {}), to_dict(budget), "budget")
    if found:
        raise ValueError(
            f"{path}: holds settings that were tuned otherwise, differing in {', '.join(found)}; "
            "choose another file"
        )


def _tuned_with(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plain study every trial of tuning depends on."""
    sizes = ("rounds", "tasks", "seeds")
    seeds = study.get("seeds")
    first = {"0": seeds[0]} if isinstance(seeds, list) and seeds else {}
    return {**{k: v for k, v in study.items() if k not in sizes}, "seeds": first}


def check_tuned_on(path: Path, data: dict[str, Any]) -> None:
    """Raise if a file knows the fingerprint of its data, and it is not this one."""
    stored = _content(path).get("data")
    found = None if stored is None else fingerprint_difference(stored, data)
    if found is not None:
        raise ValueError(
            f"{path}: holds settings that were tuned on other data under the same name, differing in "
            f"{found}; choose another file"
        )


def tuned_otherwise(path: Path, study: Any, data: Mapping[str, Any]) -> list[str]:
    """Name in what a study is other than that of a file: its data, agents, labels, network and start.

    `data` is the fingerprint of the study's; a file that knows its own is judged by that, not by names.
    How large a study is, and on how many examples it judges, may differ.
    """
    content = _content(path)
    theirs, mine = _deciding(content["study"]), _deciding(to_dict(study.resolved()))
    if content.get("data") is None:
        return differences(theirs, mine)
    other = fingerprint_difference(content["data"], dict(data))
    named = differences({"data": theirs.pop("data")}, {"data": mine.pop("data")})
    found = [] if other is None else named or [f"{other} (data of the same name)"]
    return found + differences(theirs, mine)


def _deciding(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plain study decides which settings are good."""
    data, task, network = (dict(study.get(name, {})) for name in ("data", "task", "network"))
    data.pop("folder", None)
    if data.get("backbone") == "none":
        data.pop("components", None)
    task.pop("test_examples", None)
    start = study.get("initial_deviation")
    return {"data": data, "task": task, "network": network, "initial_deviation": start}


def check_tuned_through(path: Path, *, server: bool) -> None:
    """Raise if settings that were tuned through a server are meant for a graph, or the other way round."""
    kind = _content(path)["study"].get("network", {}).get("graph", {}).get("kind")
    if (kind == "star") != server:
        raise ValueError(
            f"tuned: got {path}, tuned over a {kind} graph, "
            f"but the study is {'a star' if server else 'no star'}"
        )


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    parts = ("study", "budget", "methods")
    if not isinstance(content, dict) or not all(isinstance(content.get(p), dict) for p in parts):
        raise FileError(f"{path}: not a file that `fedsurf tune` wrote")
    return content


def with_batches_that_fit(
    settings: Mapping[str, Setting], tasks: Sequence[Task]
) -> dict[str, Setting]:
    """Take all of an agent's examples where a setting wants more of them than some agent holds."""
    wanted = settings.get("batch_size")
    fewest = min(int(task.train.counts.min()) for task in tasks)
    if isinstance(wanted, int) and wanted > fewest:
        return {**settings, "batch_size": None}
    return dict(settings)


def settings_that_fit(
    method: Method, settings: Mapping[str, Setting], tasks: Sequence[Task]
) -> dict[str, Setting]:
    """Return settings with batches that fit, and agents of unequal size weighed by their examples.

    That is where a method can weigh agents, and nothing else is set: f is then what centralised
    training minimises.
    """
    fitting = with_batches_that_fit(settings, tasks)
    unequal = any(int(one.train.counts.min()) < int(one.train.counts.max()) for one in tasks)
    if unequal and "weighting" in method.options:
        return {"weighting": "examples", **fitting}
    return fitting


def best_settings(found: Mapping[str, Tuned]) -> dict[str, dict[str, Setting]]:
    """Return the best settings of every method."""
    return {name: tuned.best for name, tuned in found.items()}


def shipped(*, server: bool) -> AbstractContextManager[Path]:
    """Lend the file of settings that comes with the package, tuned on its embedded images."""
    return as_file(
        files("fedsurf.evaluation") / "tuned" / ("server.json" if server else "graph.json")
    )
