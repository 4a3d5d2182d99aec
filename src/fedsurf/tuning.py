"""Tuning: the same number of trials on the same validation tasks for every method.

The first trial takes a method's defaults, the others draw from its own ranges. A trial's score is the
mean of the pooled accuracy after a tenth of the rounds and after all of them, so that neither a slow
nor a short-lived setting wins; a run that diverged scores 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedsurf.algorithms import Start
from fedsurf.configuration import to_dict
from fedsurf.evaluation import run_all
from fedsurf.files import CheckpointError, read_json, write_json
from fedsurf.methods import Method, Setting
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.randomness import generator as seeded
from fedsurf.tasks.task import Task


@dataclass(frozen=True)
class TuneConfig:
    """The budget that every method gets."""

    trials: int = 12
    """Settings that are tried of each method."""
    tasks: int = 3
    """Validation tasks on which each setting is tried."""
    rounds: int = 200
    """Communication rounds of each run."""


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
    if config.trials < 1:
        raise ValueError(f"trials: got {config.trials}, but there must be at least 1")
    trials = []
    early = max(1, config.rounds // 10)
    for number in range(config.trials):
        settings = dict(method.defaults)
        if number:
            settings |= method.draw(seeded(seed, "tune", method.name, number))
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
        if not method.space:
            break
    return Tuned(method.name, sorted(trials, key=lambda trial: -trial.score))


def write_tuned(path: Path, found: Mapping[str, Tuned], study: Any, budget: TuneConfig) -> None:
    """Store the trials of all methods, with what they were tuned on."""
    write_json(
        path,
        {
            "study": to_dict(study),
            "budget": to_dict(budget),
            "methods": {name: tuned.to_dict() for name, tuned in found.items()},
        },
    )


def read_tuned(path: Path) -> dict[str, Tuned]:
    """Read what `write_tuned` stored."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("methods"), dict):
        raise CheckpointError(f"{path}: not a file that `fedsurf tune` wrote")
    found = {}
    for name, one in content["methods"].items():
        rows = [dict(row) for row in one["trials"]]
        found[name] = Tuned(name, [Trial(score=row.pop("score"), settings=row) for row in rows])
    return found


def best_settings(found: Mapping[str, Tuned]) -> dict[str, dict[str, Setting]]:
    """Return the best settings of every method."""
    return {name: tuned.best for name, tuned in found.items()}


def shipped_settings(*, server: bool) -> dict[str, dict[str, Setting]]:
    """Return the settings that come with the package, tuned on its embedded images."""
    name = "server.json" if server else "graph.json"
    with as_file(files("fedsurf") / "tuned" / name) as path:
        return best_settings(read_tuned(path))
