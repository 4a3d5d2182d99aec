"""Where the figures get what they are made of: optimizers, studies, audits; each made once and kept.

    runs/DIGEST/      an optimizer, by its resolved configuration; its audit in runs/DIGEST/audit/
    pace/             the seconds that meta-training takes for a step
    cache/            what methods and optimizers did on the meta-test tasks, and tuned settings

What is there is read and not made again. So figures share, and interrupted work goes on.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsurf import pretrained
from fedsurf.analysis.audit import audit
from fedsurf.analysis.certificate import certify
from fedsurf.common.configuration import to_dict
from fedsurf.common.files import read_json
from fedsurf.common.progress import OpenBar
from fedsurf.common.text import counted
from fedsurf.common.writing import write_json
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig, TuneConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import Setting, method_named
from fedsurf.evaluation.run import Trajectories
from fedsurf.evaluation.study import Entrant, Study
from fedsurf.evaluation.tuning import Tuned, read_tuned, write_tuned
from fedsurf.paper.pace import PaceOfSteps
from fedsurf.paper.rivals import given_by_paper, paper_settings, where_from
from fedsurf.paper.sizes import Size
from fedsurf.surf import unroll
from fedsurf.surf.loop import Observer
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.features import Features, load_features

Kind = Literal[
    "the paper's", "tuned", "the paper's settings", "textbook settings", "not the paper's"
]
UNTUNED: tuple[Kind, ...] = ("the paper's settings", "textbook settings")
"""What classical methods are called that are not tuned: the paper is silent about some."""

SURF_T = "SURF-T (not the paper's)"
"""What figures call the pretrained optimizer."""


@dataclass(frozen=True)
class Entry:
    """A curve's origin: what ran, how it is to be called, and with which settings.

    Attributes
    ----------
    label : str
        What figures and tables call it.
    kind : str
        Whose method, or whose settings.
    runs : Trajectories
        What it did on the meta-test tasks.
    settings : dict
        Its settings, if it is a classical method.
    note : str
        Where these come from.
    """

    label: str
    kind: Kind
    runs: Trajectories
    settings: dict[str, Setting] = field(default_factory=dict)
    note: str = ""


def digest(content: Any) -> str:
    """Return a short checksum of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


