"""Tuning: the same number of trials on the same validation tasks for every method.

The first trial takes a method's defaults, the others draw from its ranges. A trial's score is the mean
of the pooled accuracy after a tenth of the rounds and after all of them, so that settings must be both
fast and lasting; a run that diverged scores 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedsurf.algorithms import Start
from fedsurf.common.checks import check_count
from fedsurf.common.configuration import differences, from_dict, to_dict
from fedsurf.common.files import FileError, read_json
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import write_json
from fedsurf.evaluation.config import StudyConfig, TuneConfig
from fedsurf.evaluation.methods import METHODS, Choice, Method, Setting, Settings, settings_that_fit
from fedsurf.evaluation.run import run_all
from fedsurf.models import Model
from fedsurf.network import Network
from fedsurf.tasks.config import AgentWeighting, FeatureConfig
from fedsurf.tasks.features import fingerprint, fingerprint_difference
from fedsurf.tasks.task import Task

if TYPE_CHECKING:
    from fedsurf.evaluation.study import Study


@dataclass(frozen=True)
class Trial:
    """Settings and their score."""

    settings: dict[str, Setting]
    score: float


@dataclass(frozen=True)
class Tuned:
    """The trials of one method, the best first."""

    method: str
    trials: list[Trial]

    @property
    def best(self) -> dict[str, Setting]:
        """The settings with the highest score."""
        return self.trials[0].settings

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "best": self.best,
            "trials": [{"score": trial.score, **trial.settings} for trial in self.trials],
        }


def candidates(method: Method, budget: TuneConfig, seed: int = 0) -> list[dict[str, Setting]]:
    """Return the settings that tuning tries: the defaults, then random ones."""
    for name in ("trials", "tasks", "rounds"):
        check_count(getattr(budget, name), name)
    numbers = range(1, budget.trials)
    drawn = [method.draw(seeded(seed, "tune", method.name, number)) for number in numbers]
    return [dict(method.defaults), *({**method.defaults, **settings} for settings in drawn)]


def try_settings(
    method: Method,
    settings: Iterable[Settings],
    model: Model,
    start: Start,
    tasks: Sequence[Task],
    network: Network,
    rounds: Sequence[int],
    *,
    seed: int = 0,
    weighting: AgentWeighting = "uniform",
    device: str | torch.device | None = None,
    on_trial: Callable[[], None] = lambda: None,
) -> Tuned:
    """Run a method with each of some settings, and rank them by their mean accuracy after `rounds`.

    Of settings with equal scores the first is the best.
    """
    trials = []
    for wanted in settings:
        fitting = settings_that_fit(method, wanted, tasks)
        runs = run_all(
            method.make(model, start, fitting),
            tasks,
            network,
            max(rounds),
            seed=seed,
            weighting=weighting,
            record=rounds,
            device=device,
        )
        trials.append(Trial(fitting, float(runs.pooled_accuracy.nan_to_num(0.0).mean())))
        on_trial()
    return Tuned(method.name, sorted(trials, key=lambda trial: -trial.score))


@dataclass(frozen=True)
class TunedSettings:
    """The trials of several methods, with the study, budget and data of their tuning."""

    methods: Mapping[str, Tuned]
    """The trials of every method."""
    study: StudyConfig
    """Data, tasks and network."""
    budget: TuneConfig
    """The budget of each method."""
    data: Mapping[str, Any]
    """The fingerprint of the features."""

    @staticmethod
    def of(study: Study, budget: TuneConfig, *tuned: Tuned) -> TunedSettings:
        """Return the trials of methods that were tuned on a study."""
        methods = {one.method: one for one in tuned}
        return TunedSettings(methods, study.config, budget, fingerprint(study.features))

    @staticmethod
    def read(path: Path) -> TunedSettings:
        """Read a file that `write` wrote."""
        content = read_json(path)
        try:
            study = from_dict(StudyConfig, content["study"], "study")
            check_count(len(study.seeds), "seeds")
            budget = from_dict(TuneConfig, content["budget"], "budget")
            found = {name: _read_trials(name, rows) for name, rows in content["methods"].items()}
            fingerprint_difference(content["data"], content["data"])  # raises for another form
            return TunedSettings(found, study, budget, content["data"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise FileError(f"{path}: not a file that `fedsurf tune` wrote ({error})") from error

    @staticmethod
    def shipped(*, server: bool) -> TunedSettings:
        """Return the settings that come with the package, tuned on its embedded images."""
        name = "server.json" if server else "graph.json"
        with as_file(files("fedsurf.evaluation") / "tuned" / name) as path:
            return TunedSettings.read(path)

    def write(self, path: Path) -> None:
        """Store everything as JSON."""
        content = {
            "study": to_dict(self.study),
            "budget": to_dict(self.budget),
            "data": dict(self.data),
            "methods": {name: tuned.to_dict()["trials"] for name, tuned in self.methods.items()},
        }
        write_json(path, content)

    def extended(self, path: Path) -> TunedSettings:
        """Return these trials and those of a file, which must come from equal tuning.

        The study's size may differ: its rounds, tasks and further seeds. Its first seed draws the graph
        of all trials.
        """
        if not path.exists():
            return self
        there = TunedSettings.read(path)
        found = differences(_tuned_on(there.study), _tuned_on(self.study))
        found += differences(to_dict(there.budget), to_dict(self.budget), "budget")
        other = fingerprint_difference(there.data, dict(self.data))
        if other is not None and not found:
            found = [f"{other} (other data under the same name)"]
        if found:
            raise ValueError(
                f"{path}: holds settings that were tuned otherwise, differing in {', '.join(found)}; "
                "choose another file"
            )
        return replace(self, methods={**there.methods, **self.methods})

    def differences_from(self, config: StudyConfig, data: Mapping[str, Any]) -> list[str]:
        """List in what a study differs from that of tuning: data, agents, labels, network, start.

        The study's size and its test examples may differ. Data is compared by its fingerprint.
        `config` is resolved, as that of a `Study`.
        """
        there, here = _deciding(self.study), _deciding(config)
        other = fingerprint_difference(self.data, dict(data))
        named = differences({"data": there.pop("data")}, {"data": here.pop("data")})
        found = [] if other is None else named or [f"{other} (data of the same name)"]
        return found + differences(there, here)


def tune(
    study: Study,
    file: Path | None = None,
    *,
    methods: Sequence[str] = ("all",),
    budget: TuneConfig = TuneConfig(),  # noqa: B008 - frozen
    progress: OpenBar = silent,
) -> TunedSettings:
    """Tune methods with equal budgets on the validation tasks of a study.

    `methods` are names; "all" stands for all that run on the network. Each is added to the file, if any,
    when it is tuned. Methods that are in the file are kept, unless they are named.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.evaluation.config import TuneConfig
    >>> study = fedsurf.Study(fedsurf.STUDIES["digits"].config)
    >>> found = tune(study, methods=["dgd"], budget=TuneConfig(trials=2, tasks=1, rounds=5))
    >>> sorted(found.methods["dgd"].best)
    ['batch_size', 'step_size']
    """
    found = TunedSettings.of(study, budget)
    if file is not None:
        found = found.extended(file)
    for method in study.methods(methods):
        if method.name in found.methods and method.name not in methods:
            continue
        with progress(f"tuning {method.name}", budget.trials) as advance:
            tuned = study.tune(method, budget, advance)
        if file is None:
            found = replace(found, methods={**found.methods, method.name: tuned})
        else:  # another process may have added a method in the meantime
            found = replace(found, methods={method.name: tuned}).extended(file)
            found.write(file)
    return found


def deciding_features(config: FeatureConfig) -> dict[str, Any]:
    """Return the fields that decide the features: not the folder, nor components without a backbone."""
    ignored = {"folder", "components"} if config.backbone == "none" else {"folder"}
    return {name: value for name, value in to_dict(config).items() if name not in ignored}


def _tuned_on(study: StudyConfig) -> dict[str, Any]:
    """Return the part of a study on which all trials of tuning depend."""
    plain = to_dict(study)
    content = {name: value for name, value in plain.items() if name not in ("rounds", "tasks")}
    return {**content, "seeds": {"0": study.seeds[0]}}


def _deciding(study: StudyConfig) -> dict[str, Any]:
    """Return the part of a study that decides which settings are good."""
    task = {k: v for k, v in to_dict(study.task).items() if k != "test_examples"}
    start = {"initial_deviation": study.initial_deviation}
    network = to_dict(study.network)
    return {"data": deciding_features(study.data), "task": task, "network": network, **start}


def _read_trials(name: str, rows: list[dict[str, Any]]) -> Tuned:
    """Return the trials of a method from a file, at least one, with settings of the method's types."""
    trials = [Trial(score=row.pop("score") + 0.0, settings=row) for row in map(dict, rows)]
    if not trials:
        raise ValueError(f"{name}: has no trials")
    for trial in trials if name in METHODS else ():
        for setting, value in trial.settings.items():
            _check_setting(METHODS[name], setting, value)
    return Tuned(name, sorted(trials, key=lambda trial: -trial.score))


def _check_setting(method: Method, name: str, value: Any) -> None:
    """Raise unless a setting from a file has the type of its default or of what tuning draws."""
    space = method.space.get(name)
    known = list(space.values) if isinstance(space, Choice) else [0.5] if space else []
    known += [method.defaults[name]] if name in method.defaults else []
    kinds = {type(one) for one in known or ["uniform"]}  # options that are not tuned are names
    if type(value) is int and float in kinds:
        value = float(value)  # raises for numbers that are too large
    if type(value) not in kinds:
        kind = " or ".join(sorted(one.__name__ for one in kinds))
        raise ValueError(f"{method.name}: {name}: got {value!r}, but it must be {kind}")