class Workshop:
    """Makes and keeps what figures need.

    Parameters
    ----------
    folder : Path
        Where everything is kept.
    size : Size
        How large everything is.
    progress : callable
        Opens a progress bar with a title and a total.
    watching : callable
        Opens the progress of meta-training: a context of observers.
    """

    def __init__(
        self,
        folder: Path,
        size: Size,
        progress: OpenBar,
        watching: Callable[[], AbstractContextManager[Sequence[Observer]]] = lambda: nullcontext(
            ()
        ),
    ) -> None:
        self.folder, self.size = folder, size
        self.progress, self._watching = progress, watching

    def features(self, data: FeatureConfig) -> Features:
        """Return the features of a data set, read once."""
        return _features(data)

    def place_of(self, config: ExperimentConfig) -> Path:
        """Return the folder of an optimizer's run."""
        return self.folder / "runs" / digest(to_dict(config))

    def train(self, config: ExperimentConfig) -> Path:
        """Meta-train an optimizer, go on with it, or find that it is finished; return its folder."""
        place = self.place_of(config)
        if _is_trained(place, config.surf.steps):
            return place
        experiment = Experiment(config, self.features(config.data))
        pace = PaceOfSteps(self.folder / "pace" / f"{place.name}.json")
        with self._watching() as observers:
            experiment.train(place, resume=True, observers=[pace, *observers])
        return place

    def load(self, config: ExperimentConfig) -> Experiment:
        """Return an experiment with its meta-trained optimizer."""
        return Experiment.load(self.train(config), self.features(config.data))

    def audit(self, config: ExperimentConfig) -> dict[str, Any]:
        """Audit an optimizer, or return the audit that is there."""
        place = self.place_of(config) / "audit"
        if not (place / "audit.json").is_file():
            experiment = self.load(config)
            study = replace(self.size.study_of(config), tasks=self.size.audit_tasks)
            # An optimizer keeps the shift operator that its filters were trained with.
            study = replace(study, network=config.network)
            given = Study(study, features=self.features(config.data))
            found = audit(
                experiment,
                given,
                agents=self.size.audit_agents,
                progress=self.progress,
            )
            found.write(place)
        content: dict[str, Any] = read_json(place / "audit.json")
        return content

    def certificate(self, config: ExperimentConfig) -> dict[str, Any]:
        """Certify an optimizer, or return the certificate that is there."""
        file = self.place_of(config) / "certificate.json"
        if not file.is_file():
            tasks = self.size.tasks
            found = certify(self.load(config), tasks=tasks, progress=self.progress)
            write_json(file, found.to_dict())
        content: dict[str, Any] = read_json(file)
        return content

    def study(self, config: StudyConfig) -> Study:
        """Return a study that keeps its results here."""
        return Study(config, self.folder / "cache", self.features(config.data))

    def tuned(self, config: StudyConfig, method: str) -> Tuned:
        """Tune a method, or return what tuning found before.

        The paper's settings are tried, too, beside those of the budget: tuning must not lose to them
        because they are outside of its ranges.
        """
        budget = self.size.budget_of(config)
        file = self._tuned_file(config, method, budget)
        if not file.is_file():
            known, study = method_named(method), self.study(config)
            with self.progress(f"tuning {method}", budget.trials + 1) as advance:
                trials = study.tune(known, budget, advance).trials
                if given_by_paper(method):
                    first = replace(known, defaults=paper_settings(method))
                    trials += study.tune(first, replace(budget, trials=1), advance).trials
            trials.sort(key=lambda trial: -trial.score)
            write_tuned(file, {method: Tuned(method, trials)}, config, budget)
        return read_tuned(file)[method]

    def rival(self, config: StudyConfig, method: str) -> list[Entry]:
        """Run a classical method on a study's tasks, tuned and with the paper's settings."""
        title = method_named(method).title
        budget = self.size.budget_of(config)
        tried = budget.trials + given_by_paper(method)
        sets: list[tuple[Kind, dict[str, Setting], str]] = [
            (
                "tuned",
                self.tuned(config, method).best,
                f"the best of {counted(tried, 'setting')} on {counted(budget.tasks, 'validation task')}",
            ),
            (
                "the paper's settings" if given_by_paper(method) else "textbook settings",
                paper_settings(method),
                where_from(method),
            ),
        ]
        return [
            Entry(title, kind, self._run(config, Entrant(title, method, settings)), settings, note)
            for kind, settings, note in sets
        ]

    def learned(
        self, config: StudyConfig, optimizer: ExperimentConfig, label: str = "U-DGD"
    ) -> Entry:
        """Run a meta-trained optimizer on a study's tasks."""
        place = self.train(optimizer)
        return Entry(label, "the paper's", self._run(config, Entrant(label, run=place)))

    def pretrained(self, config: StudyConfig, rounds: int) -> Entry:
        """Run the optimizer that comes with the package on a study's tasks."""
        entrant = Entrant(SURF_T, pretrained="softmax-head", rounds=rounds)
        return Entry(SURF_T, "not the paper's", self._run(config, entrant))

    def pretrained_norms(self, config: ExperimentConfig) -> Tensor:
        """Return the pretrained optimizer's gradient norms on an optimizer's tasks, `[tasks, layers + 1]`.

        They are measured as in the descending constraints of that optimizer, after each of its layers.
        """
        study, surf = self.study(self.size.study_of(config)), config.surf
        rounds = config.optimizer.layers * config.optimizer.filter_order
        what = [to_dict(study.config), to_dict(surf.descent), rounds, pretrained.digest()]
        file = self.folder / "cache" / f"norms-{digest(what)}.json"
        if not file.is_file():
            algorithm, network = (
                pretrained.load().on(study.model, rounds),
                study.network(config.seed),
            )
            found = []
            with self.progress(f"gradient norms of {SURF_T}", study.config.tasks) as advance:
                for number, task in enumerate(study.test_tasks(config.seed)):
                    with torch.no_grad():
                        _, norms = unroll(
                            algorithm,
                            algorithm.steps,
                            task,
                            network,
                            surf.descent,
                            gradient_batch_size=surf.gradient_batch_size,
                            weighting=surf.weighting,
                            seed=config.seed,
                            path=("theory", number),
                        )
                    found.append(norms.tolist())
                    advance()
            write_json(file, {"norms": found})
        # Where there is none, it was not finite.
        return torch.tensor(np.array(read_json(file)["norms"], dtype=np.float32))

    def ceiling(self, config: StudyConfig) -> Tensor:
        """Return the accuracy of centralised training on each task of a study."""
        with self.progress("centralised training", config.tasks) as advance:
            return self.study(config).ceiling(advance)

    def _run(self, config: StudyConfig, entrant: Entrant) -> Trajectories:
        with self.progress(entrant.label, config.tasks) as advance:
            return self.study(config).run(entrant, advance)

    def _tuned_file(self, config: StudyConfig, method: str, budget: TuneConfig) -> Path:
        key = digest([to_dict(config), to_dict(budget)])
        return self.folder / "cache" / f"tuned-{method}-{key}.json"


def _is_trained(place: Path, steps: int) -> bool:
    """Whether a run is finished: its last validation is that of its last step, and its state is there."""
    log = place / "log.jsonl"
    if not log.is_file() or not (place / f"state-{steps:08d}").is_dir():
        return False
    return int(json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["step"]) >= steps


@cache
def _features(data: FeatureConfig) -> Features:
    return load_features(data)
